"""The values of a series over time: shapes for a number of scrapes, and promtool's notation for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice

from gpu_exporter.catalogue.failure_modes.mode import Ramp, Wave

STEP = 30  # seconds between two scrapes

# A value at each scrape; a sequence is repeated.
Shape = float | Ramp | Wave | Sequence[float]


class Integral(tuple[Shape, float]):
    """A counter that grows by a shape times a factor each second."""


class Reboot:
    """No value, and counters start again at 0."""


REBOOT = Reboot()
Part = tuple[int, Shape | Integral | Reboot | None]


def scaled(shape: Shape | Integral, by: float) -> Shape | Integral:
    match shape:
        case Integral():
            return Integral((shape[0], shape[1] * by))
        case Ramp(start, slope):
            return Ramp(start * by, slope * by)
        case Wave(low, high, seconds):
            return Wave(low * by, high * by, seconds)
        case int() | float():
            return shape * by
    return [value * by for value in shape]


def notation(parts: Iterable[Part]) -> str:
    """Return values in promtool's notation; a counter continues from its last value."""
    texts, total, there = [], 0.0, False
    for steps, shape in parts:
        match shape:
            case Reboot() | None:
                total = 0.0 if shape else total
                texts.append(f"stale _x{steps - 1}" if there and steps > 1 else "stale" if there else f"_x{steps}")
            case Integral():
                text, total = _integral(*shape, steps, total)
                texts.append(text)
            case Ramp(start, slope):
                texts.append(_line(start, slope * STEP, steps))
            case int() | float():
                texts.append(_line(shape, 0.0, steps))
            case _:
                texts.append(" ".join(f"{value:.12g}" for value in each_value(shape, steps)))
        there = shape is not None and shape is not REBOOT
    return " ".join(texts)


def _line(start: float, step: float, steps: int) -> str:
    return f"{start:.12g}{step:+.12g}x{steps - 1}"


def each_value(shape: Wave | Sequence[float], steps: int) -> Iterator[float]:
    """A wave is much faster than scrapes and evaluations (every second scrape), which see both of its halves."""
    return islice(cycle((shape.low, shape.low, shape.high, shape.high) if isinstance(shape, Wave) else shape), steps)


def _integral(shape: Shape, factor: float, steps: int, total: float) -> tuple[str, float]:
    match shape:
        case int() | float():
            grown = shape * factor * STEP
            return _line(total + grown, grown, steps), total + grown * steps
        case Ramp():
            raise ValueError("the integral of a ramp is not needed")
    sums = []
    for value in each_value(shape, steps):
        total += value * factor * STEP
        sums.append(total)
    return " ".join(f"{value:.12g}" for value in sums), total
