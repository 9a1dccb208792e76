"""Measures collectives between the ranks of a job, with the job's own PyTorch. Every rank runs it, under torchrun."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from gpu_exporter.catalogue.capabilities import Quantity, reference
from gpu_exporter.host.fabric.reader import FabricReader
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.probes.collective_judge import Collective, Fabric, Measured, Rank, bus_bandwidth, rounds

MIB = 1 << 20
# Bytes per rank. The first is near the latency of the network, the last near its bandwidth.
SIZES = (MIB, 16 * MIB, 256 * MIB)
PAIR_SIZE, MOST_ROUNDS = 64 * MIB, 16
WARM_UP, SAMPLES, TIMES = 2, 5, 5
MOST_ERROR = 300


def measure(seconds: float, sizes: tuple[int, ...] = SIZES) -> tuple[Measured, int]:
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


def _measured(torch: Any, group: Any, device: Any, sizes: tuple[int, ...]) -> Measured:
    number, count = group.get_rank(), group.get_world_size()
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    about = Rank(number, os.uname().nodename, int(os.environ.get("LOCAL_RANK", "0")), model)
    known = reference(model, Quantity.NVLINK)
    reader = FabricReader(HostFiles(Path("/proc"), Path("/sys")))
    mine = (about, Fabric(known.value if known else 0.0, network_rate(reader)))
    everyone: list[tuple[Rank, Fabric]] = [mine] * count
    group.all_gather_object(everyone, mine)
    # The slowest link decides.
    fabric = Fabric(min(each.nvlink for _, each in everyone), min(each.network for _, each in everyone))
    collectives = list(_collectives(torch, group, device, sizes)) if count > 1 else []
    return Measured([rank for rank, _ in everyone], collectives, _pairs(torch, group, device), fabric)


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
