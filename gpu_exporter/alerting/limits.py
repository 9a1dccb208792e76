"""The limits that users may set, and the numbers that they may set them to."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.conditions.tree import Limit, limits_of


def user_limits() -> tuple[Limit, ...]:
    """Return every limit that a user may set: those of conditions, and the prices."""
    return (*all_limits(), *PRICES)


def all_limits(modes: Sequence[FailureMode] = MODES) -> tuple[Limit, ...]:
    """Return every limit of the classes and of the modes, in their order."""
    found = [limit for each in BOTTLENECKS for limit in limits_of(each.condition)]
    return tuple(dict.fromkeys([*found, *(limit for mode in modes for limit in mode.all_limits)]))


def largest_of(of: Limit) -> float | None:
    """Return the largest number that a user may set a limit to; None if there is none. The least is 0."""
    return 1 if of.unit == "ratio" and of.value < 1 else None
