"""The sysfs of machines with network cards for RDMA, made of files from tables.

Facts (names, units and texts of files, counters of each driver, paths of devices) are those of mlx5 with InfiniBand and
RoCE, of EFA, and of hfi1; the numbers are made up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.gpu import Gpu


def _counts(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (pair.partition("=") for pair in text.split())}


_IB = _counts(
    "port_xmit_data=1000 port_rcv_data=2000 link_downed=1 symbol_error=3 link_error_recovery=2 port_rcv_errors=1"
    " port_xmit_discards=4 port_xmit_wait=77 local_link_integrity_errors=0 excessive_buffer_overrun_errors=0"
)
_OF_MLX5 = _counts("out_of_sequence=5 packet_seq_err=1 local_ack_timeout_err=2 rnr_nak_retry_err=0 lifespan=10")
IB = {"counters": _IB, "hw_counters": _OF_MLX5}
ROCE = {
    "counters": {**_IB, "symbol_error": 0, "port_xmit_data": 500, "port_rcv_data": 250},
    "hw_counters": {**_OF_MLX5, **_counts("np_cnp_sent=11 rp_cnp_handled=9 roce_adp_retrans=7")},
}
EFA = {
    "hw_counters": _counts(
        "tx_bytes=7890 rx_bytes=3456 rx_drops=7 rdma_read_bytes=1234 rdma_write_bytes=5678 retrans_pkts=10"
        " retrans_bytes=100 retrans_timeout_events=1 lifespan=12"
    )
}


@dataclass(frozen=True)
class Card:
    """A kind of network card: the texts of its files and its counters."""

    driver: str
    layer: str
    rate: str
    counters: Mapping[str, Mapping[str, int]]
    board: str = ""


MLX5_IB = Card("mlx5_core", "InfiniBand", "400 Gb/sec (4X NDR)", IB, "MT_0000000838")
MLX5_ROCE = Card("mlx5_core", "Ethernet", "100 Gb/sec (4X EDR)", ROCE, "MT_0000000359")
EFA_CARD = Card("efa", "Unspecified", "100 Gb/sec (4X EDR)", EFA)


@dataclass
class FakeFabric:
    """The files below `root`: `sys` and `proc`."""

    root: Path
    gpus: list[Gpu] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sys = self.root / "sys"
        self.files = HostFiles(self.root / "proc", self.sys)
        self.put("devices/system/node/has_cpu", "0-1\n")

    def put(self, path: str, content: str) -> Path:
        """Write a file below /sys."""
        file = self.sys / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def device(self, path: str, node: int) -> str:
        """Add a PCIe device, by its path from the host bridge; return its directory below /sys."""
        place = f"devices/{path}"
        self.put(f"{place}/numa_node", f"{node}\n")
        self._link(f"bus/pci/devices/{path.rpartition('/')[2]}", place)
        return place

    def function(self, path: str, vendor: str, kind: str, driver: str, node: int = 0) -> str:
        """Add a PCI function of a vendor and a class, which a kernel driver has ("": none); return its directory."""
        place = self.device(path, node)
        self.put(f"{place}/vendor", f"{vendor}\n")
        self.put(f"{place}/class", f"{kind}\n")
        if driver:
            self._link(f"{place}/driver", f"bus/pci/drivers/{driver}")
        return place

    def gpu(self, path: str, node: int = 0) -> Gpu:
        """Add a GPU."""
        address = path.rpartition("/")[2]
        self._link(f"bus/pci/drivers/nvidia/{address}", self.function(path, "0x10de", "0x030200", "nvidia", node))
        self.gpus.append(Gpu(len(self.gpus), f"GPU-{len(self.gpus)}", f"0000{address.upper()}"))
        return self.gpus[-1]

    def nic(self, name: str, path: str, card: Card, node: int = 0, ports: Sequence[str] = ("1",)) -> None:
        """Add a network card."""
        place = self.device(path, node)
        base = f"{place}/infiniband/{name}"
        self.put(f"{base}/board_id", f"{card.board}\n")
        for port in ports:
            self.state(f"{base}/ports/{port}", up=True, rate=card.rate)
            self.put(f"{base}/ports/{port}/link_layer", f"{card.layer}\n")
            for folder, counters in card.counters.items():
                for counter, value in counters.items():
                    self.put(f"{base}/ports/{port}/{folder}/{counter}", f"{value}\n")
        self._link(f"{base}/device", place)
        self._link(f"{place}/driver", f"bus/pci/drivers/{card.driver}")
        self._link(f"class/infiniband/{name}", base)

    def port(self, name: str, port: str = "1") -> str:
        """Return the directory of a port below /sys."""
        return f"class/infiniband/{name}/ports/{port}"

    def state(self, base: str, *, up: bool, rate: str = "") -> None:
        """Set the state of a port, given its directory below /sys."""
        self.put(f"{base}/state", "4: ACTIVE\n" if up else "1: DOWN\n")
        if rate:
            self.put(f"{base}/rate", f"{rate}\n")

    def count(self, name: str, counter: str, value: int, folder: str = "counters") -> None:
        """Set a counter of port 1."""
        self.put(f"{self.port(name)}/{folder}/{counter}", f"{value}\n")

    def _link(self, path: str, target: str) -> None:
        link = self.sys / path
        link.parent.mkdir(parents=True, exist_ok=True)
        (self.sys / target).mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.sys / target, link.parent))


def infiniband_node(root: Path, gpus: int = 8) -> FakeFabric:
    """Return a node such as a DGX: each GPU has a port of its own below the same PCIe switch, on two NUMA nodes."""
    fabric = FakeFabric(root)
    for index in range(gpus):
        bus = 0x15 + 0x10 * index
        switch = f"pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        node = int(index >= gpus / 2)
        fabric.gpu(f"{switch}/0000:{bus + 2:02x}:00.0/0000:{bus + 3:02x}:00.0", node)
        fabric.nic(f"mlx5_{index}", f"{switch}/0000:{bus + 2:02x}:01.0/0000:{bus + 4:02x}:00.0", MLX5_IB, node)
    return fabric


def roce_node(root: Path) -> FakeFabric:
    """Return a node without PCIe switches: two GPUs and a card with two ports as two devices, on two NUMA nodes."""
    fabric = FakeFabric(root)
    fabric.gpu("pci0000:00/0000:00:01.0/0000:01:00.0", 0)
    fabric.gpu("pci0000:80/0000:80:01.0/0000:81:00.0", 1)
    for function in range(2):
        fabric.nic(f"mlx5_{function}", f"pci0000:00/0000:00:03.0/0000:03:00.{function}", MLX5_ROCE, 0)
    return fabric


def efa_node(root: Path) -> FakeFabric:
    """Return a virtual machine whose two GPUs have four EFA ports each, below the same PCIe switch."""
    fabric = FakeFabric(root)
    for index in range(2):
        switch = f"pci0000:{index}0/0000:{index}0:01.0/0000:{index}1:00.0"
        fabric.gpu(f"{switch}/0000:{index}2:00.0/0000:{index}3:00.0", 0)
        for card in range(4):
            path = f"{switch}/0000:{index}2:0{card + 1}.0/0000:{index}{card + 4}:00.0"
            fabric.nic(f"rdmap{index}{card}s0", path, EFA_CARD, 0)
    return fabric
