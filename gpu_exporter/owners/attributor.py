"""Combines the cached answers of the lookups at each collection. Makes no request itself."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.procfs import since_boot
from gpu_exporter.model.lookup import Lookup
from gpu_exporter.model.snapshot import GpuSamples, OwnerLabels, Row
from gpu_exporter.owners import resource_slices as slices
from gpu_exporter.owners.assignment import DeviceLoad, LookupAnswers, owners, shares
from gpu_exporter.owners.cgroup import ProcessOwner
from gpu_exporter.owners.devices import DeviceRef, Listing, devices
from gpu_exporter.owners.jobs import Jobs
from gpu_exporter.owners.pods import PodDetails
from gpu_exporter.owners.processes import Processes, ProcessLookup
from gpu_exporter.owners.resource_slices import Slice

log = logging.getLogger(__name__)

# Responses without owners right after the start would begin series that end at once.
FIRST_SECONDS = 2.0
WRONG_NODE = "kubelet lists pods, the API server none of this node: set GPU_EXPORTER_NODE_NAME from spec.nodeName"
_READ = frozenset({m.MIG_DEVICE, m.FB_USED, m.PROCESS_MEMORY, m.PROCESS_SM, m.PROCESSES_UNRESOLVED})


class LookupThread(Protocol):
    """A thread that keeps a lookup up to date."""

    def start(self) -> None:
        """Start to send requests."""

    def stop(self) -> None:
        """Request the end; does not wait for it."""


@dataclass(frozen=True, slots=True)
class Lookups:
    """The lookups that are configured; None for those that are not."""

    kubelet: Lookup[Listing] | None = None
    pods: Lookup[Mapping[str, PodDetails]] | None = None
    slices: Lookup[Mapping[str, Slice]] | None = None
    jobs: Lookup[Jobs] | None = None
    processes: Lookup[Processes] | None = None
    process_lookup: ProcessLookup | None = None

    def configured(self) -> Iterator[Lookup[object]]:
        """Return those that are configured."""
        for lookup in (self.kubelet, self.pods, self.slices, self.jobs, self.processes):
            if lookup is not None:
                yield lookup  # type: ignore[misc]


class Attributor:
    """Finds the owners of GPUs. `attribute` runs on the clock's thread; all requests run on `threads`."""

    def __init__(self, lookups: Lookups, threads: Sequence[LookupThread]) -> None:
        self._lookups, self._threads = lookups, threads
        self._answers: LookupAnswers | None = None
        self._owner_labels = OwnerLabels()
        self._rows: Sequence[Row] = ()
        self._claims: tuple[object, Mapping[tuple[str, str], str]] = (None, {})
        self._broken = False
        # The monotonic time at which kubelet began to list each pod; 0 for those of the first look. None before it.
        self._listed_since: dict[str, float] | None = None
        self._listing: Listing | None = None
        self._wrong_node = False

    def start(self) -> None:
        """Start all threads, and wait up to FIRST_SECONDS for the first answers."""
        for thread in self._threads:
            thread.start()
        end = time.monotonic() + FIRST_SECONDS
        for lookup in self._lookups.configured():
            lookup.settled.wait(max(0.0, end - time.monotonic()))

    def stop(self) -> None:
        """Request the end of all threads; does not wait for it."""
        for thread in self._threads:
            thread.stop()

    def attribute(self, gpus: Sequence[GpuSamples]) -> tuple[OwnerLabels, Sequence[Row]]:
        """Return the owner labels of classic families, and the rows about owners and lookups. Never raises."""
        try:
            result = self._attribute(gpus)
        except Exception:  # a response without owners is better than none
            if not self._broken:
                log.exception("attribution: unexpected error, please report it")
            self._broken = True
            return OwnerLabels(), ()
        self._broken = False
        return result

    def _attribute(self, gpus: Sequence[GpuSamples]) -> tuple[OwnerLabels, Sequence[Row]]:
        lookups = self._lookups
        migs, loads, named = _read(gpus)
        here = devices((seen.gpu for seen in gpus), migs)
        pods = self._pods()
        running = lookups.processes.value if lookups.processes else None
        if lookups.process_lookup:
            lookups.process_lookup.wanted = named
        answers = LookupAnswers(
            here,
            lookups.kubelet.value if lookups.kubelet else None,
            pods,
            self._uuids(),
            lookups.jobs.value if lookups.jobs else None,
            None if running is None else _running(loads, running),
        )
        if answers != self._answers:
            self._owner_labels, self._rows = owners(answers)
            self._answers = answers
        rows = [*self._rows, *self._health()]
        if running is not None and lookups.kubelet:
            rows += shares(here, loads, running, pods)
        return self._owner_labels, rows

    def _pods(self) -> Mapping[str, PodDetails]:
        """Return the pods of the API server, without those that may have been replaced by others of the same name.

        While the API server is down, pods that kubelet began to list after the server's last answer are left out.
        """
        lookup = self._lookups.pods
        if lookup is None:
            return {}
        if self._lookups.kubelet and (listing := self._lookups.kubelet.value) is not self._listing:
            self._note_listed(listing)
        self._check_node(lookup)
        if lookup.up or lookup.answered_at is None:
            return lookup.value
        new = {name for name, since in (self._listed_since or {}).items() if since > lookup.answered_at}
        return {name: pod for name, pod in lookup.value.items() if name not in new} if new else lookup.value

    def _check_node(self, lookup: Lookup[Mapping[str, PodDetails]]) -> None:
        """Note whether the API server lists no pod, although kubelet does."""
        wrong = lookup.up and not lookup.value and bool(self._listed_since)
        if wrong and not self._wrong_node:
            lookup.errors["wrong_node"] += 1
            log.warning("attribution: pods: %s", WRONG_NODE)
        self._wrong_node = wrong

    def _note_listed(self, listing: Listing) -> None:
        """Note which pods are new in a listing of kubelet."""
        listed = {f"{device.namespace}/{device.pod}" for device in listing.allocated}
        listed |= {f"{claim.namespace}/{claim.pod}" for claim in listing.claimed}
        # Pods that kubelet lists at the first look are not newer than the API server's answer.
        begun = 0.0 if self._listed_since is None else time.monotonic()
        self._listed_since = {name: (self._listed_since or {}).get(name, begun) for name in listed}
        self._listing = listing

    def _uuids(self) -> Mapping[tuple[str, str], str]:
        listed = self._lookups.slices.value if self._lookups.slices else None
        if listed is not self._claims[0]:
            self._claims = (listed, slices.uuids(listed.values()) if listed else {})
        return self._claims[1]

    def _health(self) -> Iterator[Row]:
        for lookup in self._lookups.configured():
            source = (("source", lookup.source),)
            up = lookup.up and not (self._wrong_node and lookup is self._lookups.pods)
            yield Row(m.ATTRIBUTION_UP, None, up, source)
            if lookup.age is not None:
                yield Row(m.ATTRIBUTION_AGE, None, round(lookup.age, 3), source)
            for reason, count in lookup.errors.copy().items():
                yield Row(m.ATTRIBUTION_ERRORS, None, count, (*source, ("reason", reason)))


