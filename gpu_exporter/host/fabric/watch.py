"""The thread that reads the network ports of the machine every 5 s, and their counters of errors every 15 s.

The ports nearest to a GPU are its rails: samples say what is true of all of them, and have totals that never fall.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.fabric.counters import COUNTERS_OF, DOWNED, ErrorKind, PortTotals, traffic
from gpu_exporter.host.fabric.distance import Distance, nearest, numa_nodes, place
from gpu_exporter.host.fabric.reader import MOST_PORTS, FabricReader, Link, Nic
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.threads import RowThread
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.pci import pci_bus_id
from gpu_exporter.model.snapshot import Row


@dataclass(slots=True)
class Rails:
    """The ports nearest to one GPU, in order, with totals since they were first read."""

    distance: Distance | None
    nics: tuple[Nic, ...]
    totals: dict[Metric, float] = field(default_factory=dict)

    def add(self, grown: Mapping[str, Mapping[str, int]]) -> None:
        """Add by how much the counters of each port (by its name) have grown."""
        for nic in self.nics:
            for metric, amount in _amounts(grown.get(nic.name, {})):
                self.totals[metric] = self.totals.get(metric, 0.0) + amount


def _amounts(grown: Mapping[str, int]) -> Iterator[tuple[Metric, int]]:
    sent, received = traffic(grown)
    errors, retransmits = (
        [grown[name] for name in COUNTERS_OF[kind] if name in grown] for kind in (ErrorKind.LINK, ErrorKind.RETRANSMIT)
    )
    for metric, amount in (
        (m.NIC_TX, sent),
        (m.NIC_RX, received),
        (m.NIC_DOWNED, grown.get(DOWNED)),
        (m.NIC_ERRORS, sum(errors) if errors else None),
        (m.NIC_RETRANSMITS, sum(retransmits) if retransmits else None),
    ):
        if amount is not None:
            yield metric, amount


def rails_of(gpus: Iterable[Gpu], nics: Sequence[Nic], files: HostFiles) -> dict[str, Rails]:
    """Return the ports nearest to each GPU, by UUID; no entry for a GPU that has none of its own."""
    found, nodes, places = {}, numa_nodes(files), [nic.place for nic in nics]
    for gpu in gpus:
        # the kernel writes four digits of the domain
        there = place(files, f"bus/pci/devices/{pci_bus_id(gpu.pci_bus_id)[4:].lower()}")
        if there:
            apart, positions = nearest(there, places, nodes)
            if positions:
                found[gpu.uuid] = Rails(apart, tuple(nics[position] for position in positions))
    return found


@dataclass(slots=True)
class RailHistory:
    """What the ports have been: which were active, and the highest rate of each."""

    active: set[str] = field(default_factory=set)
    best: dict[str, float] = field(default_factory=dict)

    def take(self, links: Mapping[str, Link]) -> None:
        """Add the present states."""
        for name, link in links.items():
            if link.up:
                self.active.add(name)
                if link.rate:
                    self.best[name] = max(self.best.get(name, 0.0), link.rate)


def faulty(
    rails: Rails, links: Mapping[str, Link], history: RailHistory, up: bool | None, shares: Mapping[str, float]
) -> Iterator[tuple[Nic, str]]:
    """Yield the ports for which a GPU is not `up`, and the slowest one if it is slower than it should be."""
    if up is False:
        down = [nic for nic in rails.nics if (link := links.get(nic.name)) and link.up is False]
        yield from ((nic, "down") for nic in [nic for nic in down if nic.name in history.active] or down)
    slowest = min(shares.values(), default=1.0)
    yield from ((nic, "slow") for nic in rails.nics if slowest < 1.0 and shares.get(nic.name) == slowest)


def is_up(rails: Rails, links: Mapping[str, Link], history: RailHistory, others: Iterable[Rails]) -> bool | None:
    """Return whether the ports of a GPU are active as they should be; None if it is unknown whether they should.

    A port that was active should be. If a GPU has no active port, it should have one if another GPU has.
    """
    states = {nic.name: links[nic.name].up for nic in rails.nics if nic.name in links}
    if any(up is False and name in history.active for name, up in states.items()):
        return False
    if any(states.values()):
        return True
    if False not in states.values():
        return None
    used = any(links[nic.name].up for other in others for nic in other.nics if nic.name in links)
    return False if used else None


def rate_shares(
    rails: Rails, links: Mapping[str, Link], history: RailHistory, all_nics: Iterable[Nic]
) -> Mapping[str, float]:
    """Return the rate of each active port of a GPU, by its name, as a share of what it should be, if that is known.

    It should be the highest rate that it has had, or that an active port of the same kind of card has.
    """
    best: dict[tuple[str, str, str], float] = {}
    for nic in all_nics:
        link = links.get(nic.name)
        if link and link.up and link.rate:
            best[nic.kind] = max(best.get(nic.kind, 0.0), link.rate)
    return {
        nic.name: link.rate / max(history.best.get(nic.name, 0.0), best.get(nic.kind, 0.0))
        for nic in rails.nics
        if (link := links.get(nic.name)) and link.up and link.rate
    }


def rows_of(
    gpu: Gpu, rails: Rails, up: bool | None, share: float | None, faults: Iterable[tuple[Nic, str]]
) -> Iterator[Row]:
    """Yield the rows of a GPU."""
    apart = rails.distance
    for nic in rails.nics:
        labels = {"device": nic.device, "port": nic.port, "distance": apart.name if apart else "unknown"}
        yield Row(m.NIC_INFO, gpu, 1, tuple(labels.items()))
    for nic, fault in faults:
        yield Row(m.NIC_FAULT, gpu, 1, (("device", nic.device), ("port", nic.port), ("fault", fault)))
    values: dict[Metric, float | None] = {m.NIC_UP: up, m.NIC_RATE_SHARE: share, m.NIC_DISTANCE: apart, **rails.totals}
    for metric, value in values.items():
        if value is not None:
            yield Row(metric, gpu, float(value), ())


PERIOD_SECONDS, ERRORS_SECONDS, SCAN_SECONDS = 5.0, 15.0, 60.0
# A thread never wakes up exactly after a period.
EARLY_SECONDS = 0.5
# The state of a port whose card fell off the bus.
LOST = Link(up=False, rate=None)
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
        self._totals: dict[str, PortTotals] = {}
        self._history = RailHistory()
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
                shares = rate_shares(rails, links, self._history, self._nics)
                faults = faulty(rails, links, self._history, up, shares)
                rows += rows_of(gpu, rails, up, min(shares.values(), default=None), faults)
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
            grown[nic.name] = self._totals.setdefault(nic.name, PortTotals()).take(values)
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
