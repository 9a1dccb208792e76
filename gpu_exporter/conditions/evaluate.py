"""Conditions and terms -> their values in Python, over a window of points, as Prometheus would evaluate them.

Each term and each condition is evaluated once for all devices of a window: `values` and `truths` return columns.
`value` and `holds` look one device up, and `evaluate` also says why a condition is true of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_, eq, ge, gt, itemgetter, le, lt, ne, or_
from typing import Any, Protocol

from gpu_exporter.conditions.averages import deviation, line, mean, means_of_others, median
from gpu_exporter.conditions.signal import OPERATORS, Signal
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Classification,
    Compare,
    Condition,
    Fn,
    Is,
    Leaf,
    Limit,
    Limits,
    Mark,
    NodeMax,
    OfBoard,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Term,
    Unless,
    children,
    no_case,
    terms,
)

Device = Hashable
Points = Sequence[tuple[float, float]]
# A value older than this does not count, as in Prometheus.
LOOKBACK_SECONDS = 300.0


class SignalWindow(Protocol):
    """The points of each signal of some devices until `now` (unix seconds), and which devices belong to the same
    job.

    `limits` are those that a user changed, by name. `memo` keeps columns, which several modes need.
    """

    now: float
    limits: Limits
    memo: dict[Hashable, Any]

    @property
    def presence(self) -> Signal:
        """The signal that every device has."""

    @property
    def devices(self) -> Collection[Device]:
        """All devices, in the order of the columns."""

    def by_device(self, signal: Signal) -> Mapping[Device, Points]:
        """Return (unix time, value) in order of time, of each device that has the signal."""

    def ranks(self, device: Device) -> Sequence[Device]:
        """Return all devices of the job that this one belongs to, itself included; empty without a job."""

    def alike(self, device: Device) -> Hashable:
        """Return what the devices of one model on one node have in common, and no other device has."""


_AGGREGATES: Mapping[Fn, Callable[[Sequence[float]], float]] = {
    Fn.MEAN: mean,
    Fn.MIN: min,
    Fn.MAX: max,
    Fn.STDDEV: deviation,
}
COMPARE: Mapping[str, Callable[[float, float], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le, "==": eq, "!=": ne}


# --- terms -----------------------------------------------------------------------------------------------------------


def value(of: Term, window: SignalWindow, device: Device) -> float | None:
    """Return the value of a term; None if it is unknown."""
    return values(of, window).get(device)


def values(of: Term, window: SignalWindow) -> Mapping[Device, float]:
    """Return the value of a term for each device of which it is known."""
    column: Mapping[Device, float] | None = window.memo.get(of)
    if column is None:
        column = window.memo[of] = {device: number for device, number in _values(of, window) if number is not None}
    return column


def _values(of: Term, window: SignalWindow) -> Iterator[tuple[Device, float | None]]:
    match of:
        case Over():
            yield from _over(of, window)
        case Calc():
            right = values(of.right, window)
            for device, number in values(of.left, window).items():
                if device in right:
                    yield device, _calculated(of.operator, number, right[device])
        case PeerShare():
            marks, engine = marked(of.mark, window), values(Over(window.presence), window)
            for ranks in _jobs(window):
                yield from _peer_shares(ranks, marks, engine)
        case PeerMedian() | PeerMin() | PeerMean():
            numbers = values(of.of, window)
            marks, engine = marked(of.mark, window), values(Over(window.presence), window)
            for ranks in _jobs(window):
                yield from _peer_statistics(of, ranks, numbers, marks, engine)
        case OfBoard():
            yield from _of_board(of, window)
        case NodeMax():
            yield from _node_max(values(of.of, window), window)
        case _:
            raise no_case(of)


def _over(of: Over, window: SignalWindow) -> Iterable[tuple[Device, float | None]]:
    """Return the value of a signal for each device that has it."""
    places, now, aggregate = _places(window), window.now, _AGGREGATES.get(of.fn)
    by_device = window.by_device(of.signal).items()
    if of.fn is Fn.LAST and not of.whole:
        return [(device, latest(points, now)) for device, points in by_device if device in places]
    return [(device, _signal_value(of, points, now, aggregate)) for device, points in by_device if device in places]


def latest(points: Points, t: float) -> float | None:
    """Return the last value until time t; None if that is too old."""
    place = _until(points, t)
    return points[place - 1][1] if place and t - points[place - 1][0] < LOOKBACK_SECONDS else None


def _until(points: Points, t: float) -> int:
    """Return how many points there are until time t: often none or all."""
    if not points or points[0][0] > t:
        return 0
    return len(points) if points[-1][0] <= t else bisect_right(points, t, key=itemgetter(0))


def _signal_value(
    of: Over, points: Points, now: float, aggregate: Callable[[Sequence[float]], float] | None
) -> float | None:
    """Return the value of a signal of one device; `aggregate` is that of its function, if it has one."""
    end = _until(points, now)
    if not end or now - points[end - 1][0] >= LOOKBACK_SECONDS:
        return None
    if of.whole and latest(points, now - of.window) is None:
        return None
    if of.fn is Fn.LAST:
        return points[end - 1][1]
    begin = _until(points, now - of.window)
    within = points[begin:end] if begin or end < len(points) else points
    match of.fn:
        case Fn.MEAN | Fn.MIN | Fn.MAX | Fn.STDDEV:
            return aggregate([number for _, number in within]) if aggregate and within else None
        case Fn.PREDICT:
            return _predict(within, now, of.ahead)
        case Fn.INCREASE:
            return points[end - 1][1] - min(number for _, number in within) if within else None
        case _:
            raise no_case(of.fn)


def _predict(points: Points, now: float, ahead: float) -> float | None:
    """Return the value on the least-squares line, as Prometheus' predict_linear does."""
    times = [t - now for t, _ in points]
    if len(set(times)) < 2:
        return None
    if len({number for _, number in points}) == 1:
        return points[0][1]
    slope, intercept = line(times, [number for _, number in points])
    return intercept + slope * ahead


