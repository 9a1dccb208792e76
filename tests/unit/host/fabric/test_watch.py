"""Ports of real kinds of machines: InfiniBand, RoCE, EFA and none; and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.fabric.distance import Distance
from gpu_exporter.host.fabric.reader import FabricReader
from gpu_exporter.host.fabric.watch import ERRORS_SECONDS, SCAN_SECONDS, FabricWatch, gpudirect
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuSamples, Row
from tests.support.fakes.fabric import MLX5_IB, FakeFabric, efa_node, infiniband_node, roce_node


class Watched:
    """A machine whose ports are read when the test says so."""

    def __init__(self, fabric: FakeFabric, *, details: bool = True) -> None:
        self.fabric, self.now = fabric, 1000.0
        self.watch = FabricWatch(fabric.files, details=details)
        self.seen = [GpuSamples(gpu, None, (), {}) for gpu in fabric.gpus]
        self.watch.rows(self.seen)
        self.poll()

    def poll(self, later: float = 0.0) -> list[Row]:
        self.now += later
        self.watch.poll(self.now)
        return list(self.watch.rows(self.seen))

    def of_port(self, device: str, metric: Metric) -> float | None:
        rows = [row for row in self.watch.rows(self.seen) if row.metric is metric and row.gpu is None]
        return next((row.value for row in rows if ("device", device) in row.labels), None)

    def of_gpu(self, index: int) -> Mapping[Metric, float]:
        gpu = self.fabric.gpus[index]
        return {row.metric: row.value for row in self.watch.rows(self.seen) if row.gpu is gpu and not row.labels}

    def faulty(self, index: int) -> list[tuple[str, str, str]]:
        gpu = self.fabric.gpus[index]
        rows = [dict(row.labels) for row in self.watch.rows(self.seen) if row.gpu is gpu and row.metric is m.NIC_FAULT]
        return [(row["device"], row["port"], row["fault"]) for row in rows]

    def nearest(self, index: int) -> list[tuple[str, str]]:
        gpu = self.fabric.gpus[index]
        infos = [dict(row.labels) for row in self.watch.rows(self.seen) if row.gpu is gpu and row.metric is m.NIC_INFO]
        return [(info["device"], info["distance"]) for info in infos]


def errors(kind: str) -> Metric:
    return next(row for row in m.NIC_PORT_ERRORS if row.labels == (("kind", kind),))


def test_infiniband(tmp_path: Path) -> None:
    """Words are bytes, kinds of errors are sums, and each GPU has the port below its own switch."""
    node = Watched(infiniband_node(tmp_path))
    assert (node.of_port("mlx5_3", m.NIC_PORT_TX), node.of_port("mlx5_3", m.NIC_PORT_RX)) == (4000, 8000)
    assert node.of_port("mlx5_3", m.NIC_PORT_RATE) == 50e9
    infos = [dict(row.labels) for row in node.watch.rows(node.seen) if row.metric is m.NIC_PORT_INFO]
    assert [(info["device"], info["link_layer"], info["numa_node"]) for info in infos[::7]] == [
        ("mlx5_0", "InfiniBand", "0"),
        ("mlx5_7", "InfiniBand", "1"),
    ]
    assert len({info["pci_bus_id"] for info in infos}) == 8
    assert node.of_port("mlx5_3", m.NIC_PORT_DOWNED) == 1
    assert [node.of_port("mlx5_3", row) for row in m.NIC_PORT_ERRORS] == [6, 8, None, 4]
    assert [node.nearest(index) for index in range(8)] == [[(f"mlx5_{index}", "PIX")] for index in range(8)]
    assert {node.of_gpu(index)[m.NIC_UP] for index in range(8)} == {1.0}


def test_roce(tmp_path: Path) -> None:
    """Congestion is counted, and a GPU on the other NUMA node is far away."""
    node = Watched(roce_node(tmp_path))
    assert (node.of_port("mlx5_1", errors("congestion")), node.of_port("mlx5_1", errors("retransmit"))) == (20, 15)
    assert node.nearest(0) == [("mlx5_0", "PHB"), ("mlx5_1", "PHB")]
    assert node.of_gpu(1)[m.NIC_DISTANCE] == Distance.SYS


def test_efa(tmp_path: Path) -> None:
    """The driver's own counters of bytes, packets and drops; four ports are a GPU's own."""
    node = Watched(efa_node(tmp_path))
    assert (node.of_port("rdmap00s0", m.NIC_PORT_TX), node.of_port("rdmap00s0", m.NIC_PORT_RX)) == (7890, 3456)
    assert (node.of_port("rdmap00s0", errors("drop")), node.of_port("rdmap00s0", errors("retransmit"))) == (7, 10)
    assert node.of_port("rdmap00s0", m.NIC_PORT_DOWNED) is None
    assert [device for device, _ in node.nearest(1)] == [f"rdmap1{card}s0" for card in range(4)]
    named = {dict(row.labels)["counter"] for row in node.watch.rows(node.seen) if row.metric is m.NIC_PORT_COUNTER}
    assert {"rdma_read_bytes", "retrans_timeout_events"} <= named
    assert "lifespan" not in named


def test_few_series_by_default(tmp_path: Path) -> None:
    """Five for each port, and nine for each GPU with a port of its own: errors by port need `--metrics full`."""
    rows = Watched(infiniband_node(tmp_path), details=False).poll(ERRORS_SECONDS)
    of_gpus = [row for row in rows if row.gpu]
    assert len(of_gpus) == 8 * 9
    assert len([row for row in rows if ("port", "1") in row.labels and row.gpu is None]) == 8 * 5


def test_no_network_cards(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither rows nor warnings."""
    fabric = FakeFabric(tmp_path)
    fabric.gpu("pci0000:00/0000:00:01.0/0000:01:00.0")
    assert Watched(fabric).poll(SCAN_SECONDS) == []
    assert not caplog.records


