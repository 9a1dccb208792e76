"""Measures collectives between the ranks of a job, with the job's own PyTorch. Every rank runs it, under torchrun.

Pure functions say what the bandwidths mean: how near the links they are, and which rank is slow.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from gpu_exporter.catalogue.capabilities import Quantity, reference
from gpu_exporter.host.fabric.reader import FabricReader
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.reports.numbers import binary_size, percent, scaled

# A rank is slow if its median over its partners is below this share of the median of all ranks.
SLOW_SHARE = 0.8
# Large messages below this share of what the links can do are worth a look.
LOW_SHARE = 0.6
LEAST_RANKS = 3


@dataclass(frozen=True, slots=True)
class CollectiveRank:
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
class CollectiveFinding:
    """Something that is slower than it should be. `ranks` are those that it is about; all if it is empty."""

    words: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """The result of all ranks. `pairs` has the rate of each pair that was tested (bytes/s in each direction)."""

    ranks: Sequence[CollectiveRank]
    collectives: Sequence[Collective]
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    fabric: Fabric = Fabric()


def bus_bandwidth(name: str, size: int, ranks: int, seconds: float) -> float:
    """Return the bus bandwidth (bytes/s) of a collective over a message of so many bytes per rank.

    The factors are those of nccl-tests, `doc/PERFORMANCE.md`: 2 (n - 1) / n for all-reduce, (n - 1) / n for all-to-all.
    """
    factor = (ranks - 1) / ranks
    return (2 if name == "all_reduce" else 1) * factor * size / seconds


def limit(name: str, ranks: Sequence[CollectiveRank], fabric: Fabric) -> float:
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


def findings(measured: MeasuredCollective) -> Iterator[CollectiveFinding]:
    """Yield what is slower than it should be: ranks, rails, and collectives as a whole."""
    slow = dict(slow_ranks(measured))
    by_number = {rank.number: rank for rank in measured.ranks}
    places = {by_number[number].local for number in slow}
    nodes = {by_number[number].node for number in slow}
    if len(slow) > 1 and len(places) == 1 and len(nodes) > 1:
        yield CollectiveFinding(f"rail {places.pop()} is slow: ranks {_list(slow)} on {len(nodes)} nodes", tuple(slow))
    elif len(slow) > 1 and len(nodes) == 1 and len({rank.node for rank in measured.ranks}) > 1:
        yield CollectiveFinding(f"node {nodes.pop()} is slow: ranks {_list(slow)}", tuple(slow))
    for number, words in slow.items():
        yield CollectiveFinding(
            f"rank {number} (node {by_number[number].node}, GPU {by_number[number].local}): {words}", (number,)
        )
    if not slow:
        yield from _low(measured)


def _list(numbers: Mapping[int, str]) -> str:
    return ", ".join(map(str, numbers))


def slow_ranks(measured: MeasuredCollective) -> Iterator[tuple[int, str]]:
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
                yield number, f"{scaled(rate, 'B/s')} with ranks {where}, others {scaled(usual, 'B/s')}"


def _low(measured: MeasuredCollective) -> Iterator[CollectiveFinding]:
    largest = max((each.size for each in measured.collectives), default=0)
    for each in measured.collectives:
        most = limit(each.name, measured.ranks, measured.fabric)
        if each.size == largest and most and each.bandwidth < LOW_SHARE * most:
            share = f"{percent(each.bandwidth / most)} of the {scaled(most, 'B/s')} that its links allow"
            rate = scaled(each.bandwidth, "B/s")
            yield CollectiveFinding(f"{each.name} of {binary_size(each.size)}: {rate}, {share}")


def rounds(ranks: int, most: int) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of disjoint pairs, so that every rank meets another partner in each (the circle method)."""
    circle: list[int] = list(range(ranks + ranks % 2))
    for _ in range(min(most, len(circle) - 1)):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if max(pair) < ranks]
        circle = [circle[0], circle[-1], *circle[1:-1]]


MIB = 1 << 20
# Bytes per rank. The first is near the latency of the network, the last near its bandwidth.
SIZES = (MIB, 16 * MIB, 256 * MIB)
PAIR_SIZE, MOST_ROUNDS = 64 * MIB, 16
WARM_UP, SAMPLES, TIMES = 2, 5, 5
MOST_ERROR = 300