def _calculated(operator: str, left: float, right: float) -> float | None:
    if operator == "/" and right == 0:
        return math.copysign(math.inf, left) if left else None
    return OPERATORS[operator](left, right)


def _of_board(of: OfBoard, window: SignalWindow) -> Iterator[tuple[Device, float]]:
    columns = [values(term, window) for term in of.of]
    for device in values(Over(window.presence), window):
        yield device, max((column[device] for column in columns if device in column), default=0.0)


def _node_max(numbers: Mapping[Device, float], window: SignalWindow) -> Iterator[tuple[Device, float]]:
    highest: dict[Hashable, float] = {}
    for device, number in numbers.items():
        group = window.alike(device)
        highest[group] = max(number, highest.get(group, number))
    yield from ((device, highest[window.alike(device)]) for device in numbers)


def _jobs(window: SignalWindow) -> Iterable[Sequence[Device]]:
    """Return the ranks of each job."""
    if "ranks" not in window.memo:
        all_ranks = (window.ranks(device) for device in window.devices)
        window.memo["ranks"] = {ranks[0]: ranks for ranks in all_ranks if ranks}
    jobs: Mapping[Device, Sequence[Device]] = window.memo["ranks"]
    return jobs.values()


def _peer_shares(
    ranks: Sequence[Device], marks: Collection[Device], engine: Collection[Device]
) -> Iterator[tuple[Device, float]]:
    active = [rank for rank in ranks if rank in engine]
    total = sum(rank in marks for rank in active)
    if len(active) > 1:
        for rank in active:
            yield rank, (total - (rank in marks)) / (len(active) - 1)


def _peer_statistics(
    of: PeerMedian | PeerMin | PeerMean,
    ranks: Sequence[Device],
    numbers: Mapping[Device, float],
    marks: Collection[Device],
    engine: Collection[Device],
) -> Iterator[tuple[Device, float]]:
    counted = [(rank, numbers[rank]) for rank in ranks if rank in marks and rank in numbers]
    if not counted:
        return
    if not isinstance(of, PeerMean):
        statistic = (min if isinstance(of, PeerMin) else median)([number for _, number in counted])
        yield from ((rank, statistic) for rank in ranks if rank in numbers)
        return
    # For a rank that does not count, the others are all that do.
    usual = mean([number for _, number in counted])
    yield from ((rank, usual) for rank in ranks if rank in numbers and rank in engine and rank not in marks)
    others = means_of_others([number for _, number in counted])
    yield from ((rank, of_others) for (rank, _), of_others in zip(counted, others, strict=False))


def marked(mark: Mark, window: SignalWindow) -> Collection[Device]:
    """Return the devices of which a mark is known to be true, and the engine activity known."""
    if mark not in window.memo:
        engine, column = values(Over(window.presence), window), truths(mark.condition, window)
        devices = zip(window.devices, column, strict=True)
        window.memo[mark] = {device for device, truth in devices if truth == TRUE and device in engine}
    devices_marked: Collection[Device] = window.memo[mark]
    return devices_marked


# --- conditions ------------------------------------------------------------------------------------------------------

# The truth of a device is one byte of a column. For these three, `&` and `|` are Kleene's "and" and "or".
FALSE, UNKNOWN, TRUE = 0b00, 0b01, 0b11
_AS_BOOL = {FALSE: False, UNKNOWN: None, TRUE: True}
# For bytes.translate: what is unknown counts as false.
_IF_TRUE = bytes(TRUE if truth == TRUE else FALSE for truth in range(256))
_UNLESS_TRUE = bytes(FALSE if truth == TRUE else TRUE for truth in range(256))

