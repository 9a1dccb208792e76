"""The text of a diagnosis: what could not be judged, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.report import as_dict, hints_of, lines
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import ONE_JOB, seen
from tests.support import phases
from tests.support.truth import PHASES

STRAGGLER = "ddp_straggler_slow_gpu"
HINT = (
    "The GPUs communicate, but their job is unknown. If they are ranks of one job, run again with --one-job to find a "
    "straggler."
)


def _recorded(phase: str, job: str) -> tuple[Diagnosis, ...]:
    path = next(path for path, name in PHASES if name == phase)
    return diagnose(seen(phases.scrapes(path, phase), {}, job=job))


def _reason(diagnoses: Sequence[Diagnosis], mode: str) -> set[str]:
    """Return why a mode could not be judged, on any of the GPUs."""
    text = lines(diagnoses, every=True)
    return {line.partition("not judged, ")[2] for line in text if line.startswith(f"  {mode}: ")}


def test_ranks_of_an_unknown_job_are_not_compared() -> None:
    """Watching for longer would not help: the job has to be named."""
    found = _recorded(STRAGGLER, job="")

    assert _reason(found, "GpuStragglerSlow") == {"the job is unknown: use --one-job if all GPUs are ranks of one job"}
    assert _reason(found, "GpuAllocatedIdle") == {"not watched for long enough"}
    assert _reason(_recorded(STRAGGLER, job="train"), "GpuStragglerSlow") == set()


def test_a_job_without_a_name() -> None:
    """With --one-job, nobody knows what the job is called."""
    found = _recorded(STRAGGLER, job=ONE_JOB)
    content = as_dict(found)

    assert content["incidents"][0]["words"] == "GPU 1 slows down the job: it spends more time computing than the others"
    assert content["incidents"][0]["severity"] == "info"
    assert content["incidents"][0]["jobs"] == []
    assert not [gpu for gpu in content["gpus"] if "workload" in gpu]


def test_a_single_rank_is_not_compared() -> None:
    """A job on one GPU has no other ranks."""
    assert _reason(_recorded("idle", job="train"), "GpuCollectiveStall") == {"no other GPU of the job was seen"}


def test_missing_signals_have_names() -> None:
    found = _recorded("idle", job="")

    assert _reason(found, "GpuThermalMarginLow") == {"missing: thermal margin"}


@pytest.mark.parametrize(
    ("phase", "job", "text"),
    [(STRAGGLER, "", HINT), (STRAGGLER, "train", ""), ("memory_bound_copy", "", "")],
)
def test_communicating_gpus_of_an_unknown_job(phase: str, job: str, text: str) -> None:
    """A straggler is found only with `--one-job`."""
    assert hints_of(_recorded(phase, job)) == (text, "")


def test_one_communicating_gpu_has_no_other_rank() -> None:
    """Where no other GPU is watched, `--one-job` would not help."""
    assert hints_of(_recorded(STRAGGLER, job="")[:1]) == ("", "")


@pytest.mark.parametrize(
    ("samples", "words", "numbers"),
    [
        (
            {"DCGM_FI_DEV_GPU_TEMP": 50.0},
            "class unknown: profiling metrics are missing, such as SM activity: `gpu-exporter doctor` on the node says "
            "why; dcgm-exporter needs more fields (docs/migration.md#back)",
            [],
        ),
        (
            {
                "DCGM_FI_DEV_GPU_UTIL": 70.0,
                "DCGM_FI_DEV_POWER_USAGE": 150.0,
                "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 300.0,
                "DCGM_FI_DEV_SM_CLOCK": 1410.0,
                "DCGM_FI_DEV_FB_USED": 10240.0,
                "DCGM_FI_DEV_FB_FREE": 30720.0,
            },
            "class unknown: without profiling metrics, utilisation and power do not show what limits this GPU",
            ["utilisation 70 %, power at 50 % of its limit, SM clock 1410 MHz, device memory 25 % in use"],
        ),
        (
            {"DCGM_FI_DEV_GPU_UTIL": 0.0},
            "idle (approximate): no kernel runs and no data is copied",
            ["utilisation 0 %, GPU idle 100 % of the time"],
        ),
    ],
)
def test_without_profiling_metrics(samples: Mapping[str, float], words: str, numbers: Sequence[str]) -> None:
    """As on a GPU older than Hopper without DCGM: what the driver says is printed, and the class if it tells."""
    labels = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA A100"}
    page = Scrape(1000.0, [ScrapedSample(name, labels, value) for name, value in samples.items()])

    line, *others = lines(diagnose(seen([page], {})))

    assert line == f"GPU 0 (NVIDIA A100)  {words}"
    assert [other.strip() for other in others] == numbers


def test_gpus_of_two_clusters() -> None:
    """The same node and GPU in two clusters are two lines that name the cluster, also in JSON."""
    labels = {"gpu": "0", "modelName": "NVIDIA A100", "Hostname": "node-a"}
    samples = [
        ScrapedSample("DCGM_FI_DEV_GPU_TEMP", {**labels, "UUID": f"GPU-{cluster}", "cluster": cluster}, 50.0)
        for cluster in ("east", "west")
    ]
    found = diagnose(seen([Scrape(1000.0, samples)], {}))

    assert [line.partition(")")[0] for line in lines(found)] == [
        f"GPU 0 ({cluster}, node-a, NVIDIA A100" for cluster in ("east", "west")
    ]
    assert [gpu["cluster"] for gpu in as_dict(found)["gpus"]] == ["east", "west"]
