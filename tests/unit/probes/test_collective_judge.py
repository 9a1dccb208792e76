"""Which rank, rail or node is slow, from the rates of pairs; and how near collectives are to the links."""

from __future__ import annotations

from itertools import combinations

import pytest

from gpu_exporter.probes.collective_judge import (
    Collective,
    Fabric,
    Measured,
    Rank,
    bus_bandwidth,
    findings,
    limit,
    rounds,
)

TWO_NODES = [Rank(number, f"n{number // 4}", number % 4, "NVIDIA H100 80GB HBM3") for number in range(8)]
FABRIC = Fabric(nvlink=390e9, network=200e9)


def measured(*slow: int, low: float = 180e9) -> Measured:
    """Return the result of two nodes with four ranks each, where pairs with these ranks are slow."""
    pairs = {}
    for one, other in combinations(range(8), 2):
        usual = 390e9 if one // 4 == other // 4 else 48e9
        pairs[one, other] = usual / 2 if {one, other} & set(slow) else usual
    return Measured(TWO_NODES, [Collective("all_reduce", 256 << 20, low)], pairs, FABRIC)


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ((), []),
        ((5,), ["rank 5 (node n1, GPU 1): "]),
        ((1, 5), ["rail 1 is slow: ranks 1, 5 on 2 nodes", "rank 1 (", "rank 5 ("]),
    ],
)
def test_slow_ranks(slow: tuple[int, ...], words: list[str]) -> None:
    found = list(findings(measured(*slow)))
    assert len(found) == len(words)
    for finding, begin in zip(found, words, strict=True):
        assert finding.words.startswith(begin)


def test_a_slow_node() -> None:
    """The adapters of one of three nodes are slow: its ranks are fast with each other."""
    ranks = [Rank(number, f"n{number // 2}", number % 2, "NVIDIA H100 80GB HBM3") for number in range(6)]
    pairs = {}
    for one, other in combinations(range(6), 2):
        across = 24e9 if {one, other} & {4, 5} else 48e9
        pairs[one, other] = 390e9 if one // 2 == other // 2 else across
    found = [finding.words for finding in findings(Measured(ranks, [], pairs, FABRIC))]
    assert found[0] == "node n2 is slow: ranks 4, 5"
    assert len(found) == 3


def test_a_slow_fabric() -> None:
    """No rank is slower than the others, but all are far from what the adapters allow."""
    (found,) = findings(measured(low=60e9))
    assert found.words == "all_reduce of 256 MiB: 60.0 GB/s, 30% of the 200 GB/s that its links allow"
    assert found.ranks == ()


def test_limits() -> None:
    """On one node NVLink is the limit; between nodes the adapters, of which each rank has a part in an all-to-all."""
    assert limit("all_reduce", TWO_NODES[:4], FABRIC) == 390e9
    assert limit("all_reduce", TWO_NODES, FABRIC) == 200e9
    assert limit("all_to_all", TWO_NODES, FABRIC) == pytest.approx(200e9 / 4 / (4 / 7))
    assert limit("all_reduce", TWO_NODES, Fabric()) == 0


def test_bus_bandwidth() -> None:
    """As in nccl-tests: with two ranks, an all-reduce moves the message once, an all-to-all half of it."""
    assert bus_bandwidth("all_reduce", 100, 2, 1.0) == 100
    assert bus_bandwidth("all_to_all", 100, 2, 1.0) == 50


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_every_rank_meets_every_other_one(ranks: int) -> None:
    met = [pair for pairs in rounds(ranks, 99) for pair in pairs]
    assert sorted(met) == sorted(combinations(range(ranks), 2))
    for pairs in rounds(ranks, 99):
        assert len({number for pair in pairs for number in pair}) == 2 * len(pairs)


def test_few_rounds_of_many_ranks() -> None:
    assert len(list(rounds(64, 5))) == 5