# The values of terms, in order.
TermValues = Mapping[Leaf, float]


def because(condition: Condition, window: SignalWindow, device: Device) -> TermValues:
    """Return the values of the terms that make a condition true of a device; of a maximum, those that reach it.

    Alternatives that are not true, and exceptions, are left out.
    """
    deciding = ((compare, term) for compare in _deciding(condition, window, device) for term in terms(compare))
    found = ((compare.left, term, value(term, window, device)) for compare, term in deciding)
    return {
        term: number
        for left, term, number in found
        if number is not None and not (isinstance(left, OfBoard) and number < (value(left, window, device) or 0.0))
    }


def _deciding(of: Condition, window: SignalWindow, device: Device) -> Iterator[Compare]:
    """Yield the comparisons that make a condition true, which it is."""
    if isinstance(of, Compare):
        yield of
        return
    for child in (of.condition,) if isinstance(of, Unless) else children(of):
        if holds(child, window, device):
            yield from _deciding(child, window, device)


def holds(condition: Condition, window: SignalWindow, device: Device) -> bool | None:
    """Return whether a condition is true of a device; None if that is unknown."""
    return _AS_BOOL[truths(condition, window)[_places(window)[device]]]


def truths(of: Condition, window: SignalWindow) -> bytes:
    """Return whether a condition is true of each device: FALSE, UNKNOWN or TRUE, in the order of the devices."""
    column: bytes | None = window.memo.get(of)
    if column is None:
        column = window.memo[of] = _decided(of, window)
    return column


def _decided(of: Condition, window: SignalWindow) -> bytes:
    match of:
        case Compare():
            return _compared(of, window)
        case And():
            return _joined(and_, [truths(child, window) for child in of.conditions])
        case Or():
            return _joined(or_, [truths(child, window) for child in of.conditions])
        case OrIfKnown():
            return _joined(or_, [truths(of.condition, window), truths(of.other, window).translate(_IF_TRUE)])
        case Unless():
            return _joined(and_, [truths(of.condition, window), truths(of.other, window).translate(_UNLESS_TRUE)])
        case Is():
            names = classes(of.classification, window)
            return bytes(UNKNOWN if name is None else TRUE if name == of.name else FALSE for name in names)
        case _:
            raise no_case(of)


def _compared(of: Compare, window: SignalWindow) -> bytes:
    places, compare, limit, left = _places(window), COMPARE[of.operator], _limit(of, window), values(of.left, window)
    if limit is not None and len(left) == len(places) and [*left] == [*places]:
        return bytes([TRUE if compare(number, limit) else FALSE for number in left.values()])
    right = {} if limit is not None else bounds(of, window)
    column = bytearray([UNKNOWN]) * len(places)
    for device, number in left.items():
        bound = right.get(device) if limit is None else limit
        if bound is not None:
            column[places[device]] = TRUE if compare(number, bound) else FALSE
    return bytes(column)


def _limit(of: Compare, window: SignalWindow) -> float | None:
    """Return what the left side of each device is compared with; None if that is a value of the device."""
    right = of.right
    if isinstance(right, Limit):
        right = window.limits.get(right.name, right.value)
    return right if isinstance(right, float | int) else None


def bounds(of: Compare, window: SignalWindow) -> Mapping[Device, float]:
    """Return what the left side is compared with, for each device of which it is known."""
    limit = _limit(of, window)
    if limit is not None:
        return dict.fromkeys(window.devices, limit)
    assert not isinstance(of.right, float | int | Limit)
    return values(of.right, window)


def _joined(operator: Callable[[int, int], int], columns: Sequence[bytes]) -> bytes:
    """Return the columns joined by an operation on bits, which is done for all devices at once."""
    joined = reduce(operator, (int.from_bytes(column, "little") for column in columns))
    return joined.to_bytes(len(columns[0]), "little")


def classes(of: Classification, window: SignalWindow) -> Sequence[str | None]:
    """Return for each device the first class whose condition is known to be true, unless none counts."""
    if of not in window.memo:
        columns = (truths(condition, window) for condition in of.conditions.values())
        by_place, excepted = [*of.conditions, None], truths(of.unless, window)
        window.memo[of] = [
            None if truth == TRUE else by_place[(*row, TRUE).index(TRUE)]
            for truth, *row in zip(excepted, *columns, strict=True)
        ]
    names: Sequence[str | None] = window.memo[of]
    return names


def _places(window: SignalWindow) -> Mapping[Device, int]:
    """Return the place of each device in a column."""
    if "places" not in window.memo:
        window.memo["places"] = {device: place for place, device in enumerate(window.devices)}
    places: Mapping[Device, int] = window.memo["places"]
    return places
