"""Checks of the catalogue of failure modes. A faulty entry is an error at import that names its fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.conditions.tree import Limit, limits_of


def check(modes: Sequence[FailureMode]) -> None:
    """Raise ValueError, with the fix, if two modes, or two different limits, have the same name."""
    names: set[str] = set()
    for mode in modes:
        if mode.name in names:
            raise ValueError(f"catalogue/failure_modes: two modes are named {mode.name}: rename one")
        names.add(mode.name)
    seen: dict[str, tuple[Limit, str]] = {}
    for limit, place in _limits(modes):
        first, first_place = seen.setdefault(limit.name, (limit, place))
        if first.value != limit.value:
            raise ValueError(
                f"catalogue/failure_modes: limit {limit.name} is {first.value:g} in {first_place}"
                f" and {limit.value:g} in {place}: rename one"
            )
        if first != limit:
            raise ValueError(
                f"catalogue/failure_modes: limit {limit.name} has one unit or help in {first_place}"
                f" and another in {place}: rename one, or use the same Limit in both"
            )


def _limits(modes: Iterable[FailureMode]) -> Iterator[tuple[Limit, str]]:
    """Yield every limit with the name of the class, mode or table that has it."""
    for bottleneck in BOTTLENECKS:
        yield from ((limit, bottleneck.name) for limit in limits_of(bottleneck.condition))
    for mode in modes:
        yield from ((limit, mode.name) for limit in mode.all_limits)
    yield from ((limit, "PRICES") for limit in PRICES)
