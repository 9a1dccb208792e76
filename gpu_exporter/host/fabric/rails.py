"""The network ports nearest to each GPU (its rails): what is true of all of them, and totals that never fall."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.fabric.counters import COUNTERS_OF, DOWNED, ErrorKind, traffic
from gpu_exporter.host.fabric.distance import Distance, nearest, numa_nodes, place
from gpu_exporter.host.fabric.reader import Link, Nic
from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
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
class History:
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


def is_up(rails: Rails, links: Mapping[str, Link], history: History, others: Iterable[Rails]) -> bool | None:
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


def rate_share(rails: Rails, links: Mapping[str, Link], history: History, all_nics: Iterable[Nic]) -> float | None:
    """Return the rate of the slowest active port of a GPU, as a share of what it should be; None if that is unknown.

    It should be the highest rate that it has had, or that an active port of the same kind of card has.
    """
    best: dict[tuple[str, str, str], float] = {}
    for nic in all_nics:
        link = links.get(nic.name)
        if link and link.up and link.rate:
            best[nic.kind] = max(best.get(nic.kind, 0.0), link.rate)
    shares = [
        link.rate / max(history.best.get(nic.name, 0.0), best.get(nic.kind, 0.0))
        for nic in rails.nics
        if (link := links.get(nic.name)) and link.up and link.rate
    ]
    return min(shares, default=None)


def rows(gpu: Gpu, rails: Rails, up: bool | None, share: float | None) -> Iterator[Row]:
    """Yield the rows of a GPU."""
    apart = rails.distance
    for nic in rails.nics:
        labels = {"device": nic.device, "port": nic.port, "distance": apart.name if apart else "unknown"}
        yield Row(m.NIC_INFO, gpu, 1, tuple(labels.items()))
    values: dict[Metric, float | None] = {m.NIC_UP: up, m.NIC_RATE_SHARE: share, m.NIC_DISTANCE: apart, **rails.totals}
    for metric, value in values.items():
        if value is not None:
            yield Row(metric, gpu, float(value), ())
