"""What the bandwidths of collectives mean: how near the links they are, and which rank is slow. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# A rank is slow if its median over its partners is below this share of the median of all ranks.
SLOW_SHARE = 0.8
# Large messages below this share of what the links can do are worth a look.
LOW_SHARE = 0.6
LEAST_RANKS = 3


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank of the job: its node, its GPU's place on the node, and its GPU's model."""

    number: int
    node: str
    local: int
    model: str


@dataclass(frozen=True, slots=True)
class Collective:
    """The bus bandwidth of a collective for a message of this size (bytes/s), as nccl-tests defines it.

    It is what each rank moves through its links, so it can be compared with their rate, whatever the number of ranks.
    """

    name: str
    size: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Fabric:
    """What connects the ranks: NVLink of a GPU, and all network adapters of a node; bytes/s in one direction, or 0."""

    nvlink: float = 0.0
    network: float = 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is slower than it should be. `ranks` are those that it is about; all if it is empty."""

    words: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of all ranks. `pairs` has the rate of each pair that was tested (bytes/s in each direction)."""

    ranks: Sequence[Rank]
    collectives: Sequence[Collective]
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    fabric: Fabric = Fabric()


def bus_bandwidth(name: str, size: int, ranks: int, seconds: float) -> float:
    """Return the bus bandwidth (bytes/s) of a collective over a message of so many bytes per rank.

    The factors are those of nccl-tests, `doc/PERFORMANCE.md`: 2 (n - 1) / n for all-reduce, (n - 1) / n for all-to-all.
    """
    factor = (ranks - 1) / ranks
    return (2 if name == "all_reduce" else 1) * factor * size / seconds


def limit(name: str, ranks: Sequence[Rank], fabric: Fabric) -> float:
    """Return the highest bus bandwidth that the links allow (bytes/s); 0 if their rate is unknown.

    Between nodes, rings of an all-reduce cross a node's adapters once for all its ranks. In an all-to-all, each rank
    sends the share of the data that is for other nodes through its part of them.
    """
    nodes = {rank.node for rank in ranks}
    if len(nodes) < 2:
        return fabric.nvlink
    if name == "all_reduce":
        return min(filter(None, (fabric.nvlink, fabric.network)), default=0.0)
    per_node = len(ranks) / len(nodes)
    remote = (len(ranks) - per_node) / (len(ranks) - 1)
    return fabric.network / per_node / remote


def findings(measured: Measured) -> Iterator[Finding]:
    """Yield what is slower than it should be: ranks, rails, and collectives as a whole."""
    slow = dict(slow_ranks(measured))
    by_number = {rank.number: rank for rank in measured.ranks}
    places = {by_number[number].local for number in slow}
    nodes = {by_number[number].node for number in slow}
    if len(slow) > 1 and len(places) == 1 and len(nodes) > 1:
        yield Finding(f"rail {places.pop()} is slow: ranks {_list(slow)} on {len(nodes)} nodes", tuple(slow))
    elif len(slow) > 1 and len(nodes) == 1 and len({rank.node for rank in measured.ranks}) > 1:
        yield Finding(f"node {nodes.pop()} is slow: ranks {_list(slow)}", tuple(slow))
    for number, words in slow.items():
        yield Finding(
            f"rank {number} (node {by_number[number].node}, GPU {by_number[number].local}): {words}", (number,)
        )
    if not slow:
        yield from _low(measured)


def _list(numbers: Mapping[int, str]) -> str:
    return ", ".join(map(str, numbers))


def slow_ranks(measured: Measured) -> Iterator[tuple[int, str]]:
    """Yield the ranks that are slow with most of their partners: pairs on one node and between nodes apart."""
    node = {rank.number: rank.node for rank in measured.ranks}
    for inside, where in ((True, "on its node"), (False, "on other nodes")):
        rates: dict[int, list[float]] = {}
        for pair, rate in measured.pairs.items():
            if (node[pair[0]] == node[pair[1]]) is inside:
                for number in pair:
                    rates.setdefault(number, []).append(rate)
        # Of an even number, the higher one: half of the partners may be slow.
        medians = {number: statistics.median_high(each) for number, each in rates.items()}
        if len(medians) < LEAST_RANKS:
            continue
        usual = statistics.median(medians.values())
        for number, rate in sorted(medians.items()):
            if rate < SLOW_SHARE * usual:
                yield number, f"{rate / 1e9:.1f} GB/s with ranks {where}, others {usual / 1e9:.1f} GB/s"


def _low(measured: Measured) -> Iterator[Finding]:
    largest = max((each.size for each in measured.collectives), default=0)
    for each in measured.collectives:
        most = limit(each.name, measured.ranks, measured.fabric)
        if each.size == largest and most and each.bandwidth < LOW_SHARE * most:
            share = f"{each.bandwidth / most:.0%} of the {most / 1e9:.0f} GB/s that its links allow"
            yield Finding(f"{each.name} of {each.size >> 20} MiB: {each.bandwidth / 1e9:.1f} GB/s, {share}")


def rounds(ranks: int, most: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of disjoint pairs, so that every rank meets another partner in each (the circle method)."""
    circle: list[int] = list(range(ranks + ranks % 2))
    for _ in range(min(most, len(circle) - 1)):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if max(pair) < ranks]
        circle = [circle[0], circle[-1], *circle[1:-1]]
