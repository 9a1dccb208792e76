"""XIDs and SXids: each is counted once although two witnesses report it; the last ones are kept with the GPU's state.

NVML reports an XID within a tick, while gpu-exporter is registered for events; the kernel log contains it with process
and time. Neither is complete alone: NVML reports nothing for a GPU that fell off the bus, and the log wraps around.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import Catalogue
from gpu_exporter.health.kernel_log_parser import SxidLine, XidLine
from gpu_exporter.health.kernel_log_reader import Logged, Position
from gpu_exporter.model.gpu import Gpu, XidEvent
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import pci_bus_id
from gpu_exporter.model.verdict import Problem

KEPT = 256
# Registrations that are distinguished per GPU; the counts of older ones are merged.
EPOCHS = 32
# The GPU's present values are recorded with an event only if it is younger than this.
FRESH_SECONDS = 5.0
# How long an XID that warrants a drain makes a GPU unhealthy, whatever its other values are.
RECENT_SECONDS = 600.0
# The most XIDs that the counts of a window consider.
COUNTED = 10_000

MetricRow = tuple[Metric, Gpu | None, float, dict[str, str]]


class GpuState(NamedTuple):
    """A GPU and its present values, by metric name."""

    gpu: Gpu
    values: Mapping[str, float]


@dataclass(slots=True)
class Event:
    """One XID: when (unix time), where, what it means, who reported it, which process caused it, the GPU's values then.

    `epoch` is that of its tally, `written` whether the history file contains it.
    """

    epoch: float
    at: float
    pci_bus_id: str
    xid: int
    name: str
    kind: str
    action: str
    meaning: str
    gpu: int | None = None
    uuid: str = ""
    instance: int | None = None
    pid: int | None = None
    process: str = ""
    message: str = ""
    witnesses: list[str] = field(default_factory=list)
    evidence: dict[str, float] = field(default_factory=dict)
    written: bool = False

    def shown(self) -> dict[str, Any]:
        """Return the event for JSON, without internal fields."""
        return {name: value for name, value in asdict(self).items() if name not in ("epoch", "written")}


@dataclass(slots=True)
class Tally:
    """The number of XIDs of one code on a GPU, by NVML and by the kernel log, for each epoch.

    An epoch begins when gpu-exporter registers for NVML's events. Each witness reports an event at most once, so the
    higher of the two counts is used, whatever the order and the delay of the reports.
    """

    earlier: int = 0
    epochs: dict[float, list[int]] = field(default_factory=dict)
    last: float = 0.0

    @property
    def total(self) -> int:
        return self.earlier + sum(max(seen) for seen in self.epochs.values())

    def add(self, since: float, witness: int, at: float) -> bool:
        """Count one report; return whether it is of an event that the other witness has not reported yet."""
        seen = self.epochs.setdefault(since, [0, 0])
        seen[witness] += 1
        self.last = max(self.last, at)
        while len(self.epochs) > EPOCHS:
            self.earlier += max(self.epochs.pop(min(self.epochs)))
        return seen[witness] > seen[1 - witness]


NVML, KERNEL = 0, 1
WITNESSES = ("nvml", "kernel")


class EventLog:
    """The XIDs and SXids of one node, by PCI address of the GPU, the only name that the kernel log has.

    `look` returns the GPU at an address and its values. Any thread may call any method.
    """

    def __init__(self, xids: Catalogue, look: Callable[[str], GpuState | None]) -> None:
        self._xids = xids
        self._look = look
        self._lock = threading.Lock()
        self._since: dict[str, list[float]] = {}
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._sxids: dict[tuple[str, int, str], list[float]] = {}
        self._recent: deque[Event] = deque(maxlen=KEPT)
        self._started = time.time()
        self._times: deque[tuple[float, str, int]] = deque(maxlen=COUNTED)
        self._since_start: Counter[tuple[str, int]] = Counter()
        self.position: Position | None = None
        self.changed = False
        self.kernel_up = False
        self.missed = 0

    def registered(self, gpu: Gpu, since: float) -> None:
        """Begin an epoch: NVML reports the XIDs of this GPU from the unix time `since` on."""
        with self._lock:
            epochs = self._since.setdefault(pci_bus_id(gpu.pci_bus_id), [])
            epochs.append(since)
            del epochs[:-EPOCHS]

    def add_driver_xids(self, events: Iterable[XidEvent]) -> None:
        """Add XIDs that the driver reported through NVML."""
        with self._lock:
            for event in events:
                line = XidLine(pci_bus_id(event.pci_bus_id), event.code, instance=event.instance)
                since = self._since.get(line.pci, [0.0])[-1]
                self._count(NVML, since, event.at, line)

    def logged(self, entry: Logged, at: float) -> None:
        """Add an entry of the kernel log, of the unix time `at`."""
        with self._lock:
            line = entry.line
            if isinstance(line, SxidLine):
                self.changed = True
                fatal = "" if line.fatal is None else str(line.fatal).lower()
                seen = self._sxids.setdefault((line.pci, line.code, fatal), [0, 0])
                seen[0], seen[1] = seen[0] + 1, max(seen[1], at)
                return
            epochs = self._since.get(line.pci, [])
            place = bisect_right(epochs, at)
            self._count(KERNEL, epochs[place - 1] if place else 0.0, at, line)

    def _count(self, witness: int, since: float, at: float, line: XidLine) -> None:
        self.changed = True
        tally = self._tallies.setdefault((line.pci, line.code), Tally())
        if tally.add(since, witness, at):
            event = self._event(since, at, line)
            self._recent.append(event)
            self._times.append((at, line.pci, line.code))
            self._since_start[line.pci, line.code] += at >= self._started
        else:
            unconfirmed = self._unconfirmed(since, line, WITNESSES[witness])
            if unconfirmed is None:  # so long ago that it is no longer kept
                return
            event = unconfirmed
        event.witnesses.append(WITNESSES[witness])
        if witness == KERNEL:
            event.at, event.pid, event.process, event.message = at, line.pid, line.name, line.message
            if line.recovery_action is not None:  # what the driver asks for outranks the table
                event.action = line.recovery_action.value
        if event.instance is None:
            event.instance = line.instance

    def _unconfirmed(self, since: float, line: XidLine, witness: str) -> Event | None:
        """Return the oldest event of this code, GPU and epoch that this witness has not reported yet."""
        kind = (since, line.pci, line.code)
        same = (event for event in self._recent if (event.epoch, event.pci_bus_id, event.xid) == kind)
        return next((event for event in same if witness not in event.witnesses), None)

    def _event(self, since: float, at: float, line: XidLine) -> Event:
        xid, state = self._xids[line.code], self._look(line.pci)
        about = (xid.mnemonic, xid.kind.value, xid.action.value, xid.meaning)
        event = Event(since, at, line.pci, xid.code, *about)
        if state:
            event.gpu, event.uuid = state.gpu.index, state.gpu.uuid
            if time.time() - at < FRESH_SECONDS:
                event.evidence = dict(state.values)
        return event

    def recent(self) -> list[dict[str, Any]]:
        """Return the last events, newest first."""
        with self._lock:
            events = sorted(self._recent, key=lambda event: event.at, reverse=True)
            return [event.shown() for event in events]

    def problems(self) -> dict[str, list[Problem]]:
        """By PCI address, the recent XIDs that warrant a drain. Lasting problems show in the GPU's own values."""
        with self._lock:
            lasts = [(pci, self._xids[code], tally.last) for (pci, code), tally in self._tallies.items()]
        problems: dict[str, list[Problem]] = {}
        for pci, xid, last in lasts:
            if xid.drain and time.time() - last < RECENT_SECONDS:
                words = f"Xid {xid.code} in the last ten minutes: {xid.meaning}"
                problems.setdefault(pci, []).append(Problem(m.XID_LAST, last, words, xid.action, f"xid_{xid.code}"))
        return problems

    # --- metrics --------------------------------------------------------------------------------------------------

    def samples(self, gpus: Sequence[Gpu], nvml_up: bool) -> list[MetricRow]:
        """Return what is exposed. If a witness is up, counters of the drain codes exist from 0 on."""
        by_pci = {pci_bus_id(gpu.pci_bus_id): gpu for gpu in gpus if gpu.pci_bus_id}
        watched = nvml_up or self.kernel_up
        with self._lock:
            counts = {(pci, code): 0 for pci in by_pci for code in self._xids.drain_codes} if watched else {}
            counts |= {key: tally.total for key, tally in self._tallies.items()}
            lasts = {key: tally.last for key, tally in self._tallies.items()}
            sxids = {key: tuple(seen) for key, seen in self._sxids.items()}
        rows: list[MetricRow] = []
        for (pci, code), count in counts.items():
            gpu, labels = by_pci.get(pci), self._labels(pci, code)
            rows.append((m.XID_EVENTS, gpu, count, labels))
            if (pci, code) in lasts:
                rows.append((m.XID_LAST, gpu, round(lasts[pci, code], 3), labels))
        for address, gpu in by_pci.items() if watched else ():
            by_code = {code: at for (pci, code), at in lasts.items() if pci == address}
            latest = max(by_code, key=by_code.__getitem__, default=0)
            rows.append((m.XID_ERRORS, gpu, latest, self._error(latest)))
        for (pci, code, fatal), (seen, last) in sxids.items():
            labels = {"pci_bus_id": pci, "sxid": str(code), "fatal": fatal}
            rows += [(m.SXID_EVENTS, None, seen, labels), (m.SXID_LAST, None, round(last, 3), labels)]
        states = zip(WITNESSES, (nvml_up, self.kernel_up), strict=True)
        rows += [(m.WITNESS, None, up, {"witness": witness}) for witness, up in states]
        return [*rows, (m.MISSED, None, self.missed, {})]

    def as_dcgm_exporter(
        self, gpus: Sequence[Gpu], chosen: Collection[Metric], window: float, nvml_up: bool
    ) -> list[MetricRow]:
        """Return the `chosen` ones of `DCGM_EXP_XID_ERRORS_*`: XIDs of the last `window` seconds, and since the start.

        A GPU without an XID in the window has a 0 without a code. Nothing is returned while no witness is up.
        """
        if not chosen or not (nvml_up or self.kernel_up):
            return []
        by_pci = {pci_bus_id(gpu.pci_bus_id): gpu for gpu in gpus if gpu.pci_bus_id}
        after = time.time() - window
        with self._lock:
            within = Counter((pci, code) for at, pci, code in self._times if at > after)
            totals = {key: count for key, count in self._since_start.items() if count}
        rows: list[MetricRow] = []
        if m.EXP_XID_COUNT in chosen:
            size = {"window_size_in_ms": str(round(window * 1000))}
            quiet = by_pci.keys() - {pci for pci, _ in within}
            rows += [(m.EXP_XID_COUNT, gpu, 0, size) for pci, gpu in by_pci.items() if pci in quiet]
            for (pci, code), count in within.items():
                if pci in by_pci:
                    rows.append((m.EXP_XID_COUNT, by_pci[pci], count, {**size, "xid": str(code)}))
        if m.EXP_XID_TOTAL in chosen:
            present = ((by_pci[pci], code, count) for (pci, code), count in totals.items() if pci in by_pci)
            rows += [(m.EXP_XID_TOTAL, gpu, count, {"xid": str(code)}) for gpu, code, count in present]
        return rows

    def _labels(self, pci: str, code: int) -> dict[str, str]:
        xid = self._xids[code]
        return {"pci_bus_id": pci, "xid": str(code), "kind": xid.kind.value, "action": xid.action.value}

    def _error(self, code: int) -> dict[str, str]:
        """The labels that dcgm-exporter has on the last code."""
        return {"err_code": str(code), "err_msg": self._xids[code].meaning if code else "No Error"}

    # --- over a restart ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what the next process needs to continue the counts, for JSON."""
        with self._lock:
            return {
                "position": [self.position.origin, self.position.number] if self.position else None,
                "since": self._since,
                "tallies": [
                    [pci, code, tally.earlier, tally.last, [[since, *seen] for since, seen in tally.epochs.items()]]
                    for (pci, code), tally in self._tallies.items()
                ],
                "sxids": [[*key, *seen] for key, seen in self._sxids.items()],
                "recent": [asdict(event) for event in self._recent],
            }

    def unwritten(self, settled_before: float) -> list[Event]:
        """Return the settled events that the history file does not contain yet."""
        with self._lock:
            return [event for event in self._recent if not event.written and event.at <= settled_before]

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Raises TypeError, ValueError or KeyError, and changes nothing, if it is malformed."""
        position = Position(str(state["position"][0]), int(state["position"][1])) if state["position"] else None
        since = {str(pci): [float(at) for at in times] for pci, times in state["since"].items()}
        tallies = {
            (str(pci), int(code)): Tally(
                int(earlier), {float(at): [int(n), int(k)] for at, n, k in epochs}, float(last)
            )
            for pci, code, earlier, last, epochs in state["tallies"]
        }
        sxids = {(str(pci), int(code), str(fatal)): [int(n), float(at)] for pci, code, fatal, n, at in state["sxids"]}
        recent = [Event(**event) for event in state["recent"]]
        with self._lock:
            self.position, self._since, self._tallies, self._sxids = position, since, tallies, sxids
            self._recent.extend(recent)
            self._times.extend((event.at, event.pci_bus_id, event.xid) for event in recent)
