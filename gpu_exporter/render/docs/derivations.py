"""How signals are derived from each other, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Derived, Signal


def derivation(of: Signal | Derived | float) -> str:
    """Return how a signal is derived from others."""
    match of:
        case Signal():
            return title(of)
        case Derived(left, operator, right):
            sides = (
                f"({derivation(side)})" if isinstance(side, Derived) else derivation(side) for side in (left, right)
            )
            return f" {operator} ".join(sides)
    return f"{of:.15g}"


def with_roots(signals: Iterable[Signal]) -> tuple[Signal, ...]:
    """Return the signals, each followed by those that it is derived from."""
    return tuple(dict.fromkeys(one for signal in signals for one in (signal, *_roots(signal))))


def _roots(side: Signal | Derived | float) -> Iterator[Signal]:
    match side:
        case Signal():
            for way in side.definitions:
                if isinstance(way, Derived):
                    yield from _roots(way)
        case Derived(left, _, right):
            for part in (left, right):
                if isinstance(part, Signal):
                    yield part
                yield from _roots(part)