def test_totals_of_a_gpu_never_fall(tmp_path: Path) -> None:
    """A counter is reset, a card disappears and comes back: what was counted stays, and nothing is counted twice."""
    fabric = infiniband_node(tmp_path)
    node = Watched(fabric)
    fabric.count("mlx5_0", "port_xmit_data", 1250)
    node.poll(5)
    assert node.of_gpu(0)[m.NIC_TX] == 1000
    fabric.count("mlx5_0", "port_xmit_data", 100)
    node.poll(5)
    assert node.of_gpu(0)[m.NIC_TX] == 1400
    assert node.of_port("mlx5_0", m.NIC_PORT_TX) == 4000 + 1400

    link = fabric.sys / "class/infiniband/mlx5_0"
    target = link.readlink()
    link.unlink()
    node.poll(5)  # it is noticed
    node.poll(5)
    assert node.of_port("mlx5_0", m.NIC_PORT_TX) is None
    link.symlink_to(target)
    fabric.count("mlx5_0", "port_xmit_data", 10_000_000)
    node.poll(SCAN_SECONDS)
    assert node.of_gpu(0)[m.NIC_TX] == 1400


def test_counters_of_errors_are_read_less_often(tmp_path: Path) -> None:
    """Because each costs a command of the card."""
    fabric = infiniband_node(tmp_path)
    node = Watched(fabric)
    fabric.count("mlx5_0", "symbol_error", 103)
    fabric.count("mlx5_0", "out_of_sequence", 10, "hw_counters")
    node.poll(5)
    assert node.of_gpu(0).get(m.NIC_ERRORS, 0.0) == 0
    node.poll(ERRORS_SECONDS)
    assert (node.of_gpu(0)[m.NIC_ERRORS], node.of_gpu(0)[m.NIC_RETRANSMITS]) == (100, 5)


def down(fabric: FakeFabric, *names: str) -> None:
    for name in names:
        fabric.state(fabric.port(name), up=False)


def test_a_port_that_was_active_is_down(tmp_path: Path) -> None:
    fabric = infiniband_node(tmp_path)
    node = Watched(fabric)
    down(fabric, "mlx5_2")
    node.poll(5)
    assert [node.of_gpu(index)[m.NIC_UP] for index in range(4)] == [1, 1, 0, 1]
    assert m.NIC_RATE_SHARE not in node.of_gpu(2)


def test_a_card_that_falls_off_the_bus(tmp_path: Path) -> None:
    """Its port is down, also if it was the only one; no other card is taken for the nearest one, until it is back."""
    fabric = infiniband_node(tmp_path, gpus=1)
    node = Watched(fabric)
    links = [fabric.sys / "class/infiniband/mlx5_0", fabric.sys / "bus/pci/devices/0000:19:00.0"]
    targets = [link.readlink() for link in links]
    for link in links:
        link.unlink()
    node.poll(5)  # it is noticed
    for _ in range(2):
        node.poll(SCAN_SECONDS)
        assert (node.of_gpu(0)[m.NIC_UP], node.of_port("mlx5_0", m.NIC_PORT_UP)) == (0, 0)
        assert node.nearest(0) == [("mlx5_0", "PIX")]
    for link, target in zip(links, targets, strict=True):
        link.symlink_to(target)
    node.poll(SCAN_SECONDS)
    assert (node.of_gpu(0)[m.NIC_UP], node.of_port("mlx5_0", m.NIC_PORT_UP)) == (1, 1)