def measure(seconds: float, sizes: tuple[int, ...] = SIZES) -> tuple[MeasuredCollective, int]:
    """Return the result of all ranks, the same on each, and the number of this rank.

    Raises GpuExporterError without PyTorch or torchrun, and if a collective fails, such as on a rank that waits longer
    than `seconds` for another one.
    """
    try:
        import torch
    except ImportError as error:
        raise GpuExporterError(
            "--collectives needs PyTorch", fix="run it in the environment of the job, under torchrun"
        ) from error
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise GpuExporterError(
            "--collectives is run by every rank of a job",
            fix="torchrun --nproc-per-node GPUS --no-python gpu-exporter check --collectives",
        )
    try:
        with _group(torch, seconds) as (group, device):
            return _measured(torch, group, device, sizes), group.get_rank()
    except (RuntimeError, ValueError) as error:  # all of PyTorch's and NCCL's are one of them
        first = printable((str(error).strip() or type(error).__name__).splitlines()[0], MOST_ERROR)
        raise GpuExporterError(
            f"--collectives failed on rank {printable(os.environ['RANK'], 20)}: {first}",
            fix="see the other ranks, and set NCCL_DEBUG=INFO",
        ) from error


@contextmanager
def _group(torch: Any, seconds: float) -> Iterator[tuple[Any, Any]]:
    """Join the ranks, through NCCL if there are GPUs."""
    group, local = torch.distributed, int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    group.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=seconds))
    try:
        yield group, device
    finally:
        group.destroy_process_group()


def _measured(torch: Any, group: Any, device: Any, sizes: tuple[int, ...]) -> MeasuredCollective:
    number, count = group.get_rank(), group.get_world_size()
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    about = CollectiveRank(number, os.uname().nodename, int(os.environ.get("LOCAL_RANK", "0")), model)
    known = reference(model, Quantity.NVLINK)
    reader = FabricReader(HostFiles(Path("/proc"), Path("/sys")))
    mine = (about, Fabric(known.value if known else 0.0, network_rate(reader)))
    everyone: list[tuple[CollectiveRank, Fabric]] = [mine] * count
    group.all_gather_object(everyone, mine)
    # The slowest link decides.
    fabric = Fabric(min(each.nvlink for _, each in everyone), min(each.network for _, each in everyone))
    collectives = list(_collectives(torch, group, device, sizes)) if count > 1 else []
    return MeasuredCollective([rank for rank, _ in everyone], collectives, _pairs(torch, group, device), fabric)


def _collectives(torch: Any, group: Any, device: Any, sizes: tuple[int, ...]) -> Iterator[Collective]:
    count = group.get_world_size()
    for size in sizes:
        elements = size // 4 // count * count
        data, other = (torch.zeros(elements, device=device) for _ in range(2))
        works: dict[str, Callable[[], object]] = {
            "all_reduce": partial(group.all_reduce, data),
            "all_to_all": partial(group.all_to_all_single, other, data),
        }
        for name, work in works.items():
            seconds = _slowest(torch, group, device, _seconds(torch, device, work))
            yield Collective(name, 4 * elements, bus_bandwidth(name, 4 * elements, count, seconds))


def _pairs(torch: Any, group: Any, device: Any) -> dict[tuple[int, int], float]:
    """Return the rate of pairs that exchange data in both directions at once, each rank with one partner at a time."""
    number, count = group.get_rank(), group.get_world_size()
    data, other = (torch.zeros(PAIR_SIZE // 4, device=device) for _ in range(2))
    mine: dict[tuple[int, int], float] = {}
    for pairs in rounds(count, MOST_ROUNDS):
        group.barrier()
        for pair in pairs:
            if number in pair:
                partner = pair[0] + pair[1] - number
                exchange = _exchange(group, data, other, partner)
                mine[pair] = PAIR_SIZE / _seconds(torch, device, exchange)
    everyone: list[dict[tuple[int, int], float]] = [{}] * count
    group.all_gather_object(everyone, mine)
    rates: dict[tuple[int, int], float] = {}
    for each in everyone:
        for pair, rate in each.items():
            rates[pair] = min(rate, rates.get(pair, rate))
    return rates


def _exchange(group: Any, data: Any, other: Any, partner: int) -> Callable[[], object]:
    def exchange() -> None:
        operations = [group.P2POp(group.isend, data, partner), group.P2POp(group.irecv, other, partner)]
        for request in group.batch_isend_irecv(operations):
            request.wait()

    return exchange


def _seconds(torch: Any, device: Any, work: Callable[[], object]) -> float:
    """Return the median seconds of one `work`. GPUs work asynchronously, so several are timed together."""

    def done() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    for _ in range(WARM_UP):
        work()
    results = []
    for _ in range(SAMPLES):
        start = done()
        for _ in range(TIMES):
            work()
        results.append((done() - start) / TIMES)
    return statistics.median(results)


def _slowest(torch: Any, group: Any, device: Any, seconds: float) -> float:
    """Return the longest time of any rank."""
    value = torch.tensor([seconds], device=device, dtype=torch.float64 if device.type == "cpu" else torch.float32)
    group.all_reduce(value, op=group.ReduceOp.MAX)
    return float(value.item())


def network_rate(reader: FabricReader) -> float:
    """Return the rate of all active InfiniBand and RoCE ports of this node together (bytes/s); 0 if there is none."""
    links = [reader.link(nic) for nic in reader.nics()]
    return sum(link.rate for link in links if link.up and link.rate)
