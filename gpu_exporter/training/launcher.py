"""Who this process is in its job, as the launcher says in the environment: torchrun, MPI, Slurm or Kubernetes."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Rank, number of ranks and local rank. The first launcher whose rank and size are both set wins: torchrun starts
# below Slurm, not the other way round.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    # Not SLURM_NTASKS, which a batch script has too, although it is one process.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
# torchrun sets its run ID to "none" if it was given none.
JOB_IDS = ("GPU_EXPORTER_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_NAME")
NO_JOB_ID = ("", "none")
POD_UIDS = ("POD_UID", "KUBERNETES_POD_UID")


class JobPlace:
    """A process of a job: its rank among `world_size`, its rank on this node, the job and the pod ("" if unknown)."""

    __slots__ = ("job_id", "local_rank", "pod_uid", "rank", "world_size")

    def __init__(self, job_id: str, rank: int, world_size: int, local_rank: int, pod_uid: str = "") -> None:
        self.job_id, self.rank, self.world_size = job_id, rank, world_size
        self.local_rank, self.pod_uid = local_rank, pod_uid


def place(environ: Mapping[str, str], program: str = "") -> JobPlace:
    """Return the place of this process in its job; without a launcher, the only rank of a job named as the program."""
    job_id = next((environ[name] for name in JOB_IDS if environ.get(name, "") not in NO_JOB_ID), "")
    pod_uid = next((environ[name] for name in POD_UIDS if environ.get(name)), "")
    rank, world_size, local_rank = _ranks(environ)
    return JobPlace(job_id or _stem(program) or "training", rank, world_size, local_rank, pod_uid)


def _ranks(environ: Mapping[str, str]) -> tuple[int, int, int]:
    for rank_name, size_name, local_name in LAUNCHERS:
        rank, size = _number(environ, rank_name), _number(environ, size_name)
        if rank is not None and size is not None and rank < size:
            local = _number(environ, local_name)
            return rank, size, rank if local is None else local
    index = _number(environ, "JOB_COMPLETION_INDEX")  # an indexed Job does not say how many pods it has
    return (index, index + 1, 0) if index is not None else (0, 1, 0)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _stem(program: str) -> str:
    return os.path.splitext(os.path.basename(program))[0].lstrip("-")


def process_group() -> tuple[int, int] | None:
    """Return rank and number of ranks of PyTorch's process group; None if there is none (yet)."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def visible_uuid(environ: Mapping[str, str], local_rank: int | None) -> str:
    """Return the UUID of this rank's GPU if CUDA_VISIBLE_DEVICES has UUIDs, as in Kubernetes; else "".

    Without a local rank, the GPU is known only if it is the only one.
    """
    names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    of_rank = names[local_rank : local_rank + 1] if local_rank is not None else []
    (name,) = of_rank or (names if len(names) == 1 else [""])
    return name if len(name) == 40 and name.startswith(("GPU-", "MIG-")) else ""  # CUDA accepts shorter ones
