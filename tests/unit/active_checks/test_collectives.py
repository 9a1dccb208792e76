"""What a rank measures, with a PyTorch whose other ranks are made up and whose time is virtual."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.active_checks import collectives as c
from gpu_exporter.active_checks.collectives import CollectiveRank, Fabric
from gpu_exporter.catalogue.capabilities import Quantity, reference
from gpu_exporter.catalogue.gpu_models import H100
from gpu_exporter.host.fabric.reader import FabricReader
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError

OTHER_RATE = 5e9
Values = list[float]


class Torch:
    """A PyTorch of one rank of several. `took` are the seconds of another rank, `seconds` those of each operation."""

    float32, float64 = "float32", "float64"

    def __init__(self, rank: int = 1, count: int = 3, *, gpu: bool = True) -> None:
        self.rank, self.count = rank, count
        self.now, self.took = 0.0, 0.0
        self.seconds: Callable[[str, int], float] = lambda name, size: size / 1e9
        self.events: list[Any] = []
        self.exchanged: list[tuple[str, int, int]] = []
        self.error: Exception | None = None
        self.cuda = SimpleNamespace(
            is_available=lambda: gpu,
            set_device=lambda device: self.events.append(("set_device", device.index)),
            get_device_name=lambda device: H100.name,
            synchronize=lambda device: self.events.append("synchronize"),
        )
        self.distributed = SimpleNamespace(
            init_process_group=self.init,
            destroy_process_group=lambda: self.events.append("destroyed"),
            get_rank=lambda: rank,
            get_world_size=lambda: count,
            barrier=lambda: self.events.append("barrier"),
            all_gather_object=self.all_gather_object,
            all_reduce=self.all_reduce,
            all_to_all_single=lambda target, source: self.passed("all_to_all", source),
            P2POp=lambda operation, data, partner: (operation, data, partner),
            isend="send",
            irecv="receive",
            batch_isend_irecv=self.exchange,
            ReduceOp=SimpleNamespace(MAX="max"),
        )

    def device(self, kind: str, index: int | None = None) -> Any:
        return SimpleNamespace(type=kind, index=index)

    def zeros(self, elements: int, device: Any) -> Values:
        return [0.0, float(elements)]

    def tensor(self, values: Values, device: Any, dtype: str) -> Any:
        self.events.append(dtype)
        return SimpleNamespace(values=values, item=lambda: values[0])

    def init(self, backend: str, timeout: Any) -> None:
        self.events.append((backend, timeout.total_seconds()))
        if self.error:
            raise self.error

    def passed(self, name: str, data: Values) -> None:
        self.events.append(name)
        self.now += self.seconds(name, 4 * int(data[1]))

    def all_reduce(self, data: Any, op: str = "") -> None:
        if op == "max":
            data.values[0] = max(data.values[0], self.took)
        else:
            self.passed("all_reduce", data)

    def all_gather_object(self, everyone: list[Any], mine: Any) -> None:
        for rank in range(self.count):
            everyone[rank] = mine if rank == self.rank else self.other(rank, mine)

    def other(self, rank: int, mine: Any) -> Any:
        """Return what another rank says: a node without NVLink, or rates of its pairs."""
        if isinstance(mine, dict):
            return {pair: OTHER_RATE for pair in ((0, 1), (0, 2), (1, 2)) if rank in pair}
        return CollectiveRank(rank, "other", rank, H100.name), Fabric(1e9 * (rank + 1), 2e9)

    def exchange(self, operations: list[Any]) -> list[Any]:
        for operation, data, partner in operations:
            self.exchanged.append((operation, 4 * int(data[1]), partner))
        self.events.append("exchange")
        waited = SimpleNamespace(wait=lambda: setattr(self, "now", self.now + self.seconds("exchange", 1 << 26) / 2))
        return [waited, waited]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return used(Torch(), monkeypatch)


def used(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> Torch:
    """Let `measure` find this PyTorch."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(c, "time", SimpleNamespace(perf_counter=lambda: torch.now))
    monkeypatch.setattr(c, "network_rate", lambda reader: 3e9)
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    return torch


def test_everything_is_measured(torch: Torch) -> None:
    measured, number = c.measure(30.0, (12 << 20,))
    assert number == 1
    assert torch.events[:2] == [("set_device", 2), ("nccl", 30.0)]
    assert torch.events[-1] == "destroyed"
    assert measured.ranks[1] == CollectiveRank(1, os.uname().nodename, 2, H100.name)
    assert [rank.number for rank in measured.ranks] == [0, 1, 2]
    # The slowest link of any rank decides.
    known = reference(H100.name, Quantity.NVLINK)
    assert known
    assert measured.fabric == Fabric(min(known.value, 1e9), 2e9)
    # nccl-tests: 2 (n - 1) / n of the message passes each link in an all-reduce, half of it in an all-to-all.
    assert [(each.name, each.size) for each in measured.collectives] == [
        ("all_reduce", 12 << 20),
        ("all_to_all", 12 << 20),
    ]
    assert [each.bandwidth for each in measured.collectives] == pytest.approx([1e9 * 4 / 3, 1e9 * 2 / 3])


