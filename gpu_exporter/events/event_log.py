"""XIDs and SXids: each counts once although two sources report it. The last ones are kept with the GPU's state.

The sources are NVML, which reports an XID within one collection while gpu-exporter is registered for events, and the
kernel log, which adds process and time. Neither is complete: NVML reports nothing of a GPU that fell off the bus, and
the log wraps around.

`SavedEvents` is the content of `events.json`: what the next process needs to continue the counts, in unix times.
Whatever the file contains, a state that was decoded is bounded in size and has times and counts that can be used.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypedDict

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import Catalogue
from gpu_exporter.events.kernel_log_entry import LogEntry, LogPosition, SxidLine, XidLine
from gpu_exporter.events.xid_counts import (
    ELSEWHERE,
    EPOCHS,
    OTHER,
    SLACK_SECONDS,
    Clocks,
    Key,
    Moment,
    Now,
    SxidTally,
    Tally,
    XidCounts,
    label,
    moment,
    read_clocks,
)
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.io.state_version import check_version
from gpu_exporter.model.gpu import Gpu, XidEvent
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import pci_bus_id
from gpu_exporter.model.verdict import Problem

# What the limits on counts and events allow at most is about 5 MiB.
LARGEST_STATE = 8 << 20
MOST_GPUS = 32
KEPT = 256
# Longest texts of an event, in characters. A message of the kernel has 1024 bytes at most.
MESSAGE_LENGTH, TEXT_LENGTH = 1024, 256
MOST_EVIDENCE = 64
# The year 5138. A time in the future is clamped; one beyond this is not a time.
LATEST = 1e11
LARGEST_COUNT = 1 << 53
LARGEST_CODE = 999_999

# NVML reports an event within a collection, and the clock may be corrected in between.
SAME_SECONDS = 2.0

XID_SOURCES = ("nvml", "kernel")


@dataclass(slots=True)
class Event:
    """One XID: when (unix time), where, what it means, who reported it, which process caused it, the GPU's values then.

    `clamped`: its time was in the future, and the time at which gpu-exporter read it is used instead. Internal fields:
    `epoch` is that of its tally, `happened` the monotonic time, `written` whether the history file contains it.
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
    clamped: bool = False
    written: bool = False
    happened: float = 0.0

    def shown(self) -> dict[str, Any]:
        """Return the event for JSON, without internal fields."""
        values = {name: getattr(self, name) for name in SHOWN}
        return {**values, "witnesses": [*self.witnesses], "evidence": {**self.evidence}}

    def take(self, line: XidLine) -> None:
        """Take what the kernel log says of the event."""
        self.pid, self.process, self.message = line.pid, line.name, line.message
        self.shorten()
        if line.detail:
            self.meaning += f"; {line.detail}"
        if line.recovery_action is not None:  # what the driver asks for outranks the table
            self.action = line.recovery_action.value
        if self.instance is None:
            self.instance = line.instance

    def is_same(self, other: Event) -> bool:
        """Whether another process reported the same event: its clock may have been read a little later."""
        about, of_other = ((e.pci_bus_id, e.xid, e.pid, e.process, e.message) for e in (self, other))
        return about == of_other and abs(self.at - other.at) <= SAME_SECONDS

    def shorten(self) -> None:
        """Bound the length of every text, and leave out what a terminal would obey."""
        self.message = printable(self.message, MESSAGE_LENGTH)
        self.process = printable(self.process, TEXT_LENGTH)


SHOWN = tuple(each.name for each in fields(Event) if each.name not in ("epoch", "happened", "written"))


class TallyState(NamedTuple):
    """The counts of one code on one GPU: those of merged epochs, and of each epoch by NVML and by the kernel log."""

    pci: str
    code: int
    earlier: int
    last: float
    epochs: list[tuple[float, int, int]]


class SxidState(NamedTuple):
    """The count of one code on one switch."""

    pci: str
    code: int
    fatal: str
    number: int
    last: float


class _Appending(TypedDict, total=False):
    appending: tuple[int, int]


