"""Which signals and failure modes work with which exporter, and which fields a dcgm-exporter must export. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.conditions import (
    And,
    Compare,
    Condition,
    Is,
    Leaf,
    Or,
    OrIfKnown,
    Over,
    PeerMedian,
    PeerShare,
    Unless,
    children,
    no_case,
    terms,
)
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS, RENAMED
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope
from gpu_exporter.catalogue.signal import Derived, Read, Signal
from gpu_exporter.catalogue.signals import GR_ACTIVE, SIGNALS
from gpu_exporter.model.metric import Kind, Metric, MetricSet

_CLASSIC: Mapping[str, Metric] = {row.name: row for row in reversed(m.METRICS) if row.name.startswith("DCGM_")}
_MODERN = frozenset(name for name, _ in RENAMED.values())
# The endings of names that exist only since dcgm-exporter 4.9.
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
    """Return which exporter exposes this series: "ours" (gpu-exporter), "classic" (gpu-exporter and dcgm-exporter up to
    4.8) or "modern" (dcgm-exporter since 4.9).
    """
    if way.name.startswith("gpu_"):
        return "ours"
    return "modern" if way.name in _MODERN or _MODERN_ENDING.search(way.name) else "classic"


def reads(signal: Signal, which: str) -> tuple[Read, ...]:
    """Return what a signal is read from in one generation, best first; a name that 4.9 kept is in both."""
    return tuple(
        way for way in signal.made if isinstance(way, Read) and (generation(way) == which or _kept(way, which))
    )


def _kept(way: Read, which: str) -> bool:
    return which == "modern" and way.name in _CLASSIC and way.name not in RENAMED


def fields(which: str) -> tuple[Field, ...]:
    """Return the fields that dcgm-exporter of that generation ("classic" or "modern") must export: the best one for
    each signal.
    """
    found = {}
    for signal in SIGNALS:
        row = next((row for way in reads(signal, "classic") if (row := _CLASSIC.get(way.name)) and row.dcgm), None)
        if row is not None:
            name = RENAMED[row.name][0] if which == "modern" and row.name in RENAMED else row.name
            found[name] = Field(name, row.kind, row.help)
    return tuple(found.values())


def exposed(*, full: bool = False) -> frozenset[str]:
    """Return the names of the series that gpu-exporter exposes."""
    sets = {MetricSet.DEFAULT, MetricSet.FULL} if full else {MetricSet.DEFAULT}
    return frozenset(row.name for row in m.METRICS if row.set in sets)


DCGM_DEFAULT: frozenset[str] = DEFAULT_FIELDS
DCGM_OURS: frozenset[str] = frozenset(each.name for each in fields("classic"))


def has(signal: Signal | Derived | float, names: Collection[str]) -> bool:
    """Return whether the signal can be computed from these series."""
    match signal:
        case Signal():
            return any(has_way(way, names) for way in signal.made)
        case Derived(left, _, right):
            return has(left, names) and has(right, names)
    return True


def has_way(way: Read | Derived, names: Collection[str]) -> bool:
    """Return whether one way to compute a signal needs only these series."""
    return way.name in names if isinstance(way, Read) else has(way, names)


def works(mode: FailureMode, names: Collection[str]) -> Works:
    """Return how well a mode can be detected from these series.

    Modes that only Prometheus evaluates work with every exporter, unless they need gpu-exporter's own series.
    """
    if exposed(full=True) & {name.partition("{")[0] for name in mode.inject.series} - set(names):
        return Works.NO
    if mode.fleet or mode.condition is None or mode.scope is Scope.FLEET:
        return Works.YES
    return _judged(mode.condition, names)


def _judged(condition: Condition, names: Collection[str]) -> Works:
    match condition:
        case Compare():
            return Works.YES if all(_known(term, names) for term in terms(condition)) else Works.NO
        case And():
            return min(_judged(child, names) for child in condition.conditions)
        case Or():
            arms = [_judged(child, names) for child in condition.conditions]
            return max(arms) if min(arms) else min(max(arms), Works.PARTLY)
        case OrIfKnown():
            return _judged(condition.condition, names)
        case Unless():
            return _unless(_judged(condition.condition, names), _judged(condition.other, names))
        case Is():
            # An earlier class that cannot be determined may be mistaken for this one.
            before = min((_judged(earlier, names) for earlier in condition.before), default=Works.YES)
            return _unless(min(_judged(child, names) for child in children(condition)), before)
        case _:
            raise no_case(condition)


def _unless(inner: Works, other: Works) -> Works:
    return inner if other is Works.YES else min(inner, Works.PARTLY)


def _known(term: Leaf, names: Collection[str]) -> bool:
    match term:
        case Over():
            return has(term.signal, names)
        case PeerShare():
            return has(GR_ACTIVE, names) and _judged(term.mark.condition, names) is not Works.NO
        case PeerMedian():
            return has(term.of.signal, names) and _judged(term.mark.condition, names) is not Works.NO
        case _:
            raise no_case(term)