def test_messages_are_divided_by_the_ranks(torch: Torch) -> None:
    """Only whole elements for each rank, of 4 bytes."""
    measured, _ = c.measure(30.0, (1000, 4096))
    assert [each.size for each in measured.collectives] == [996, 996, 4092, 4092]


def test_the_slowest_rank_decides(torch: Torch) -> None:
    torch.took = 7.0
    measured, _ = c.measure(30.0, (12 << 20,))
    assert measured.collectives[1].bandwidth == pytest.approx(2 / 3 * (12 << 20) / 7.0)


def test_pairs_exchange_in_both_directions(torch: Torch) -> None:
    """This rank with each other one. Of the rates that both ranks of a pair have measured, the lower one counts."""
    measured, _ = c.measure(30.0, ())
    assert {(operation, partner) for operation, _, partner in torch.exchanged} == {
        (operation, partner) for operation in ("send", "receive") for partner in (0, 2)
    }
    assert {size for _, size, _ in torch.exchanged} == {c.PAIR_SIZE}
    assert measured.pairs == {(0, 1): pytest.approx(1e9), (1, 2): pytest.approx(1e9), (0, 2): OTHER_RATE}
    assert torch.events.count("barrier") == 3
    torch.seconds = lambda name, size: size / 90e9
    assert c.measure(30.0, ())[0].pairs == dict.fromkeys([(0, 1), (0, 2), (1, 2)], OTHER_RATE)


def test_one_rank_has_no_partner(monkeypatch: pytest.MonkeyPatch) -> None:
    used(Torch(0, 1), monkeypatch)
    measured, number = c.measure(30.0)
    assert (number, measured.collectives, measured.pairs) == (0, [], {})


def test_times_are_medians_of_samples(torch: Torch) -> None:
    """After a warm-up; each sample is of several operations between two moments at which the GPU has nothing to do."""
    done: list[float] = []

    def work() -> None:
        done.append(torch.now)
        sample = (len(done) - 1 - c.WARM_UP) // c.TIMES
        torch.now += 100.0 if sample < 0 else [9.0, 1.0, 3.0, 5.0, 4.0][sample]

    assert c._seconds(torch, torch.device("cuda"), work) == pytest.approx(4.0)
    assert len(done) == c.WARM_UP + c.SAMPLES * c.TIMES
    assert torch.events.count("synchronize") == 2 * c.SAMPLES


def test_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = used(Torch(gpu=False), monkeypatch)
    measured, _ = c.measure(30.0, (12 << 20,))
    assert torch.events[0] == ("gloo", 30.0)
    assert measured.ranks[1].model == ""
    assert measured.fabric.nvlink == 0.0
    assert "synchronize" not in torch.events
    assert Torch.float64 in torch.events
    assert Torch.float32 not in torch.events


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("\n NCCL error\x1b: timeout\nmore lines"), "NCCL error\ufffd: timeout"),
        (ValueError(""), "ValueError"),
        (RuntimeError("x" * 1000), "x" * (c.MOST_ERROR - 1) + "…"),
    ],
)
def test_a_failure_is_one_line(torch: Torch, error: Exception, words: str) -> None:
    torch.error = error
    with pytest.raises(GpuExporterError) as raised:
        c.measure(30.0)
    assert str(raised.value) == f"--collectives failed on rank 1: {words}: see the other ranks, and set NCCL_DEBUG=INFO"


def test_a_group_is_left_after_a_failure(torch: Torch) -> None:
    def fails(name: str, size: int) -> float:
        raise RuntimeError("peer has ended")

    torch.seconds = fails
    with pytest.raises(GpuExporterError, match="failed on rank 1: peer has ended"):
        c.measure(30.0)
    assert torch.events[-1] == "destroyed"


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE"])
def test_without_torchrun(torch: Torch, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(GpuExporterError, match="is run by every rank of a job: torchrun --nproc-per-node GPUS"):
        c.measure(30.0)


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GpuExporterError, match="--collectives needs PyTorch: run it in the environment of the job"):
        c.measure(30.0)


@pytest.mark.parametrize(
    ("links", "rate"),
    [
        ([], 0),
        ([(True, 50e9), (True, 25e9)], 75e9),
        ([(True, 50e9), (False, 25e9), (True, None)], 50e9),
    ],
)
def test_the_rate_of_the_network(
    monkeypatch: pytest.MonkeyPatch, links: list[tuple[bool, float | None]], rate: float
) -> None:
    """Ports that are down, or whose rate cannot be read, do not count."""
    reader = FabricReader(HostFiles(Path("/nowhere"), Path("/nowhere")))
    ports = [SimpleNamespace(up=up, rate=speed) for up, speed in links]
    monkeypatch.setattr(FabricReader, "nics", lambda self: range(len(ports)))
    monkeypatch.setattr(FabricReader, "link", lambda self, number: ports[number])
    assert c.network_rate(reader) == rate
