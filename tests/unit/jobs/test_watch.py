"""Which GPU a sender belongs to."""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.jobs.watch import places
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples


def listed(index: int, *pids: int) -> GpuSamples:
    gpu = Gpu(index, f"GPU-{index}")
    samples = [Sample(Series(m.PROCESS_MEMORY, gpu, (("pid", str(pid)), ("process", "python3"))), 1) for pid in pids]
    return GpuSamples(gpu, None, samples, {})


def test_the_driver_knows_better_than_the_sender() -> None:
    known = places([listed(0, 41), listed(1, 42, 43), listed(2, 43)])
    assert known.of(41, "") == known.of(41, "GPU-1") == ("GPU-0", True)
    assert known.of(43, "GPU-2") == ("GPU-2", True)  # on two GPUs, it says which
    assert known.of(43, "GPU-0") == ("GPU-0", False)
    assert known.of(43, "") is None


def test_a_process_that_the_driver_does_not_list_may_declare_a_gpu_of_this_node() -> None:
    known = places([listed(0, 41)])
    assert known.of(0, "GPU-0") == ("GPU-0", False)
    assert known.of(0, "GPU-9") is known.of(0, "") is None