def test_a_port_is_down_since_before_the_start(tmp_path: Path) -> None:
    """Then the other GPUs show that it should be active."""
    fabric = infiniband_node(tmp_path)
    down(fabric, "mlx5_2")
    node = Watched(fabric)
    assert [node.of_gpu(index)[m.NIC_UP] for index in range(4)] == [1, 1, 0, 1]
    assert [node.faulty(index) for index in range(4)] == [[], [], [("mlx5_2", "1", "down")], []]


def test_unused_ports_are_no_fault(tmp_path: Path) -> None:
    """The second port of a card without a cable; and a node where no port is used."""
    fabric = roce_node(tmp_path)
    down(fabric, "mlx5_1")
    node = Watched(fabric)
    assert (node.of_gpu(0)[m.NIC_UP], node.faulty(0)) == (1, [])
    down(fabric, "mlx5_0")
    node = Watched(fabric)
    assert (m.NIC_UP in node.of_gpu(0), node.faulty(0)) == (False, [])


def test_which_port_is_faulty(tmp_path: Path) -> None:
    """Of a GPU with two ports, the one that was active, and the slowest, but not the one that works."""
    node = Watched(roce_node(tmp_path))
    assert node.faulty(0) == []
    down(node.fabric, "mlx5_0")
    node.fabric.put(f"{node.fabric.port('mlx5_1')}/rate", "25 Gb/sec (1X EDR)\n")
    node.poll(5)
    assert node.faulty(0) == [("mlx5_0", "1", "down"), ("mlx5_1", "1", "slow")]


def test_a_degraded_link(tmp_path: Path) -> None:
    """Compared with its past, or with the other ports of the same kind of card."""
    fabric = infiniband_node(tmp_path)
    fabric.put(f"{fabric.port('mlx5_1')}/rate", "200 Gb/sec (4X HDR)\n")
    node = Watched(fabric)
    assert [node.of_gpu(index)[m.NIC_RATE_SHARE] for index in range(3)] == [1, 0.5, 1]

    fabric = roce_node(tmp_path / "alone")
    node = Watched(fabric)
    for name in ("mlx5_0", "mlx5_1"):
        fabric.put(f"{fabric.port(name)}/rate", "25 Gb/sec (1X EDR)\n")
    node.poll(5)
    assert node.of_gpu(0)[m.NIC_RATE_SHARE] == 0.25


def test_too_many_equally_near_ports_are_of_no_gpu(tmp_path: Path) -> None:
    """A virtual machine that shows no topology: no traffic is attributed, but the ports are read."""
    fabric = FakeFabric(tmp_path)
    fabric.put("devices/system/node/has_cpu", "0\n")
    fabric.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", -1)
    for index, card in enumerate(range(0x20, 0x28)):
        fabric.nic(f"mlx5_{index}", f"pci00{card}:00/00{card}:00:02.0", MLX5_IB, -1)
    node = Watched(fabric)
    assert node.of_gpu(0) == {}
    assert node.of_port("mlx5_7", m.NIC_PORT_UP) == 1


OPEN, CLOSED = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module",
)


@pytest.mark.parametrize(
    ("modules", "version", "kernel", "methods"),
    [
        (["nvidia_peermem"], OPEN, "6.8.0", {"nvidia_peermem": True, "dma_buf": True}),
        ([], OPEN, "5.4.0-42", {"nvidia_peermem": False, "dma_buf": False}),
        ([], CLOSED, "6.8.0", {"nvidia_peermem": False, "dma_buf": False}),
        ([], None, "6.8.0", {"nvidia_peermem": False}),
    ],
    ids=["both", "old-kernel", "closed-driver", "no-driver"],
)
def test_gpudirect(tmp_path: Path, modules: list[str], version: str | None, kernel: str, methods: object) -> None:
    """What is not known is not said."""
    fabric = FakeFabric(tmp_path)
    for module in modules:
        fabric.put(f"module/{module}/initstate", "live\n")
    for path, text in (("driver/nvidia/version", version), ("sys/kernel/osrelease", kernel)):
        if text is not None:
            file = tmp_path / "proc" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    assert gpudirect(fabric.files, FabricReader(fabric.files)) == methods
