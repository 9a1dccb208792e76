"""The rates of copies between GPUs: each ordered pair alone, then all at once in a ring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

from gpu_exporter.active_checks.bench import MIB
from gpu_exporter.active_checks.cuda import PEER_ACCESS_ALREADY_ENABLED, Cuda, CudaError, CudaGpu

BUFFER = 256 * MIB
COPIES, SAMPLES = 4, 5


@dataclass(slots=True)
class _Peer:
    """A GPU with a buffer to send from and one to receive into."""

    gpu: CudaGpu
    source: int
    target: int
    size: int


class Links:
    """All GPUs of the node that take part, by index. Holds a context on each until `close`."""

    def __init__(self, cuda: Cuda, devices: Mapping[int, int]) -> None:
        self._cuda = cuda
        self._peers: dict[int, _Peer] = {}
        try:
            for index, device in devices.items():
                self._peers[index] = self._opened(CudaGpu(cuda, device))
        except CudaError:
            self.close()
            raise

    def _opened(self, gpu: CudaGpu) -> _Peer:
        try:
            size = min(BUFFER, gpu.free_memory() // 4) // MIB * MIB
            if not size:
                raise CudaError("memory", "too little is free for copies to peers")
            return _Peer(gpu, gpu.allocate(size), gpu.allocate(size), size)
        except CudaError:
            gpu.close()
            raise

    def close(self) -> None:
        """Release all contexts."""
        for peer in self._peers.values():
            peer.gpu.close()
        self._peers.clear()

    def pair(self, source: int, target: int) -> dict[str, Any]:
        """Return the rate from one GPU to another; `direct` is False where the copy goes through the host."""
        one, other = self._peers[source], self._peers[target]
        direct = self._connect(one, other)
        return {"value": self._rate([(one, other)])[0], "direct": direct}

    def _connect(self, source: _Peer, target: _Peer) -> bool:
        if not self._cuda.can_access(source.gpu.device, target.gpu.device):
            return False
        source.gpu.use()
        self._cuda.call("cuCtxEnablePeerAccess", target.gpu.context, 0, harmless=PEER_ACCESS_ALREADY_ENABLED)
        return True

    def ring(self, gpus: Sequence[int]) -> dict[str, Any]:
        """Return the rate of each of these GPUs to the next one, while all of them copy."""
        ring = list(_ring(gpus))
        rates = self._rate([(self._peers[source], self._peers[target]) for source, target in ring])
        return {
            "pairs": [
                {"from": source, "to": target, "value": rate}
                for (source, target), rate in zip(ring, rates, strict=True)
            ]
        }

    def _rate(self, copies: Sequence[tuple[_Peer, _Peer]]) -> list[float]:
        """Return the best rate of each copy, while all of them run."""
        times: list[list[float]] = [[] for _ in copies]
        for sample in range(SAMPLES + 1):
            for source, target in copies:
                source.gpu.use()
                source.gpu.start()
                for _ in range(COPIES):
                    self._copy(source, target)
                source.gpu.end()
            for number, (source, _) in enumerate(copies):
                source.gpu.use()
                seconds = source.gpu.seconds()
                if sample:  # the first one warms up
                    times[number].append(seconds)
        sizes = [min(source.size, target.size) * COPIES for source, target in copies]
        return [size / max(min(each), 1e-9) for size, each in zip(sizes, times, strict=True)]

    def _copy(self, source: _Peer, target: _Peer) -> None:
        size = min(source.size, target.size)
        arguments: tuple[int | c_void_p, ...] = (target.target, target.gpu.context, source.source, source.gpu.context)
        self._cuda.call("cuMemcpyPeerAsync", *arguments, size, source.gpu.stream)


def _ring(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    for position, index in enumerate(order):
        yield index, order[(position + 1) % len(order)]
