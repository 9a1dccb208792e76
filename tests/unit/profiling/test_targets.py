"""Which processes are profiled."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuStatus, Row, Snapshot
from gpu_exporter.owners.cgroup import ProcessOwner
from gpu_exporter.profiling.targets import MOST_PROCESSES, Holders, Owned, Wanted, chosen, holders

GPUS = [Gpu(index, f"GPU-{index}") for index in range(3)]
HELD = Holders({41: (0,), 42: (0, 1), 43: (2,)}, frozenset({0, 1, 2}))
UID = "0123456789ab4cde8f0123456789abcd"


def pod_row(gpu: int, pod: str, uid: str = "") -> Row:
    labels = (("namespace", "ml"), ("pod", pod), ("container", "main"))
    return Row(m.POD_INFO, GPUS[gpu], 1, (*labels, ("pod_uid", uid)) if uid else labels)


def test_holders_of_a_snapshot() -> None:
    samples = [
        Sample(Series(m.PROCESS_MEMORY, GPUS[0], (("pid", "42"), ("process", "python"))), 1.0),
        Sample(Series(m.PROCESS_SM, GPUS[1], (("pid", "42"), ("process", "python"))), 1.0),
        Sample(Series(m.PROCESS_MEMORY, GPUS[1], (("pid", "41"), ("process", "python"))), 1.0),
        Sample(Series(m.PROCESSES_UNRESOLVED, GPUS[1]), 2.0),
        Sample(Series(m.FB_USED, GPUS[1]), 2.0),
    ]
    statuses = tuple(GpuStatus(gpu, True) for gpu in GPUS[:2])
    found = holders(Snapshot(0.0, "nvml", tuple(samples), statuses))
    assert found == Holders({41: (1,), 42: (0, 1)}, frozenset({0, 1}), 2)


def test_by_gpu() -> None:
    assert chosen(Wanted(), HELD, Owned()) == HELD.gpus
    assert chosen(Wanted(gpu=0), HELD, Owned()) == {41: (0,), 42: (0, 1)}
    with pytest.raises(GpuExporterError, match="--gpu 3: there is no such GPU; this node has: 0, 1, 2"):
        chosen(Wanted(gpu=3), HELD, Owned())


def test_by_job() -> None:
    """The cgroup of a process says its job; job files only that of a GPU."""
    owned = Owned(
        {41: ProcessOwner(job="7"), 42: ProcessOwner(job="8")}, [Row(m.JOB_INFO, GPUS[2], 1, (("job_id", "7"),))]
    )
    assert chosen(Wanted(job="7"), HELD, owned) == {41: (0,), 43: (2,)}
    with pytest.raises(GpuExporterError, match="no process holds a GPU of job 9: name the GPU with --gpu"):
        chosen(Wanted(job="9"), HELD, owned)


def test_by_pod() -> None:
    owned = Owned(rows=[pod_row(0, "a"), pod_row(1, "a"), pod_row(2, "b")])
    assert chosen(Wanted(pod="ml/a"), HELD, owned) == {41: (0,), 42: (0, 1)}
    with pytest.raises(GpuExporterError, match="no process holds a GPU in pod other/a"):
        chosen(Wanted(pod="other/a"), HELD, owned)


def test_pods_that_share_a_gpu() -> None:
    """Only the UID of the pod tells their processes apart."""
    shared = [pod_row(0, "a"), pod_row(0, "b")]
    with pytest.raises(GpuExporterError, match="GPU 0 is shared by pods: add --kubernetes-pods"):
        chosen(Wanted(pod="ml/a"), HELD, Owned(rows=shared))
    owned = Owned({42: ProcessOwner(pod=UID), 41: ProcessOwner(pod="f" * 32)}, [pod_row(0, "a", UID), pod_row(0, "b")])
    assert chosen(Wanted(pod="ml/a"), HELD, owned) == {42: (0, 1)}


def test_none_and_too_many() -> None:
    with pytest.raises(GpuExporterError, match=r"^no process holds a GPU now$"):
        chosen(Wanted(), Holders({}), Owned())
    with pytest.raises(GpuExporterError, match="but 3 processes have PIDs of another PID namespace: share the host's"):
        chosen(Wanted(), Holders({}, unresolved=3), Owned())
    many = Holders(dict.fromkeys(range(1, MOST_PROCESSES + 2), (0,)))
    with pytest.raises(GpuExporterError, match="65 processes hold these GPUs, more than 64: choose with --pid"):
        chosen(Wanted(), many, Owned())
