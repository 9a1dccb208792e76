"""Copies between GPUs: in which context, from where to where, and which time counts."""

from __future__ import annotations

from itertools import permutations

import pytest

from gpu_exporter.active_checks.cuda import Cuda, CudaError
from gpu_exporter.active_checks.links import BUFFER, COPIES, SAMPLES, Links
from tests.support.fakes.libcuda import ANOTHER, Libcuda

MIB = 1 << 20


def links_of(cuda: Libcuda, gpus: int = 3) -> Links:
    """Return links of GPUs whose indices differ from the numbers of their devices."""
    cuda.gpus = gpus
    return Links(Cuda(), {10 + device: device for device in range(gpus)})


def test_each_direction_has_its_rate(cuda: Libcuda) -> None:
    rates = {f"{one} to {other}": (one + 10 * other + 1) * 1e9 for one, other in permutations(range(3), 2)}
    cuda.copy_seconds = lambda name, size: size / rates[name]
    links = links_of(cuda)
    for one, other in permutations(range(3), 2):
        found = links.pair(10 + one, 10 + other)
        assert found == {"value": pytest.approx(rates[f"{one} to {other}"], rel=1e-5), "direct": True}
    enabled = [(context.value, flags) for context, flags in cuda.named("cuCtxEnablePeerAccess")]
    assert enabled == [(100 + other, 0) for _, other in permutations(range(3), 2)]  # also if it was enabled before


def test_a_copy_through_the_host(cuda: Libcuda) -> None:
    cuda.peers = False
    links = links_of(cuda)
    assert links.pair(10, 11)["direct"] is False
    assert not cuda.named("cuCtxEnablePeerAccess")


def test_peer_access_that_fails(cuda: Libcuda) -> None:
    links = links_of(cuda)
    cuda.fails["cuCtxEnablePeerAccess"] = ANOTHER
    with pytest.raises(CudaError, match="cuCtxEnablePeerAccess: error 5"):
        links.pair(10, 11)


def test_the_best_time_counts_after_the_first(cuda: Libcuda) -> None:
    """The first sample includes what is done only once; the others may be disturbed."""
    links, copied = links_of(cuda), list[int]()

    def seconds(name: str, size: int) -> float:
        copied.append(size)
        sample = (len(copied) - 1) // COPIES
        return {0: 1e-6, 3: 1e-3}.get(sample, 5e-3)

    cuda.copy_seconds = seconds
    assert links.pair(10, 11)["value"] == pytest.approx(copied[0] / 1e-3, rel=1e-4)
    assert len(copied) == (SAMPLES + 1) * COPIES


def test_a_ring(cuda: Libcuda) -> None:
    """Each GPU copies to the next one, the last one to the first."""
    links = links_of(cuda)
    cuda.copy_seconds = lambda name, size: size / 8e9
    pairs = links.ring([12, 10, 11])["pairs"]
    assert [(pair["from"], pair["to"]) for pair in pairs] == [(12, 10), (10, 11), (11, 12)]
    # The stand-in has one clock for all GPUs: what the others copy meanwhile counts, too, as on a shared link.
    assert all(pair["value"] <= 8e9 * (1 + 1e-6) for pair in pairs)
    between = {
        (source.value - 100, target.value - 100) for _, target, _, source, _, _ in cuda.named("cuMemcpyPeerAsync")
    }
    assert between == {(2, 0), (0, 1), (1, 2)}


def test_times_without_duration(cuda: Libcuda) -> None:
    cuda.copy_seconds = lambda name, size: 0.0
    assert links_of(cuda).pair(10, 11)["value"] == COPIES * BUFFER / 1e-9


@pytest.mark.parametrize(("free", "sizes"), [(80 << 30, [256, 256]), (1 << 30, [256, 128]), (10 << 20, [2, 1])])
def test_buffers_fit(cuda: Libcuda, free: int, sizes: list[int]) -> None:
    """Two for each GPU, and at least half of its memory is left. The smaller of two GPUs decides how much is copied."""
    cuda.free = cuda.largest = free
    links = links_of(cuda, 2)
    assert [size // MIB for size in cuda.sizes.values()] == [size for size in sizes for _ in range(2)]
    copied = list[int]()

    def seconds(name: str, size: int) -> float:
        copied.append(size)
        return size / 1e9

    cuda.copy_seconds = seconds
    assert links.pair(10, 11)["value"] == pytest.approx(1e9, rel=1e-5)
    assert set(copied) == {sizes[1] * MIB}
    links.close()
    links.close()
    assert cuda.contexts == {0: 0, 1: 0}


@pytest.mark.parametrize("free", [0, 4 * MIB - 1, 7 * MIB])
def test_too_little_memory(cuda: Libcuda, free: int) -> None:
    """No context is left, neither of the GPU nor of those before."""
    cuda.free = free
    with pytest.raises(CudaError, match="memory: too little is free for copies to peers"):
        links_of(cuda)
    assert set(cuda.contexts.values()) == {0}
