"""Which pod has which GPU of a simulated node."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple
from uuid import UUID

from gpu_exporter.model.gpu import Owner

# A shared node has several pods: of this many GPUs, one is free, and one belongs to a notebook that does not use it.
SHARED_GPUS = 8
# The GPUs of a training pod on a shared node.
POD_GPUS = 2


class Place(NamedTuple):
    """The pods of a GPU, one or none, and whether they train on it."""

    owners: Sequence[Owner]
    trains: bool


FREE = Place((), trains=False)


def whole(job: str, rank: int, gpus: int, seed: int) -> Sequence[Place]:
    """Return the places of a node whose GPUs all belong to one pod, which is this rank of a job."""
    return [_training(job, rank, seed)] * gpus


def shared(job: str, notebook: str, gpus: int, seed: int) -> Sequence[Place]:
    """Return the places of a node with all pods of a job, an idle notebook and free GPUs. A small node has one pod."""
    unused = gpus // SHARED_GPUS
    if not unused:
        return whole(job, 0, gpus, seed)
    training = [_training(job, index // POD_GPUS, seed) for index in range(gpus - 2 * unused)]
    idle = Place((_pod(notebook, 0, "notebook", seed),), trains=False)
    return [*training, *[idle] * unused, *[FREE] * unused]


def _training(job: str, rank: int, seed: int) -> Place:
    return Place((_pod(job, rank, "train", seed),), trains=True)


def _pod(workload: str, rank: int, container: str, seed: int) -> Owner:
    """Return a pod as the API server describes it: its name ends with its rank."""
    name = f"{workload}-{rank}"
    uid = UUID(bytes=sha256(f"{seed}/{name}".encode()).digest()[:16], version=4)
    return Owner("simulated", name, container, str(uid), workload, str(rank))
