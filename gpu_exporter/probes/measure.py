"""The measurements of one GPU by name, in the process that holds its context. Rates are bytes/s and FLOP/s."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_exporter.probes.arithmetic import bf16, fp32
from gpu_exporter.probes.bench import MIB, Bench, rate

HOST_BUFFER = 64 * MIB
COPIES, READS = 4, 8


def memory_copy(bench: Bench) -> dict[str, Any]:
    """Copy within device memory, as the driver does it for everyone; read and written bytes count."""
    source, target, size = bench.pair()
    call = ("cuMemcpyDtoDAsync_v2", target, source, size, bench.gpu.stream)
    return rate(2 * size, bench.timed(lambda: bench.gpu.cuda.call(*call), COPIES))


def memory_read(bench: Bench) -> dict[str, Any]:
    """Read device memory with 16-byte loads that bypass the L1 cache."""
    _, _, size = bench.pair()
    return rate(size, bench.timed(bench.read_memory, READS))


def pcie_to_gpu(bench: Bench) -> dict[str, Any]:
    """Copy pinned host memory to the GPU."""
    device, _, size = bench.pair()
    size = min(size, HOST_BUFFER)
    call = ("cuMemcpyHtoDAsync_v2", device, bench.host(size), size, bench.gpu.stream)
    return rate(size, bench.timed(lambda: bench.gpu.cuda.call(*call), COPIES), best=True)


def pcie_from_gpu(bench: Bench) -> dict[str, Any]:
    """Copy device memory to pinned host memory."""
    device, _, size = bench.pair()
    size = min(size, HOST_BUFFER)
    call = ("cuMemcpyDtoHAsync_v2", bench.host(size), device, size, bench.gpu.stream)
    return rate(size, bench.timed(lambda: bench.gpu.cuda.call(*call), COPIES), best=True)


MEASUREMENTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    each.__name__: each for each in (memory_copy, memory_read, pcie_to_gpu, pcie_from_gpu, bf16, fp32)
}
