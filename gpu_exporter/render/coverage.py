"""Which signals and failure modes work with which exporter, and what a dcgm-exporter must be told to export. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.bottlenecks import CLASSES, NUMBER, Is
from gpu_exporter.catalogue.conditions import Also, And, Compare, Condition, Median, Or, Over, Share, Unless
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS, RENAMED
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope
from gpu_exporter.catalogue.signals import GR_ACTIVE, SIGNALS, Derived, Read, Signal
from gpu_exporter.model.metric import Kind, Metric, MetricSet

_CLASSIC: Mapping[str, Metric] = {row.name: row for row in reversed(m.METRICS) if row.name.startswith("DCGM_")}
_MODERN = frozenset(name for name, _ in RENAMED.values())
# How dcgm-exporter >= 4.9 ends a name that no classic one became.
_MODERN_ENDING = re.compile(r"_(SECONDS_TOTAL|BYTES_PER_SECOND)$")


class Works(IntEnum):
    """How much of a condition can be judged."""

    NO = 0
    PARTLY = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class Field:
    """A field that dcgm-exporter must export: a row of its CSV file."""

    name: str
    kind: Kind
    help: str


def generation(way: Read) -> str:
    """Who exposes what is read: "ours", "classic" (ours and dcgm-exporter <= 4.8) or "modern" (>= 4.9)."""
    if way.name.startswith("gpu_"):
        return "ours"
    return "modern" if way.name in _MODERN or _MODERN_ENDING.search(way.name) else "classic"


def reads(signal: Signal, which: str) -> tuple[Read, ...]:
    """What a signal is read from, the best first, in one generation; a name that 4.9 kept is in both."""
    return tuple(
        way for way in signal.made if isinstance(way, Read) and (generation(way) == which or _kept(way, which))
    )


def _kept(way: Read, which: str) -> bool:
    return which == "modern" and way.name in _CLASSIC and way.name not in RENAMED


def fields(which: str) -> tuple[Field, ...]:
    """What a dcgm-exporter of that generation ("classic" or "modern") must export: of each signal the best field."""
    found = {}
    for signal in SIGNALS:
        row = next((row for way in reads(signal, "classic") if (row := _CLASSIC.get(way.name)) and row.dcgm), None)
        if row is not None:
            name = RENAMED[row.name][0] if which == "modern" and row.name in RENAMED else row.name
            found[name] = Field(name, row.kind, row.help)
    return tuple(found.values())


def exposed(*, full: bool = False) -> frozenset[str]:
    """The names that we expose."""
    sets = {MetricSet.DEFAULT, MetricSet.FULL} if full else {MetricSet.DEFAULT}
    return frozenset(row.name for row in m.METRICS if row.set in sets)


DCGM_DEFAULT: frozenset[str] = DEFAULT_FIELDS
DCGM_OURS: frozenset[str] = frozenset(each.name for each in fields("classic"))


def has(signal: Signal | Derived | float, names: Collection[str]) -> bool:
    """Whether these series make the signal."""
    match signal:
        case Signal():
            return any(has_way(way, names) for way in signal.made)
        case Derived(left, _, right):
            return has(left, names) and has(right, names)
    return True


def has_way(way: Read | Derived, names: Collection[str]) -> bool:
    """Whether these series make one way to a signal."""
    return way.name in names if isinstance(way, Read) else has(way, names)


def works(mode: FailureMode, names: Collection[str]) -> Works:
    """Whether a mode can be seen with these series. What only a Prometheus knows, it knows of every exporter, unless it
    is what ours says of itself."""
    if exposed(full=True) & {name.partition("{")[0] for name in mode.inject.series} - set(names):
        return Works.NO
    if mode.fleet or mode.condition is None or mode.scope is Scope.FLEET:
        return Works.YES
    return _judged(mode.condition, names)


def _judged(condition: Condition, names: Collection[str]) -> Works:
    match condition:
        case Compare():
            return Works.YES if all(_known(term, names) for term in condition.terms()) else Works.NO
        case And():
            return min(_judged(each, names) for each in condition.conditions)
        case Or():
            arms = [_judged(each, names) for each in condition.conditions]
            return max(arms) if min(arms) else min(max(arms), Works.PARTLY)
        case Also(inner, _):
            return _judged(inner, names)
        case Unless(inner, other):
            return _unless(_judged(inner, names), _judged(other, names))
        case Is(name):
            # A class before it that can't be told is taken for this one.
            before = min(_judged(each.condition, names) for each in CLASSES[: NUMBER[name]])
            return _unless(_judged(CLASSES[NUMBER[name]].condition, names), before)
    raise TypeError(f"can't tell what {condition!r} needs")


def _unless(inner: Works, other: Works) -> Works:
    return inner if other is Works.YES else min(inner, Works.PARTLY)


def _known(term: Over | Share | Median, names: Collection[str]) -> bool:
    match term:
        case Over(signal):
            return has(signal, names)
        case Share(mark):
            return has(GR_ACTIVE, names) and _judged(mark.condition, names) is not Works.NO
        case Median(of, where):
            return has(of.signal, names) and _judged(where.condition, names) is not Works.NO