class SavedEvents(_Appending):
    """Everything: how far the kernel log was read, registrations with NVML by GPU, counts, and the last events.

    `appending`: events that are not `written` were being appended to the history, behind this inode and size of it.
    """

    position: tuple[str, int] | None
    since: dict[str, list[float]]
    tallies: list[TallyState]
    sxids: list[SxidState]
    recent: list[Event]


# Of the state file: see `io.state_version`.
VERSION = 1


class _File(TypedDict):
    events: SavedEvents


def decode(content: bytes) -> SavedEvents:
    """Decode a state file. Raises NewerStateError, and ValueError with one line that says what is wrong."""
    check_version(content, VERSION)
    state = json_as(_File, content)["events"]
    if not all(0 <= at < LATEST for at in _times(state)):
        raise ValueError("a time is out of range")
    if not all(0 <= count <= LARGEST_COUNT for count in _counts(state)):
        raise ValueError("a count is out of range")
    if not all(0 <= code <= LARGEST_CODE for code in _codes(state)):
        raise ValueError("an XID code is out of range")
    if not all(pci in ("", ELSEWHERE, pci_bus_id(pci)) for pci in _addresses(state)):
        raise ValueError("a PCI address is malformed")
    if any(len(tally.epochs) > EPOCHS for tally in state["tallies"]):
        raise ValueError(f"an XID has counts of more than {EPOCHS} registrations")
    if any(sxid.fatal not in ("", "true", "false") for sxid in state["sxids"]):
        raise ValueError("the severity of an SXid is neither fatal nor non-fatal")
    if state["position"] and len(state["position"][0]) > TEXT_LENGTH:
        raise ValueError("the position in the kernel log is malformed")
    if any(
        len(event.witnesses) > len(XID_SOURCES) or not {*event.witnesses} <= {*XID_SOURCES} for event in state["recent"]
    ):
        raise ValueError("an event has a witness that is neither nvml nor kernel")
    if not all(0 <= number <= LARGEST_COUNT for number in state.get("appending", ())):
        raise ValueError("the end of the history is out of range")
    state["since"] = {pci: sorted(times)[-EPOCHS:] for pci, times in list(state["since"].items())[-MOST_GPUS:]}
    state["recent"] = [_bounded(event) for event in state["recent"][-KEPT:]]
    return state


def _times(state: SavedEvents) -> Iterator[float]:
    for times in state["since"].values():
        yield from times
    for tally in state["tallies"]:
        yield tally.last
        yield from (since for since, _, _ in tally.epochs)
    yield from (sxid.last for sxid in state["sxids"])
    for event in state["recent"]:
        yield from (event.at, event.epoch)


def _counts(state: SavedEvents) -> Iterator[int]:
    if state["position"]:
        yield state["position"][1]
    for tally in state["tallies"]:
        yield tally.earlier
        for _, nvml, kernel in tally.epochs:
            yield from (nvml, kernel)
    yield from (sxid.number for sxid in state["sxids"])


def _codes(state: SavedEvents) -> Iterator[int]:
    yield from (tally.code for tally in state["tallies"])
    yield from (sxid.code for sxid in state["sxids"])
    yield from (event.xid for event in state["recent"])


def _addresses(state: SavedEvents) -> Iterator[str]:
    yield from state["since"]
    yield from (tally.pci for tally in state["tallies"])
    yield from (sxid.pci for sxid in state["sxids"])
    yield from (event.pci_bus_id for event in state["recent"])


def _bounded(event: Event) -> Event:
    event.shorten()
    for name in ("name", "kind", "action", "meaning", "uuid"):
        setattr(event, name, printable(getattr(event, name), TEXT_LENGTH))
    evidence = list(event.evidence.items())[:MOST_EVIDENCE]
    event.evidence = {printable(name, TEXT_LENGTH): value for name, value in evidence}
    return event


log = logging.getLogger(__name__)