def _read(
    gpus: Sequence[GpuSamples],
) -> tuple[Mapping[str, DeviceRef], Mapping[DeviceRef, DeviceLoad], Mapping[int, float]]:
    """Return MIG devices by UUID, the load of each device, and each PID with the time when the driver reported it."""
    migs: dict[str, DeviceRef] = {}
    loads: dict[DeviceRef, DeviceLoad] = {}
    named: dict[int, float] = {}
    for gpu, read_at, samples, unsupported in gpus:
        sampled = m.PROCESS_SM not in unsupported
        for series, value in samples:
            if series.metric not in _READ:
                continue
            labels = dict(series.labels)
            ref = DeviceRef(gpu.uuid, labels.get("GPU_I_ID", ""))
            if series.metric is m.MIG_DEVICE:
                migs[labels["mig_uuid"]] = ref
            elif read_at is None:
                continue
            elif series.metric is m.PROCESSES_UNRESOLVED:
                sampled &= value == 0
            elif series.metric is m.FB_USED:
                loads.setdefault(ref, DeviceLoad()).used = value * m.MIB
            else:
                pid, load = int(labels["pid"]), loads.setdefault(ref, DeviceLoad())
                named[pid] = min(
                    named.get(pid, math.inf), since_boot(read_at)
                )  # of several GPUs, the one that was read first counts
                (load.sm if series.metric is m.PROCESS_SM else load.memory)[pid] = value
        for ref, load in loads.items():
            load.sampled |= sampled and ref.uuid == gpu.uuid
    return migs, loads, named


def _running(loads: Mapping[DeviceRef, DeviceLoad], running: Processes) -> Mapping[DeviceRef, frozenset[ProcessOwner]]:
    owners_by_ref = {}
    for ref, load in loads.items():
        process_owners = frozenset(running[pid] for pid in (*load.memory, *load.sm) if pid in running)
        if process_owners:
            owners_by_ref[ref] = process_owners
    return owners_by_ref
