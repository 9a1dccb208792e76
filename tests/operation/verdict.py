"""What alerts said about a period, compared with what was true: detections with their delays, and false alerts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.diagnosis.incidents import PlacedMode, incidents
from tests.operation.fleet import Fleet, Truth
from tests.rules.shapes import STEP

# An alert may begin, or still fire, for so long after what it reports has ended: windows and `keep_firing_for`.
GRACE = 40 * 60
SEVERITIES = ("critical", "warning", "info")
BY_NAME = {mode.name: mode for mode in MODES}


@dataclass(frozen=True, slots=True)
class Firing:
    """One alert from when it fires to when it ends, in seconds; `node` and `gpu` are empty if it has none.

    `key` is all labels of the alert.
    """

    name: str
    severity: str
    node: str
    gpu: str
    start: float
    end: float
    key: tuple[tuple[str, str], ...] = ()

    @property
    def hours(self) -> float:
        """Return for how long it fired."""
        return (self.end - self.start) / 3600


def firings(lines: Iterable[str], end: float) -> list[Firing]:
    """Return the firings that virtual_clock wrote, in order of time."""
    open_since: dict[tuple[tuple[str, str], ...], float] = {}
    found = []
    for line in lines:
        event = json.loads(line)
        key = tuple(sorted(event["labels"].items()))
        if event["fires"]:
            open_since[key] = event["at"]
        else:
            found.append(_firing(key, open_since.pop(key), event["at"]))
    found += [_firing(key, start, end) for key, start in open_since.items()]
    return sorted(found, key=lambda each: each.start)


def joined(parts: Sequence[tuple[float, Sequence[Firing]]]) -> list[Firing]:
    """Return the firings of a period that was run in parts; each part has its start, and firings of before it.

    A firing that one part ends with and the next one begins with is one firing.
    """
    found: dict[tuple[tuple[str, str], ...], list[Firing]] = defaultdict(list)
    for start, of_part in parts:
        for firing in of_part:
            if firing.end <= start:
                continue
            of_alert = found[firing.key]
            if firing.start <= start and of_alert and of_alert[-1].end >= start:
                of_alert[-1] = replace(of_alert[-1], end=firing.end)
            else:
                of_alert.append(replace(firing, start=max(firing.start, start)))
    return sorted((each for of_alert in found.values() for each in of_alert), key=lambda each: each.start)


def _firing(key: tuple[tuple[str, str], ...], start: float, end: float) -> Firing:
    labels = dict(key)
    return Firing(
        labels["alertname"], labels["severity"], labels.get("node", ""), labels.get("gpu", ""), start, end, key
    )


def incidents_of(firings: Sequence[Firing]) -> list[Firing]:
    """Return the incidents of firings, in order of time: the first cause of each, from when it is one to its end.

    Their severity is that of the most urgent alert.
    """
    placed = {each: _placed(each) for each in firings}
    firing_of = {id(finding): firing for firing, finding in placed.items()}
    is_open: dict[tuple[str, ...], Firing] = {}
    found = []
    for at in sorted({at for each in firings for at in (each.start, each.end)}):
        now = {each.key: each for each in incidents([placed[each] for each in firings if each.start <= at < each.end])}
        found += [replace(is_open.pop(key), end=at) for key in is_open.keys() - now.keys()]
        for key, incident in now.items():
            first = is_open.get(key) or replace(firing_of[id(incident.causes[0])], start=at)
            urgent = min(first.severity, incident.severity.value, key=SEVERITIES.index)
            is_open[key] = replace(first, severity=urgent)
    return sorted(found, key=lambda each: each.start)


def _placed(firing: Firing) -> PlacedMode:
    return PlacedMode(replace(BY_NAME[firing.name], severity=Severity(firing.severity)), dict(firing.key))


class Row(NamedTuple):
    """The firings of one alert with one severity; `reasons` are what was true when it was right."""

    alert: str
    severity: str
    firings: int
    right: int
    repeated: int
    false: int
    hours: float
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Judged:
    """Firings or incidents, and what they report. One that is repeated reports what an earlier one has reported."""

    all: Sequence[Firing]
    false: Sequence[Firing]
    repeated: Sequence[Firing]
    reported: Mapping[Truth, Sequence[Firing]]

    def counts(self, severity: str) -> Mapping[str, int]:
        """Return how many of this severity are right, repeated and false."""
        every, repeated, false = (
            sum(each.severity == severity for each in part) for part in (self.all, self.repeated, self.false)
        )
        return {"all": every, "right": every - repeated - false, "repeated": repeated, "false": false}


def judged(fleet: Fleet, firings: Sequence[Firing]) -> Judged:
    """Judge firings or incidents by what was true."""
    seen: set[tuple[object, ...]] = set()
    reported: dict[Truth, list[Firing]] = defaultdict(list)
    false, repeated = [], []
    for firing in firings:
        truth = next((each for each in fleet.truths if _explains(each, firing)), None)
        if truth is None:
            false.append(firing)
            continue
        reported[truth].append(firing)
        key = (truth.what, truth.node, truth.start, firing.name, firing.gpu, firing.severity)
        if key in seen:
            repeated.append(firing)
        seen.add(key)
    return Judged(firings, false, repeated, reported)


@dataclass
class Verdict:
    """The judgement on a period: on its alerts, its incidents, and those of them that notify someone."""

    fleet: Fleet
    firings: Sequence[Firing]
    alerts: Judged = field(init=False)
    incidents: Judged = field(init=False)
    notifications: Judged = field(init=False)
    detections: list[tuple[Truth, str, float | None]] = field(default_factory=list)
    late: list[tuple[Truth, str]] = field(default_factory=list)
    ended_early: list[tuple[Truth, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        notifying = [each for each in self.firings if each.severity != Severity.INFO.value]
        self.alerts = judged(self.fleet, self.firings)
        self.incidents = judged(self.fleet, incidents_of(self.firings))
        self.notifications = judged(self.fleet, incidents_of(notifying))
        for truth in self.fleet.truths:
            for name in truth.must:
                self._detect(truth, name)

    def _detect(self, truth: Truth, name: str) -> None:
        start, end = truth.start * STEP, truth.end * STEP
        mine = [
            each
            for each in self.firings
            if each.name == name and _same_place(truth, each) and each.start <= end and each.end > start
        ]
        first = min((max(0.0, each.start - start) for each in mine), default=None)
        self.detections.append((truth, name, first))
        if first is not None and first > truth.within * 60 + self._interrupted(truth, name):
            self.late.append((truth, name))
        if truth.lasts and mine and max(each.end for each in mine) < min(end, self.fleet.total * STEP) - 300:
            self.ended_early.append((truth, name))

    def _interrupted(self, truth: Truth, name: str) -> float:
        """Return for how many seconds an alert may be late because of interruptions after its incident has begun.

        Failed scrapes delay it by their time. A Prometheus that stops forgets what it held if the condition is unknown
        when it starts again, because rates need two minutes: the hold begins anew.
        """
        first, last = truth.start, truth.start + truth.within * 60 / STEP
        hold = BY_NAME[name].hold
        stops = [end - start for start, end in self.fleet.stopped if first <= start <= last]
        failed = [
            length for node, start, length in self.fleet.silences if node == truth.node and first <= start <= last
        ]
        return (sum(stops) + sum(failed)) * STEP + (hold if stops else 0)

    @property
    def missed(self) -> list[tuple[Truth, str]]:
        """Return the incidents that no alert reported while they lasted."""
        return [(truth, name) for truth, name, delay in self.detections if delay is None]

    @property
    def injected(self) -> Mapping[tuple[str, int], Sequence[Firing]]:
        """Return the incidents that report each fault that was injected, by its node and its begin."""
        found: dict[tuple[str, int], list[Firing]] = defaultdict(list)
        for truth in self.fleet.truths:
            if truth.must:
                found[truth.node, truth.start] += self.incidents.reported.get(truth, ())
        return found

    @property
    def node_weeks(self) -> float:
        """Return the size of the period."""
        return len(self.fleet.nodes) * self.days / 7

    @property
    def days(self) -> float:
        """Return the length of what is judged."""
        return (self.fleet.total - self.fleet.first) * STEP / 86400

    def rows(self) -> list[Row]:
        """Return the firings of each alert, in order of severity and triage."""
        by, false, repeats = (_by_alert(each) for each in (self.firings, self.alerts.false, self.alerts.repeated))
        order = {mode.name: number for number, mode in enumerate(MODES)}
        reasons_of: dict[tuple[str, str], set[str]] = defaultdict(set)
        for truth, firings in self.alerts.reported.items():
            for firing in firings:
                reasons_of[firing.name, firing.severity].add("injected fault" if truth.within else truth.what)
        found = []
        for key in sorted(by, key=lambda key: (SEVERITIES.index(key[1]), order.get(key[0], 0))):
            wrong, again = len(false.get(key, ())), len(repeats.get(key, ()))
            hours = round(sum(each.hours for each in by[key]), 1)
            reasons = sorted(reasons_of.get(key, ()))
            found.append(Row(*key, len(by[key]), len(by[key]) - wrong - again, again, wrong, hours, reasons))
        return found

    def table(self) -> str:
        """Return firings by alert, and what was right, repeated and false."""
        head = f"{'alert':32}{'severity':10}{'firings':>8}{'right':>8}{'repeated':>9}{'false':>7}{'hours':>9}"
        lines = [
            f"{row.alert:32}{row.severity:10}{row.firings:8}{row.right:8}{row.repeated:9}{row.false:7}{row.hours:9.1f}"
            for row in self.rows()
        ]
        return "\n".join([head, *lines])

    def summary(self) -> Mapping[str, Any]:
        """Return the numbers for the documentation."""
        delays = sorted(delay for _, _, delay in self.detections if delay is not None)
        longest = max(self.detections, key=lambda each: each[2] or 0.0, default=None)
        return {
            "nodes": len(self.fleet.nodes),
            "gpus": len({(each.device.node, each.device.gpu) for each in self.fleet.timelines}),
            "from_day": round(self.fleet.first * STEP / 86400, 1),
            "days": round(self.days, 1),
            "injected": len(self.injected),
            "one_incident": sum(len(each) == 1 for each in self.injected.values()),
            "missed": [name for _, name in self.missed],
            "late": [name for _, name in self.late],
            "ended_early": [name for _, name in self.ended_early],
            "median_delay_minutes": round(delays[len(delays) // 2] / 60, 1) if delays else None,
            "longest_delay": [longest[1], round((longest[2] or 0.0) / 60, 1)] if longest else None,
            "longest_delays": {
                name: round(max(each or 0.0 for _, of, each in self.detections if of == name) / 60, 1)
                for name in dict.fromkeys(name for _, name, _ in self.detections)
            },
            "severities": {
                severity: {
                    "firings": self.alerts.counts(severity),
                    "incidents": self.incidents.counts(severity),
                    "notifications": self.notifications.counts(severity),
                }
                for severity in SEVERITIES
            },
            "alerts": [row._asdict() for row in self.rows()],
        }

    def delays(self) -> str:
        """Return each incident with the delay of its detection."""
        rows = []
        for truth, name, delay in sorted(self.detections, key=lambda each: each[0].start):
            shown = "missed" if delay is None else f"{delay / 60:.1f} min{', late' * ((truth, name) in self.late)}"
            rows.append(f"{truth.start * STEP / 86400:6.2f} d  {truth.node:10}{truth.what:32}{name:32}{shown}")
        return "\n".join(rows)


def _by_alert(firings: Iterable[Firing]) -> dict[tuple[str, str], list[Firing]]:
    found: dict[tuple[str, str], list[Firing]] = defaultdict(list)
    for firing in firings:
        found[firing.name, firing.severity].append(firing)
    return found


def _same_place(truth: Truth, firing: Firing) -> bool:
    if firing.node and firing.node != truth.node:
        return False
    return not firing.gpu or not truth.gpus or int(firing.gpu) in truth.gpus


def _explains(truth: Truth, firing: Firing) -> bool:
    if not truth.start * STEP <= firing.start <= truth.end * STEP + GRACE or not _same_place(truth, firing):
        return False
    names = (*truth.must, *truth.may)
    return firing.name in names or f"{firing.name}:{firing.severity}" in names
