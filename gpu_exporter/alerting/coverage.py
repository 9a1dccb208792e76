"""Which signals and failure modes work with which exporter, and the fields that a dcgm-exporter must export. Pure."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache
from io import StringIO

from gpu_exporter.alerting import banner
from gpu_exporter.catalogue import bottlenecks, job_signals, signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import DEFAULT_FIELDS, RENAMED
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope
from gpu_exporter.catalogue.signals import GR_ACTIVE, SIGNALS
from gpu_exporter.conditions.signal import Derived, Read, Signal
from gpu_exporter.conditions.tree import (
    And,
    Compare,
    Condition,
    Is,
    Leaf,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Unless,
    children,
    no_case,
    signals_of,
    terms,
)
from gpu_exporter.model.metric import Kind, Metric, MetricSet

_NAMES_4_8: Mapping[str, Metric] = {row.name: row for row in reversed(m.METRICS) if row.name.startswith("DCGM_")}
_NAMES_4_9 = frozenset(name for name, _ in RENAMED.values())
# The engine activity by profiling counters.
_PROFILING = frozenset(way.name for way in signals.APPROXIMATE.definitions if isinstance(way, Read))
# The endings of names that exist only since dcgm-exporter 4.9.
_ENDING_4_9 = re.compile(r"_(SECONDS_TOTAL|BYTES_PER_SECOND)$")


class Generation(Enum):
    """Where the name of a series comes from. gpu-exporter also exposes the names of dcgm-exporter up to 4.8."""

    GPU_EXPORTER = "gpu-exporter"
    DCGM_EXPORTER_4_8 = "dcgm-exporter up to 4.8"
    DCGM_EXPORTER_4_9 = "dcgm-exporter since 4.9"


class Detectability(IntEnum):
    """How much of a condition can be evaluated."""

    NO = 0
    PARTLY = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class Field:
    """A field that dcgm-exporter must export: a row of its CSV file."""

    name: str
    kind: Kind
    help: str


def generation(way: Read) -> Generation:
    """Return which exporter introduced the name of this series."""
    if way.name.startswith("gpu_"):
        return Generation.GPU_EXPORTER
    is_4_9 = way.name in _NAMES_4_9 or _ENDING_4_9.search(way.name)
    return Generation.DCGM_EXPORTER_4_9 if is_4_9 else Generation.DCGM_EXPORTER_4_8


def reads(signal: Signal, which: Generation) -> tuple[Read, ...]:
    """Return what a signal is read from in one generation, best first.

    A name that 4.9 kept is in both, and a series that rules record is in all.
    """
    return tuple(
        way
        for way in signal.definitions
        if isinstance(way, Read) and (generation(way) is which or _kept(way, which) or ":" in way.name)
    )


def _kept(way: Read, which: Generation) -> bool:
    return which is Generation.DCGM_EXPORTER_4_9 and way.name in _NAMES_4_8 and way.name not in RENAMED


def fields(which: Generation) -> tuple[Field, ...]:
    """Return the fields that a dcgm-exporter of this generation must export: the best one for each signal."""
    found = {}
    for signal in SIGNALS:
        candidates = reads(signal, Generation.DCGM_EXPORTER_4_8)
        row = next((row for way in candidates if (row := _NAMES_4_8.get(way.name)) and row.dcgm), None)
        if row is not None:
            name = RENAMED[row.name][0] if which is Generation.DCGM_EXPORTER_4_9 and row.name in RENAMED else row.name
            found[name] = Field(name, row.kind, row.help)
    return tuple(found.values())


@cache
def exposed(*, full: bool = False, host: bool = False, jobs: bool = False) -> frozenset[str]:
    """Return the names of the series that gpu-exporter exposes; with `host`, those of `--host-evidence`, too, and with
    `jobs` those of `--job-socket`."""
    optional = {MetricSet.FULL: full, MetricSet.HOST: host, MetricSet.JOB: jobs}
    sets = {MetricSet.DEFAULT, MetricSet.NIC, *(each for each, wanted in optional.items() if wanted)}
    return frozenset(row.name for row in m.METRICS if row.set in sets)


WITHOUT_PROFILING: frozenset[str] = exposed(full=True, host=True, jobs=True) - {row.name for row in m.PROFILING}
DCGM_DEFAULT: frozenset[str] = DEFAULT_FIELDS
DCGM_RECOMMENDED: frozenset[str] = frozenset(each.name for each in fields(Generation.DCGM_EXPORTER_4_8))


def can_compute(signal: Signal | Derived | float, names: Collection[str]) -> bool:
    """Return whether the signal can be computed from these series."""
    match signal:
        case Signal():
            return any(can_use(way, names) for way in signal.definitions)
        case Derived(left, _, right):
            return can_compute(left, names) and can_compute(right, names)
    return True


def can_use(way: Read | Derived, names: Collection[str]) -> bool:
    """Return whether one way to compute a signal needs only these series."""
    return way.name in names if isinstance(way, Read) else can_compute(way, names)


def detectability(mode: FailureMode, names: Collection[str]) -> Detectability:
    """Return how well a mode can be detected from these series.

    Modes that only Prometheus evaluates work with every exporter, unless they need gpu-exporter's own series.
    """
    if exposed(full=True, jobs=True) & set(map(_metric, mode.inject.series)) - set(names):
        return Detectability.NO
    if mode.fleet or mode.condition is None or mode.scope is Scope.FLEET:
        return Detectability.YES
    return _judged(mode.condition, names)


def _metric(series: str) -> str:
    """Return the name of the metric of a series, which may be a part of a histogram."""
    return re.sub("(_bucket|_sum|_count)?{.*", "", series)


def _judged(condition: Condition, names: Collection[str]) -> Detectability:
    match condition:
        case Compare():
            return Detectability.YES if all(_known(term, names) for term in terms(condition)) else Detectability.NO
        case And():
            return min(_judged(child, names) for child in condition.conditions)
        case Or():
            possible = [child for child in condition.conditions if not _is_false(child, names)]
            arms = [_judged(child, names) for child in possible] or [Detectability.YES]
            return max(arms) if min(arms) else min(max(arms), Detectability.PARTLY)
        case OrIfKnown():
            return _judged(condition.condition, names)
        case Unless():
            inner = _judged(condition.condition, names)
            # Without a training loop that says so, there is no such exception.
            optional = set(signals_of(condition.other)) <= set(job_signals.SIGNALS)
            return inner if optional else _unless(inner, _judged(condition.other, names))
        case Is():
            # An earlier class that cannot be determined may be mistaken for this one.
            before = min((_judged(earlier, names) for earlier in condition.before), default=Detectability.YES)
            return _unless(min(_judged(child, names) for child in children(condition)), before)
        case _:
            raise no_case(condition)


def _is_false(condition: Condition, names: Collection[str]) -> bool:
    """Return whether a condition is false of every GPU with profiling counters, and these are among the series."""
    match condition:
        case Compare():
            return condition is bottlenecks.APPROXIMATE and not _PROFILING.isdisjoint(names)
        case And():
            return any(_is_false(child, names) for child in condition.conditions)
        case Unless():
            return _is_false(condition.condition, names)
    return False


def _unless(inner: Detectability, other: Detectability) -> Detectability:
    return inner if other is Detectability.YES else min(inner, Detectability.PARTLY)


def _known(term: Leaf, names: Collection[str]) -> bool:
    match term:
        case Over():
            return can_compute(term.signal, names)
        case PeerShare():
            return can_compute(GR_ACTIVE, names) and _judged(term.mark.condition, names) is not Detectability.NO
        case PeerMedian() | PeerMean() | PeerMin():
            return can_compute(term.of.signal, names) and _judged(term.mark.condition, names) is not Detectability.NO
        case _:
            raise no_case(term)


# Describes the gauges of gpu-exporter, not those of dcgm-exporter.
WINDOW = ", mean over the gauge window"
HEAD = """\
# The fields of dcgm-exporter {versions} that the rules, alerts and dashboards of gpu-exporter need:
#   dcgm-exporter --collectors {file}
# This file replaces the default fields of dcgm-exporter; add any others that you use. An older version does not start
# with a field that it does not know ("could not find DCGM field"): delete the line. Alerts that need it never fire.
# The rates of PCIe and NVLink are gauges, despite their names: never apply rate() to them.
# DCGM FIELD, Prometheus metric type, help message
"""


def classic() -> str:
    """Return alerts/dcgm-exporter.csv: names up to 4.8."""
    return _file(Generation.DCGM_EXPORTER_4_8, "up to 4.8", "dcgm-exporter.csv")


def modern() -> str:
    """Return alerts/dcgm-exporter-4.9.csv: names from 4.9 on."""
    return _file(Generation.DCGM_EXPORTER_4_9, "from 4.9 on", "dcgm-exporter-4.9.csv")


def _file(which: Generation, versions: str, file: str) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((each.name, each.kind.value, each.help.replace(WINDOW, "")) for each in fields(which))
    return banner.comment(signals) + HEAD.format(versions=versions, file=file) + text.getvalue()
