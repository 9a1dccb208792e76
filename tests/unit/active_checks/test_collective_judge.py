"""Which rank, rail or node is slow, from the rates of pairs; and how near collectives are to the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from gpu_exporter.active_checks.collectives import (
    LOW_SHARE,
    SLOW_SHARE,
    Collective,
    CollectiveRank,
    Fabric,
    MeasuredCollective,
    bus_bandwidth,
    findings,
    limit,
    rounds,
    slow_ranks,
)

TWO_NODES = [CollectiveRank(number, f"n{number // 4}", number % 4, "NVIDIA H100 80GB HBM3") for number in range(8)]
FABRIC = Fabric(nvlink=390e9, network=200e9)


def measured(*slow: int, low: float = 180e9) -> MeasuredCollective:
    """Return the result of two nodes with four ranks each, where pairs with these ranks are slow."""
    pairs = {}
    for one, other in combinations(range(8), 2):
        usual = 390e9 if one // 4 == other // 4 else 48e9
        pairs[one, other] = usual / 2 if {one, other} & set(slow) else usual
    return MeasuredCollective(TWO_NODES, [Collective("all_reduce", 256 << 20, low)], pairs, FABRIC)


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
    ranks = [CollectiveRank(number, f"n{number // 2}", number % 2, "NVIDIA H100 80GB HBM3") for number in range(6)]
    pairs = {}
    for one, other in combinations(range(6), 2):
        across = 24e9 if {one, other} & {4, 5} else 48e9
        pairs[one, other] = 390e9 if one // 2 == other // 2 else across
    found = [finding.words for finding in findings(MeasuredCollective(ranks, [], pairs, FABRIC))]
    assert found[0] == "node n2 is slow: ranks 4, 5"
    assert len(found) == 3


def test_a_slow_fabric() -> None:
    """No rank is slower than the others, but all are far from what the adapters allow."""
    (found,) = findings(measured(low=60e9))
    assert found.words == "all_reduce of 256 MiB: 60 GB/s, 30 % of the 200 GB/s that its links allow"
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


def of_ranks(
    nodes: list[str], rates: dict[tuple[int, int], float], collectives: Sequence[Collective] = ()
) -> MeasuredCollective:
    """Return the result of ranks on these nodes, with so many GB/s per pair."""
    ranks = [CollectiveRank(number, node, nodes[:number].count(node), "H100") for number, node in enumerate(nodes)]
    return MeasuredCollective(ranks, collectives, {pair: rate * 1e9 for pair, rate in rates.items()}, FABRIC)


def test_how_slow_is_slow() -> None:
    """Compared with the median of all; of an even number of partners, the higher rate of the middle counts."""
    one_node = ["n"] * 3
    least = SLOW_SHARE * 100
    for rate, found in ((least + 0.1, []), (least - 0.1, [2])):
        # Rank 2 is slow with both others; each of these has a fast partner.
        measured = of_ranks(one_node, {(0, 1): 100, (0, 2): rate, (1, 2): rate})
        assert [number for number, _ in slow_ranks(measured)] == found
    (slow,) = slow_ranks(of_ranks(one_node, {(0, 1): 100, (0, 2): 50.04, (1, 2): 50.04}))
    assert slow == (2, "50 GB/s with ranks on its node, others 100 GB/s")
    half = of_ranks(["n"] * 4, {(0, 1): 100, (0, 2): 100, (1, 2): 100, (0, 3): 10, (1, 3): 100, (2, 3): 100})
    assert not list(slow_ranks(half))
    assert 0.5 < SLOW_SHARE < 1


def test_two_ranks_have_no_median() -> None:
    assert not list(slow_ranks(of_ranks(["a", "a", "b"], {(0, 1): 100})))
    slow = dict(slow_ranks(of_ranks(["a", "b", "c"], {(0, 1): 50, (0, 2): 10, (1, 2): 10})))
    assert slow == {2: "10 GB/s with ranks on other nodes, others 50 GB/s"}


def test_where_several_ranks_are_slow() -> None:
    """A rail is one place on several nodes; a node is named only where there is another one."""
    fast = {pair: 100.0 for pair in combinations(range(6), 2)}
    alone = of_ranks(["n"] * 6, {pair: 10.0 if 4 in pair or 5 in pair else rate for pair, rate in fast.items()})
    assert [finding.words.partition(" (")[0] for finding in findings(alone)] == ["rank 4", "rank 5"]
    assert [finding.ranks for finding in findings(alone)] == [(4,), (5,)]
    rails = of_ranks(["a", "a", "b", "b", "c", "c"], {pair: 10.0 if {1, 3} & {*pair} else 100.0 for pair in fast})
    first, *ranks = findings(rails)
    assert (first.words, first.ranks) == ("rail 1 is slow: ranks 1, 3 on 2 nodes", (1, 3))
    assert [finding.ranks for finding in ranks] == [(1,), (3,)]
    assert ranks[0].words.startswith("rank 1 (node a, GPU 1): 10 GB/s with ranks ")


def test_only_large_messages_reach_the_links() -> None:
    """Small ones depend on the latency. Without a limit, nothing is compared."""
    many = ["a", "a", "b", "b"]
    rates = dict.fromkeys(combinations(range(4), 2), 100.0)
    sizes = [Collective("all_reduce", 1 << 20, 1e9), Collective("all_reduce", 256 << 20, 1e9)]
    (found,) = findings(of_ranks(many, rates, sizes))
    assert found.words.startswith("all_reduce of 256 MiB: 1 GB/s, ")
    least = LOW_SHARE * FABRIC.network
    for bandwidth, low in ((least * 1.001, False), (least * 0.999, True)):
        measured = of_ranks(many, rates, [Collective("all_reduce", 256 << 20, bandwidth)])
        assert bool(list(findings(measured))) is low
    assert not list(findings(replace(measured, fabric=Fabric())))
    assert not list(findings(of_ranks(many, rates)))


def test_limits_of_one_kind_of_link() -> None:
    """What is unknown limits nothing. In an all-to-all between nodes, only what leaves the node passes adapters."""
    assert limit("all_reduce", TWO_NODES, Fabric(nvlink=5.0)) == 5.0
    assert limit("all_reduce", TWO_NODES, Fabric(network=7.0)) == 7.0
    assert limit("all_to_all", TWO_NODES[3:5], Fabric(nvlink=5.0, network=8.0)) == 8.0
    assert limit("all_to_all", TWO_NODES[:4], Fabric(nvlink=5.0, network=8.0)) == 5.0


def test_bandwidth_of_many_ranks() -> None:
    assert bus_bandwidth("all_reduce", 100, 4, 0.5) == 2 * 0.75 * 200
    assert bus_bandwidth("all_to_all", 100, 4, 0.5) == 0.75 * 200
