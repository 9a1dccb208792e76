"""The limits of all conditions and time shares, and what each is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.condition_walks import comparisons, limits_of, marks_of
from gpu_exporter.catalogue.conditions import Compare, Condition, Limit
from gpu_exporter.catalogue.distributions import Within
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.formulas import parts
from gpu_exporter.catalogue.signal import Read
from gpu_exporter.catalogue.time_shares import TIME_SHARES

# The edge of the histogram that the signal `sm_idle` is computed from is fixed, too, but is no limit that users change.
IDLE_EDGE = "edge of sm_idle"


def conditions() -> Iterator[tuple[str, Condition]]:
    """Yield all conditions of classes, failure modes and time shares, with their names."""
    yield from ((each.name, each.condition) for each in BOTTLENECKS)
    yield from ((mode.name, mode.condition) for mode in MODES if mode.condition)
    for cause, share in TIME_SHARES.items():
        yield from ((f"time share {cause.value}", part) for part in parts(share) if isinstance(part, Condition))


def all_comparisons(condition: Condition) -> Iterator[Compare]:
    """Yield the comparisons of a condition and of the marks that it reads on other ranks."""
    for compare in comparisons(condition):
        yield compare
        for mark in marks_of(compare):
            yield from all_comparisons(mark.condition)


def limits() -> Mapping[str, Limit]:
    """Return every limit that a condition or a time share reads, by name."""
    compared = (limit for _, condition in conditions() for limit in limits_of(condition))
    computed = (part for share in TIME_SHARES.values() for part in parts(share) if isinstance(part, Limit))
    return {limit.name: limit for limit in (*compared, *computed)}


def fixed_numbers() -> Mapping[str, float]:
    """Return the values that expectations refer to: the limits, and the edge that is part of a signal."""
    (edge,) = (
        way.shape.edge for way in s.SM_IDLE.definitions if isinstance(way, Read) and isinstance(way.shape, Within)
    )
    return {IDLE_EDGE: edge, **{name: limit.value for name, limit in limits().items()}}