# The GPU's present values are recorded with an event only if it is younger than this.
FRESH_SECONDS = 5.0
# For how long at least an XID that requires a drain makes a GPU unhealthy, whatever its other values are.
RECENT_SECONDS = 600.0
# The most XIDs that the counts of a window consider.
COUNTED = 10_000
# How often the log says that times were clamped.
REPORT_SECONDS = 3600.0
NVML, KERNEL = 0, 1

MetricRow = tuple[Metric, Gpu | None, float, dict[str, str]]


class GpuEvidence(NamedTuple):
    """A GPU and its present values, by metric name."""

    gpu: Gpu
    values: Mapping[str, float]


class EventLog:
    """The XIDs and SXids of one node, by PCI address of the GPU, the only name that the kernel log has.

    `find_gpu` returns the GPU at an address and its values. Any thread may call any method.
    """

    def __init__(
        self, xids: Catalogue, find_gpu: Callable[[str], GpuEvidence | None], clocks: Clocks = read_clocks
    ) -> None:
        self._xids = xids
        self._find_gpu = find_gpu
        self._clocks = clocks
        self._lock = threading.Lock()
        self._since: dict[str, list[float]] = {}
        self._counts = XidCounts(xids)
        self._recent: deque[Event] = deque(maxlen=KEPT)
        now = clocks()
        self._started, self._offset = now.monotonic, now.unix - now.monotonic
        self._reported_at, self.missed = float("-inf"), 0
        self._times: deque[tuple[float, Key]] = deque(maxlen=COUNTED)
        self._since_start, self._repaired = Counter[Key](), dict[Key, float]()
        self.position: LogPosition | None = None
        # How many times the events could not be saved; None without a state directory.
        self.failed_writes: int | None = None
        self.changed = self.kernel_up = False
        self._shown: tuple[object, ...] = ()
        self._rows: Sequence[MetricRow] = ()

    def registered(self, gpu: Gpu, since: float) -> None:
        """Begin an epoch: NVML reports the XIDs of this GPU from the unix time `since` on."""
        with self._lock:
            epochs = self._since.setdefault(pci_bus_id(gpu.pci_bus_id), [])
            epochs.append(moment(since, self._now()).monotonic)
            del epochs[:-EPOCHS]

    def add_driver_xids(self, events: Iterable[XidEvent]) -> None:
        """Add XIDs that the driver has just reported through NVML."""
        with self._lock:
            for event in events:
                now = self._now()
                line = XidLine(pci_bus_id(event.pci_bus_id), event.code, instance=event.instance)
                since = self._since.get(line.pci, [0.0])[-1]
                # They have just happened: a wall clock that was changed since the report must not make them look old.
                self._count(NVML, since, moment(event.at, now)._replace(monotonic=now.monotonic), line)

    def add_kernel_log_entry(self, entry: LogEntry, when: float | Moment) -> None:
        """Add an entry of the kernel log, of a unix time or a moment."""
        with self._lock:
            now = self._now()
            happened = when if isinstance(when, Moment) else moment(when, now)
            line = entry.line
            if happened.clamped:
                what = f"a line of the kernel log about {line.pci} has a time in the future"
                self._report(now, f"{what}; the time at which it was read is used")
            if isinstance(line, SxidLine):
                self.changed = True
                fatal = "" if line.fatal is None else str(line.fatal).lower()
                sxid = self._counts.sxid((line.pci, line.code, fatal))
                sxid.count += 1
                sxid.last = max(sxid.last, happened, key=lambda last: last.monotonic)
                return
            epochs = self._since.get(line.pci, [])
            place = bisect_right(epochs, happened.monotonic)
            self._count(KERNEL, epochs[place - 1] if place else 0.0, happened, line)

    def _count(self, source: int, since: float, happened: Moment, line: XidLine) -> None:
        self.changed = True
        state = self._find_gpu(line.pci)
        key, tally = self._counts.tally(line.pci, line.code, has_gpu=state is not None or line.pci in self._since)
        if tally.add(since, source, happened):
            event = self._event(since, happened, line, state)
            self._recent.append(event)
            self._times.append((happened.monotonic, key))
            self._since_start[key] += happened.monotonic >= self._started
        else:
            unconfirmed = self._unconfirmed(since, line, XID_SOURCES[source])
            if unconfirmed is None:  # so long ago that it is no longer kept
                return
            event = unconfirmed
        event.witnesses.append(XID_SOURCES[source])
        if source == KERNEL:
            event.at, event.happened, event.clamped = happened.at, happened.monotonic, happened.clamped
            event.take(line)
        elif event.instance is None:
            event.instance = line.instance

    def _unconfirmed(self, since: float, line: XidLine, source: str) -> Event | None:
        """Return the oldest event of this code, GPU and epoch that this source has not reported yet."""
        kind = (since, line.pci, line.code)
        same = (event for event in self._recent if (event.epoch, event.pci_bus_id, event.xid) == kind)
        return next((event for event in same if source not in event.witnesses), None)

    def _event(self, since: float, happened: Moment, line: XidLine, evidence: GpuEvidence | None) -> Event:
        xid = self._xids[line.code]
        about = (xid.mnemonic, xid.kind.value, xid.action.value, xid.meaning)
        event = Event(since, happened.at, line.pci, xid.code, *about)
        event.happened, event.clamped = happened.monotonic, happened.clamped
        if evidence:
            event.gpu, event.uuid = evidence.gpu.index, evidence.gpu.uuid
            if self._clocks().monotonic - happened.monotonic < FRESH_SECONDS:
                event.evidence = dict(evidence.values)
        return event

    def recent(self) -> list[dict[str, Any]]:
        """Return the last events, newest first."""
        with self._lock:
            self._now()
            events = sorted(self._recent, key=lambda event: event.happened, reverse=True)
            return [event.shown() for event in events]

    def problems(self) -> dict[str, list[Problem]]:
        """Return the XIDs that require a drain and are not repaired (a reboot, or `confirm_repair`), by PCI address."""
        with self._lock:
            self._now()
            tallies = self._counts.tallies.items()
            lasts = [(key[0], self._xids[key[1]], tally.last, self._repaired.get(key)) for key, tally in tallies]
        problems: dict[str, list[Problem]] = {}
        for pci, xid, last, repaired in lasts:
            if xid.drain and last.monotonic >= 0 and last.monotonic != repaired:  # since the node booted
                words = f"XID {xid.code}, and no repair since: {xid.meaning}"
                problems.setdefault(pci, []).append(Problem(m.XID_LAST, last.at, words, xid.action, f"xid_{xid.code}"))
        return problems

    def confirm_repair(self, pci: str) -> None:
        """Forget the problem of the XIDs of a GPU that is healthy otherwise, except for those of the last minutes."""
        with self._lock:
            before = self._now().monotonic - RECENT_SECONDS
            for key, tally in self._counts.tallies.items():
                if key[0] == pci and tally.last.monotonic <= before:
                    self._repaired[key] = tally.last.monotonic

    # --- clocks ---------------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        """Return the present time. If the wall clock was set back, correct times that are now in the future."""
        now = self._clocks()
        step = now.unix - now.monotonic - self._offset
        if abs(step) > SLACK_SECONDS:
            self._offset += step
            if step < 0:
                self._clamp(now)
        return now

    def _clamp(self, now: Now) -> None:
        clamped = 0
        tallies: list[Tally | SxidTally] = [*self._counts.tallies.values(), *self._counts.sxids.values()]
        for tally in tallies:
            if tally.last.at > now.unix:
                tally.last = Moment(_unix_time(tally.last.monotonic, now), tally.last.monotonic, clamped=True)
                self.changed = True
        for event in self._recent:
            if event.at > now.unix:
                event.at, event.clamped = _unix_time(event.happened, now), True
                clamped += 1
        if clamped:
            what = f"the clock of this node was set back: {clamped} XIDs had a time in the future"
            self._report(now, f"{what}; their times were corrected")

    def _report(self, now: Now, message: str) -> None:
        if now.monotonic - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now.monotonic
            log.warning("XIDs: %s", message)

    # --- metrics --------------------------------------------------------------------------------------------------

    def samples(self, gpus: Sequence[Gpu], nvml_up: bool, reporting: Collection[str] = ()) -> Sequence[MetricRow]:
        """Return the rows to expose, the same object until one of them changes. A GPU that a source watches has a
        counter of every drain code, from 0 on.

        `nvml_up`: whether NVML reports the XIDs of all GPUs; if not, only of those at the addresses `reporting`.
        """
        by_pci = _by_pci(gpus)
        watched = [pci for pci in by_pci if nvml_up or self.kernel_up or pci in reporting]
        with self._lock:
            counts = {(pci, code): 0 for pci in watched for code in self._xids.drain_codes}
            self._now()
            counts |= {key: tally.total for key, tally in self._counts.tallies.items()}
            lasts = {key: tally.last for key, tally in self._counts.tallies.items()}
            sxids = {key: (tally.count, tally.last.at) for key, tally in self._counts.sxids.items()}
        up = (nvml_up, self.kernel_up)
        shown = (by_pci, watched, counts, lasts, sxids, up, self.failed_writes, self.missed)
        if shown == self._shown:
            return self._rows
        rows: list[MetricRow] = []
        for (pci, code), count in counts.items():
            gpu, labels = by_pci.get(pci), self._labels(pci, code)
            rows.append((m.XID_EVENTS, gpu, count, labels))
            if (pci, code) in lasts:
                rows.append((m.XID_LAST, gpu, round(lasts[pci, code].at, 3), labels))
        for address in watched:
            by_code = {code: last.monotonic for (pci, code), last in lasts.items() if pci == address and code != OTHER}
            latest = max(by_code, key=by_code.__getitem__, default=0)
            rows.append((m.XID_ERRORS, by_pci[address], latest, self._error(latest)))
        for (pci, code, fatal), (number, last) in sxids.items():
            labels = {"pci_bus_id": pci, "sxid": label(code), "fatal": fatal}
            rows += [(m.SXID_EVENTS, None, number, labels), (m.SXID_LAST, None, round(last, 3), labels)]
        rows += [(m.WITNESS, None, is_up, {"witness": source}) for source, is_up in zip(XID_SOURCES, up, strict=True)]
        if self.failed_writes is not None:
            rows.append((m.UNSAVED, None, self.failed_writes, {}))
        self._shown, self._rows = shown, [*rows, (m.MISSED, None, self.missed, {})]
        return self._rows

    def as_dcgm_exporter(
        self,
        gpus: Sequence[Gpu],
        chosen: Collection[Metric],
        window: float,
        nvml_up: bool,
        reporting: Collection[str] = (),
    ) -> list[MetricRow]:
        """Return the `chosen` ones of `DCGM_EXP_XID_ERRORS_*`: XIDs of the last `window` seconds, and since the start.

        A GPU that a source watches, without an XID in the window, has a 0 without a code. Nothing is returned while no
        source is up. `nvml_up` and `reporting` are those of `samples`.
        """
        everywhere = nvml_up or self.kernel_up
        if not chosen or not (everywhere or reporting):
            return []
        by_pci = _by_pci(gpus)
        with self._lock:
            after = self._now().monotonic - window
            within = Counter(key for happened, key in self._times if happened > after)
            totals = {key: count for key, count in self._since_start.items() if count}
        rows: list[MetricRow] = []
        if m.EXP_XID_COUNT in chosen:
            size = {"window_size_in_ms": str(round(window * 1000))}
            quiet = by_pci.keys() - {pci for pci, _ in within}
            quiet = quiet if everywhere else quiet & {*reporting}
            rows += [(m.EXP_XID_COUNT, gpu, 0, size) for pci, gpu in by_pci.items() if pci in quiet]
            for (pci, code), count in within.items():
                if pci in by_pci:
                    rows.append((m.EXP_XID_COUNT, by_pci[pci], count, {**size, "xid": label(code)}))
        if m.EXP_XID_TOTAL in chosen:
            present = ((by_pci[pci], code, count) for (pci, code), count in totals.items() if pci in by_pci)
            rows += [(m.EXP_XID_TOTAL, gpu, count, {"xid": label(code)}) for gpu, code, count in present]
        return rows

    def _labels(self, pci: str, code: int) -> dict[str, str]:
        xid = self._xids[code]
        return {"pci_bus_id": pci, "xid": label(code), "kind": xid.kind.value, "action": xid.action.value}

    def _error(self, code: int) -> dict[str, str]:
        """The labels that dcgm-exporter has on the last code."""
        return {"err_code": str(code), "err_msg": self._xids[code].meaning if code else "No Error"}

    # --- over a restart ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what the next process needs to continue the counts, for JSON: a `State`."""
        with self._lock:
            now = self._now()
            recent = [asdict(event) for event in self._recent]
            for event in recent:
                event["epoch"] = _unix_time(event["epoch"], now)
                del event["happened"]
            return {
                "position": [self.position.origin, self.position.number] if self.position else None,
                "since": {pci: [_unix_time(since, now) for since in epochs] for pci, epochs in self._since.items()},
                "tallies": [
                    [
                        *key,
                        tally.earlier,
                        tally.last.at,
                        [[_unix_time(since, now), *n] for since, n in tally.epochs.items()],
                    ]
                    for key, tally in self._counts.tallies.items()
                ],
                "sxids": [[*key, tally.count, tally.last.at] for key, tally in self._counts.sxids.items()],
                "recent": recent,
            }

    def unwritten(self, settled: float) -> list[Event]:
        """Return the events of at least `settled` seconds ago that the history file does not contain yet."""
        with self._lock:
            before = self._now().monotonic - settled
            return [event for event in self._recent if not event.written and event.happened <= before]

    def take_written(self, others: Iterable[Event]) -> None:
        """Mark the events that another process, which reported the same ones, has written to the history."""
        with self._lock:
            own = [*self._recent]
            for other in others:
                same = next((place for place, event in enumerate(own) if event.is_same(other)), None)
                if same is not None and other.written:
                    own.pop(same).written = True

    def restore(self, state: SavedEvents) -> None:
        """Continue from a state. Times in the future become the present, and the limits on counts apply."""
        with self._lock:
            now = self._now()
            # Registrations keep their order and distances, so that no count changes.
            latest = max((since for epochs in state["since"].values() for since in epochs), default=0.0)
            shift = now.monotonic - max(now.unix, latest)
            self.position = LogPosition(*state["position"]) if state["position"] else None
            self._since = {pci: [since + shift for since in epochs] for pci, epochs in state["since"].items()}
            for pci, code, earlier, last, epochs in state["tallies"]:
                _, tally = self._counts.tally(pci, code, has_gpu=pci in self._since)
                shifted = {since and since + shift: (nvml, kernel) for since, nvml, kernel in epochs}
                tally.add_all(earlier, shifted, self._restored(last, now))
            for pci, code, fatal, number, last in state["sxids"]:
                sxid = self._counts.sxid((pci, code, fatal))
                sxid.count += number
                sxid.last = max(sxid.last, self._restored(last, now), key=lambda last: last.monotonic)
            for event in state["recent"]:
                event.epoch = event.epoch and event.epoch + shift
                event.at, event.happened, clamped = self._restored(event.at, now)
                event.clamped |= clamped
                self._recent.append(event)
                key = self._counts.key(event.pci_bus_id, event.xid, has_gpu=event.pci_bus_id in self._since)
                self._times.append((event.happened, key))

    def _restored(self, at: float, now: Now) -> Moment:
        restored = moment(at, now)
        if restored.clamped:
            self._report(now, "the saved state has times in the future; the present time is used")
        return restored


def _by_pci(gpus: Sequence[Gpu]) -> dict[str, Gpu]:
    return {pci_bus_id(gpu.pci_bus_id): gpu for gpu in gpus if gpu.pci_bus_id}


def _unix_time(monotonic: float, now: Now) -> float:
    """Return a monotonic time as unix time; 0, which is before every registration, stays 0."""
    return max(0.0, now.unix - (now.monotonic - monotonic)) if monotonic else 0.0
