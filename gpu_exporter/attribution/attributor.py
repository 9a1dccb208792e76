"""Puts together what the tellers told, once a tick. Asks nobody."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_exporter.attribution import resource_slices as slices
from gpu_exporter.attribution.cgroup import Whose
from gpu_exporter.attribution.devices import Place, devices
from gpu_exporter.attribution.jobs import Jobs
from gpu_exporter.attribution.listing import Listing
from gpu_exporter.attribution.owners import Facts, owners
from gpu_exporter.attribution.pods import Pod
from gpu_exporter.attribution.processes import Processes, ProcessLookup, since_boot
from gpu_exporter.attribution.resource_slices import Slice
from gpu_exporter.attribution.shares import Load, shares
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.lookup import Lookup
from gpu_exporter.model.snapshot import OwnerLabels, Row, Seen

log = logging.getLogger(__name__)

# Pages with no owners, at the start, would begin series that end at once.
FIRST_SECONDS = 2.0
_READ = frozenset({m.MIG_DEVICE, m.FB_USED, m.PROCESS_MEMORY, m.PROCESS_SM, m.PROCESSES_UNRESOLVED})


class Thread(Protocol):
    """Somebody who asks."""

    def start(self) -> None:
        """Begin to ask."""

    def stop(self) -> None:
        """End soon."""


@dataclass(frozen=True, slots=True)
class Tellers:
    """Who is asked; None who is not."""

    kubelet: Lookup[Listing] | None = None
    pods: Lookup[Mapping[str, Pod]] | None = None
    slices: Lookup[Mapping[str, Slice]] | None = None
    jobs: Lookup[Jobs] | None = None
    processes: Lookup[Processes] | None = None
    lookup: ProcessLookup | None = None

    def all(self) -> Iterator[Lookup[object]]:
        """Those that are asked."""
        for each in (self.kubelet, self.pods, self.slices, self.jobs, self.processes):
            if each is not None:
                yield each  # type: ignore[misc]


class Attributor:
    """Whose the GPUs are. `attribute` runs on the clock's thread, everything that may wait on threads of its own."""

    def __init__(self, tellers: Tellers, threads: Sequence[Thread]) -> None:
        self._tellers, self._threads = tellers, threads
        self._facts: Facts | None = None
        self._owned = OwnerLabels()
        self._rows: Sequence[Row] = ()
        self._claims: tuple[object, Mapping[tuple[str, str], str]] = (None, {})
        self._broken = False

    def start(self) -> None:
        """Begin to ask, and wait a moment for the first answers."""
        for thread in self._threads:
            thread.start()
        end = time.monotonic() + FIRST_SECONDS
        for told in self._tellers.all():
            told.heard.wait(max(0.0, end - time.monotonic()))

    def stop(self) -> None:
        """End soon. Waits for nobody."""
        for thread in self._threads:
            thread.stop()

    def attribute(self, gpus: Sequence[Seen]) -> tuple[OwnerLabels, Sequence[Row]]:
        """The owners of these GPUs. Never raises."""
        try:
            found = self._attribute(gpus)
        except Exception:  # owners are not worth a page
            if not self._broken:
                log.exception("attribution: unexpected error, please report it")
            self._broken = True
            return OwnerLabels(), ()
        self._broken = False
        return found

    def _attribute(self, gpus: Sequence[Seen]) -> tuple[OwnerLabels, Sequence[Row]]:
        tellers = self._tellers
        migs, loads, named = _read(gpus)
        here = devices((seen.gpu for seen in gpus), migs)
        pods = tellers.pods.value if tellers.pods else {}
        running = tellers.processes.value if tellers.processes else None
        if tellers.lookup:
            tellers.lookup.wanted = named
        facts = Facts(
            here,
            tellers.kubelet.value if tellers.kubelet else None,
            pods,
            self._uuids(),
            tellers.jobs.value if tellers.jobs else None,
            None if running is None else _running(loads, running),
        )
        if facts != self._facts:
            self._owned, self._rows = owners(facts)
            self._facts = facts
        rows = [*self._rows, *self._health()]
        if running is not None and tellers.kubelet:
            rows += shares(here, loads, running, pods)
        return self._owned, rows

    def _uuids(self) -> Mapping[tuple[str, str], str]:
        told = self._tellers.slices.value if self._tellers.slices else None
        if told is not self._claims[0]:
            self._claims = (told, slices.uuids(told.values()) if told else {})
        return self._claims[1]

    def _health(self) -> Iterator[Row]:
        for told in self._tellers.all():
            source = (("source", told.source),)
            yield Row(m.ATTRIBUTION_UP, None, told.up, source)
            if told.age is not None:
                yield Row(m.ATTRIBUTION_AGE, None, round(told.age, 3), source)
            for reason, count in told.errors.copy().items():
                yield Row(m.ATTRIBUTION_ERRORS, None, count, (*source, ("reason", reason)))


def _read(gpus: Sequence[Seen]) -> tuple[Mapping[str, Place], Mapping[Place, Load], Mapping[int, float]]:
    """MIG devices by UUID, what is on each device, and the PIDs with when the driver named them."""
    migs: dict[str, Place] = {}
    loads: dict[Place, Load] = {}
    named: dict[int, float] = {}
    for gpu, read_at, samples, unsupported in gpus:
        sampled = m.PROCESS_SM not in unsupported
        for series, value in samples:
            if series.metric not in _READ:
                continue
            labels = dict(series.labels)
            place = Place(gpu.uuid, labels.get("GPU_I_ID", ""))
            if series.metric is m.MIG_DEVICE:
                migs[labels["mig_uuid"]] = place
            elif read_at is None:
                continue
            elif series.metric is m.PROCESSES_UNRESOLVED:
                sampled &= value == 0
            elif series.metric is m.FB_USED:
                loads.setdefault(place, Load()).used = value * m.MIB
            else:
                pid, load = int(labels["pid"]), loads.setdefault(place, Load())
                named[pid] = min(named.get(pid, math.inf), since_boot(read_at))  # on several GPUs, the first counts
                (load.sm if series.metric is m.PROCESS_SM else load.memory)[pid] = value
        for place, load in loads.items():
            load.sampled |= sampled and place.uuid == gpu.uuid
    return migs, loads, named


def _running(loads: Mapping[Place, Load], running: Processes) -> Mapping[Place, frozenset[Whose]]:
    found = {}
    for place, load in loads.items():
        whose = frozenset(running[pid] for pid in (*load.memory, *load.sm) if pid in running)
        if whose:
            found[place] = whose
    return found
