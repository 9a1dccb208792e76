"""The thread that reads the network ports of the machine every 5 s, and their counters of errors every 15 s."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.fabric.counters import DOWNED, ErrorKind, Totals, traffic
from gpu_exporter.host.fabric.distance import place
from gpu_exporter.host.fabric.rails import History, Rails, is_up, rails_of, rate_share
from gpu_exporter.host.fabric.rails import rows as rows_of_gpu
from gpu_exporter.host.fabric.reader import MOST_PORTS, FabricReader, Link, Nic
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.row_thread import RowThread
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels
from gpu_exporter.model.snapshot import Row

PERIOD_SECONDS, ERRORS_SECONDS, SCAN_SECONDS = 5.0, 15.0, 60.0
# A thread never wakes up exactly after a period.
EARLY_SECONDS = 0.5
# The state of a port whose card fell off the bus.
LOST = Link(up=False, state="", physical="", rate=None)
OPEN_DRIVER = b"Open Kernel Module"
DMA_BUF_KERNEL = (5, 12)
_ERRORS = {ErrorKind(dict(row.labels)["kind"]): row for row in m.NIC_PORT_ERRORS}


class FabricWatch(RowThread):
    """Keeps the rows of network ports up to date. With `details`, also errors by port."""

    def __init__(self, files: HostFiles, *, details: bool = False, period: float = PERIOD_SECONDS) -> None:
        super().__init__("nics", "network cards", period)
        self._files, self._details = files, details
        self._reader = FabricReader(files)
        self._nics: Sequence[Nic] = ()
        self._lost: frozenset[str] = frozenset()
        self._totals: dict[str, Totals] = {}
        self._history = History()
        self._rails: dict[str, Rails] = {}
        self._placed: Sequence[Gpu] = ()
        self._gpudirect: Sequence[Row] = ()
        self._scanned_at = self._errors_at = -math.inf

    def read(self, now: float) -> Sequence[Row]:
        """Return the rows of the ports, and read what is due at this time (monotonic seconds)."""
        self._scan(now)
        if not self._nics:
            return ()
        links = {nic.name: LOST if nic.name in self._lost else self._reader.link(nic) for nic in self._nics}
        if any(link.up is None for link in links.values()):  # it is gone
            self._scanned_at = -math.inf
        grown = self._read_counters(now)
        self._history.take(links)
        rows = [row for nic in self._nics for row in self._port_rows(nic, links[nic.name])]
        for gpu in self._placed:
            if rails := self._rails.get(gpu.uuid):
                rails.add(grown)
                others = [other for other in self._rails.values() if other is not rails]
                up = is_up(rails, links, self._history, others)
                share = rate_share(rails, links, self._history, self._nics)
                rows += rows_of_gpu(gpu, rails, up, share)
        return [*rows, *self._gpudirect]

    def _scan(self, now: float) -> None:
        """Look for ports once a minute, and for the nearest ones of each GPU when ports or GPUs have changed."""
        gpus, before = self._gpus, self._nics
        if now - self._scanned_at >= SCAN_SECONDS - EARLY_SECONDS:
            self._scanned_at = now
            found = self._reader.nics()
            names = {nic.name for nic in found}
            lost = [nic for nic in before if nic.name not in names and self._is_off_bus(nic)][:MOST_PORTS]
            self._nics, self._lost = [*found, *lost], frozenset(nic.name for nic in lost)
            self._gpudirect = list(self._gpudirect_rows()) if self._nics else ()
            for name, totals in self._totals.items():
                if name not in names:
                    totals.forget()
        if gpus != self._placed or self._nics != before:
            self._placed, rails = gpus, rails_of(gpus, self._nics, self._files)
            for uuid, old in self._rails.items():
                if uuid in rails:
                    rails[uuid].totals = old.totals
            self._rails = rails

    def _is_off_bus(self, nic: Nic) -> bool:
        """Return whether an active port vanished with its PCIe device. One in another network namespace leaves that."""
        device = f"bus/pci/devices/{nic.place.pci}" if nic.place else ""
        return bool(device) and nic.name in self._history.active and place(self._files, device) is None

    def _read_counters(self, now: float) -> Mapping[str, Mapping[str, int]]:
        """Read the counters; return by how much those of each port have grown."""
        with_errors = now - self._errors_at >= ERRORS_SECONDS - EARLY_SECONDS
        if with_errors:
            self._errors_at = now
        grown = {}
        for nic in self._nics:
            values = self._reader.traffic(nic)
            if with_errors:
                values |= self._reader.errors(nic, details=self._details)
            grown[nic.name] = self._totals.setdefault(nic.name, Totals()).take(values)
        return grown

    def _port_rows(self, nic: Nic, link: Link) -> Iterator[Row]:
        labels: Labels = (("device", nic.device), ("port", nic.port))
        where = nic.place
        info = {
            "link_layer": nic.layer,
            "driver": nic.driver,
            "board": nic.board,
            "pci_bus_id": where.pci if where else "",
            "numa_node": "" if where is None or where.node is None else str(where.node),
        }
        yield Row(m.NIC_PORT_INFO, None, 1, (*labels, *((name, text) for name, text in info.items() if text)))
        totals = self._totals[nic.name]
        sent, received = traffic(totals.values)
        values = {
            m.NIC_PORT_UP: link.up,
            m.NIC_PORT_RATE: link.rate,
            m.NIC_PORT_TX: sent,
            m.NIC_PORT_RX: received,
        }
        if self._details:
            values[m.NIC_PORT_DOWNED] = totals.values.get(DOWNED)
            values |= {row: totals.kind(kind) for kind, row in _ERRORS.items()}
        for metric, value in values.items():
            if value is not None:
                yield Row(metric, None, float(value), labels)
        if self._details:
            for name, count in sorted(totals.values.items()):
                yield Row(m.NIC_PORT_COUNTER, None, float(count), (*labels, ("counter", name)))

    def _gpudirect_rows(self) -> Iterator[Row]:
        for method, available in gpudirect(self._files, self._reader).items():
            yield Row(m.NIC_GPUDIRECT, None, available, (("method", method),))


def gpudirect(files: HostFiles, reader: FabricReader) -> Mapping[str, bool]:
    """Return by which methods network cards can access the memory of GPUs, as far as that is known."""
    methods = {"nvidia_peermem": reader.has_module("nvidia_peermem", "nv_peer_mem")}
    try:
        is_open = OPEN_DRIVER in files.proc("driver/nvidia/version")
        kernel = re.match(rb"([0-9]{1,3})\.([0-9]{1,4})", files.proc("sys/kernel/osrelease"))
    except OSError:
        return methods
    if kernel:
        methods["dma_buf"] = is_open and (int(kernel[1]), int(kernel[2])) >= DMA_BUF_KERNEL
    return methods
