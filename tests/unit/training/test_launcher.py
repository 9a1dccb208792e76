"""Rank, job and GPU from the environment of each launcher."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.training import StepTimer
from gpu_exporter.training.launcher import place, visible_uuid

GPUS = [f"GPU-0000000{index}-0000-0000-0000-000000000000" for index in range(2)]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("train", 0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "llm"}, ("llm", 5, 8, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "none"}, ("train", 5, 8, 5)),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            ("train", 3, 4, 1),
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, ("train", 3, 4, 0)),
        (
            {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"},
            ("77", 9, 16, 1),
        ),
        # The batch script of a job is one process, although the job has tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "77"}, ("77", 0, 1, 0)),
        # torchrun below Slurm: Slurm has one task per node.
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"},
            ("train", 9, 16, 1),
        ),
        ({"JOB_COMPLETION_INDEX": "2", "JOB_NAME": "llm"}, ("llm", 2, 3, 0)),
        ({"RANK": "x", "WORLD_SIZE": "8"}, ("train", 0, 1, 0)),
        ({"RANK": "9", "WORLD_SIZE": "8"}, ("train", 0, 1, 0)),
        ({"GPU_EXPORTER_JOB_ID": "mine", "SLURM_JOB_ID": "77"}, ("mine", 0, 1, 0)),
    ],
)
def test_place(environ: Mapping[str, str], expected: tuple[str, int, int, int]) -> None:
    found = place(environ, "/srv/train.py")
    assert (found.job_id, found.rank, found.world_size, found.local_rank) == expected


def test_an_interpreter_without_a_program() -> None:
    assert place({}, "").job_id == "training"
    assert place({}, "-c").job_id == "c"


@pytest.mark.parametrize(
    ("visible", "local_rank", "uuid"),
    [
        (",".join(GPUS), 1, GPUS[1]),
        (GPUS[0], 3, GPUS[0]),  # each rank sees only its own
        (",".join(GPUS), 2, ""),
        (",".join(GPUS), None, ""),
        (GPUS[0], None, GPUS[0]),
        ("0,1", 1, ""),
        ("GPU-0000", 0, ""),  # short names are for CUDA, not for labels
        ("", 0, ""),
    ],
)
def test_gpu(visible: str, local_rank: int | None, uuid: str) -> None:
    assert visible_uuid({"CUDA_VISIBLE_DEVICES": visible}, local_rank) == uuid


def test_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "POD_UID": "pod"}.items():
        monkeypatch.setenv(name, value)
    message = StepTimer("mine", rank=2, world_size=4).message()
    assert (message["job_id"], message["rank"], message["world_size"], message["pod_uid"]) == ("mine", 2, 4, "pod")


@pytest.mark.parametrize(
    ("launcher", "uuid"), [({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, GPUS[1]), ({}, "")]
)
def test_the_gpu_of_a_rank_without_a_launcher(
    monkeypatch: pytest.MonkeyPatch, launcher: dict[str, str], uuid: str
) -> None:
    """Nothing tells a rank of torch.multiprocessing.spawn its number on this node, so that it could name any GPU."""
    for name, value in {"CUDA_VISIBLE_DEVICES": ",".join(GPUS), **launcher}.items():
        monkeypatch.setenv(name, value)
    timer = StepTimer(rank=1, world_size=2, socket="", gpu=False)
    assert timer.message().get("uuid", "") == uuid
