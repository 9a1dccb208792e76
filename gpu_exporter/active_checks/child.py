"""The process that holds the context of a GPU: it does what its parent asks, one line of JSON each, and then ends.

The driver releases a context when its process ends, however it ends. It ends with its parent, too. The measurements
that it can be asked for are listed by name; rates are bytes/s and FLOP/s.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from gpu_exporter.active_checks.arithmetic import WrongResult, bf16, fp32, sustained
from gpu_exporter.active_checks.bench import MIB, Bench, rate
from gpu_exporter.active_checks.cuda import Cuda, CudaError, CudaGpu
from gpu_exporter.active_checks.links import Links
from gpu_exporter.active_checks.memory_test import memory_test

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


PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer each request on stdin until it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    worker = _Worker()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(worker, request)), file=answers, flush=True)
    _close(worker, answers)


def _close(worker: _Worker, answers: TextIO) -> None:
    with contextlib.suppress(CudaError):  # the process ends, and the driver releases the rest
        worker.close()
    answers.close()


def _answer(worker: _Worker, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return worker.do(request)
    except CudaError as error:
        first = error
        while isinstance(first.__context__, CudaError):  # after a failure, the calls that clean up fail, too
            first = first.__context__
        return {"error": str(first), "lost": first.lost}
    except WrongResult as error:
        return {"error": str(error), "wrong": True}


class _Worker:
    """What the process holds: the driver, and a GPU or all links."""

    def __init__(self) -> None:
        self._cuda: Cuda | None = None
        self._bench: Bench | None = None
        self._links: Links | None = None

    def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Raises CudaError or WrongResult."""
        match request:
            case {"do": "open", "pci": str(pci)}:
                self._open(pci)
                return {}
            case {"do": "links", "pcis": dict(pcis)}:
                self._links = Links(self._driver, {int(index): self._driver.device(pci) for index, pci in pcis.items()})
                return {}
            case {"do": "pair", "from": int(source), "to": int(target)} if self._links is not None:
                return self._links.pair(source, target)
            case {"do": "ring", "gpus": list(gpus)} if self._links is not None:
                return self._links.ring(gpus)
            case {"do": str(name), "seconds": float(seconds)} if self._bench is not None and name in LONG:
                return LONG[name](self._bench, seconds)
            case {"do": str(name)} if self._bench is not None and name in MEASUREMENTS:
                return {**MEASUREMENTS[name](self._bench), "notes": self._bench.notes}
        raise CudaError("request", f"{request}: unknown, or nothing is open")

    @property
    def _driver(self) -> Cuda:
        if self._cuda is None:
            self._cuda = Cuda()
        return self._cuda

    def _open(self, pci: str) -> None:
        _move_near(pci)
        gpu = CudaGpu(self._driver, self._driver.device(pci))
        self._bench = Bench(gpu)
        self._bench.warm_up()

    def close(self) -> None:
        """Release all contexts. Raises CudaError."""
        if self._bench is not None:
            self._bench.gpu.close()
        if self._links is not None:
            self._links.close()


LONG: Mapping[str, Callable[[Bench, float], dict[str, Any]]] = {"memory_test": memory_test, "sustained": sustained}


def _move_near(pci: str) -> None:
    """Run on the CPUs of the GPU's NUMA node, from which its pinned memory comes, if this process may use them."""
    domain, _, rest = pci.lower().partition(":")
    cpus: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        for part in Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/local_cpulist").read_text().strip().split(","):
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
        if near := cpus & os.sched_getaffinity(0):
            os.sched_setaffinity(0, near)


if __name__ == "__main__":
    main()
