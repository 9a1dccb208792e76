"""Conditions and terms -> their values in Python, over a window of points, as Prometheus would evaluate them.

`evaluate` is the entry for a condition, `holds` that for its truth alone. Only `_decide` distinguishes kinds of
conditions.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import eq, ge, gt, itemgetter, le, lt, ne
from typing import Any, NamedTuple, Protocol, TypeVar

from gpu_exporter.conditions.averages import deviation, line, mean, median
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
    OfBoard,
    OfRanks,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Term,
    Unless,
    no_case,
    required_signals,
    terms,
)

T = TypeVar("T")
Device = Hashable
Points = Sequence[tuple[float, float]]
# A value older than this does not count, as in Prometheus.
LOOKBACK_SECONDS = 300.0


class SignalWindow(Protocol):
    """The points of each signal of some devices until `now` (unix seconds), and which devices belong to the same
    job.

    `limits` are those that a user changed, by name. `memo` keeps computed values, which several modes need.
    """

    now: float
    limits: Limits
    memo: dict[Hashable, Any]

    @property
    def presence(self) -> Signal:
        """The signal that every device has."""

    def points(self, device: Device, signal: Signal) -> Points:
        """Return (unix time, value) in order of time; empty if the signal of this device is not known."""

    def ranks(self, device: Device) -> Sequence[Device]:
        """Return all devices of the job that this one belongs to, itself included; empty without a job."""


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
    match of:
        case Over():
            key = (of, device)
            try:  # a single lookup: most of the work is to hash the key
                number: float | None = window.memo[key]
            except KeyError:
                number = window.memo[key] = _signal_value(of, window, device)
            return number
        case Calc():
            return _calculated(of, window, device)
        case PeerShare():
            return _peer_share(of, window, device)
        case PeerMedian() | PeerMin():
            return _peer_statistic(of, window, device)
        case PeerMean():
            return _peer_mean(of, window, device)
        case OfBoard():
            return _of_board(of, window, device)
        case _:
            raise no_case(of)


def latest(points: Points, t: float) -> float | None:
    """Return the last value until time t; None if that is too old."""
    place = bisect_right(points, t, key=itemgetter(0))
    return points[place - 1][1] if place and t - points[place - 1][0] < LOOKBACK_SECONDS else None


def _signal_value(of: Over, window: SignalWindow, device: Device) -> float | None:
    points, now = window.points(device, of.signal), window.now
    last = latest(points, now)
    if last is None or (of.whole and latest(points, now - of.window) is None):
        return None
    first, end = (bisect_right(points, t, key=itemgetter(0)) for t in (now - of.window, now))
    within = points[first:end]
    match of.fn:
        case Fn.LAST:
            return last
        case Fn.PREDICT:
            return _predict(within, now, of.ahead)
        case Fn.INCREASE:
            return last - min(number for _, number in within) if within else None
        case Fn.MEAN | Fn.MIN | Fn.MAX | Fn.STDDEV:
            return _AGGREGATES[of.fn]([number for _, number in within]) if within else None
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


def _calculated(of: Calc, window: SignalWindow, device: Device) -> float | None:
    left, right = value(of.left, window, device), value(of.right, window, device)
    if left is None or right is None:
        return None
    if of.operator == "/" and right == 0:
        return math.copysign(math.inf, left) if left else None
    return OPERATORS[of.operator](left, right)


def _of_board(of: OfBoard, window: SignalWindow, device: Device) -> float | None:
    if not _has_engine_activity(window, device):
        return None
    numbers = (value(term, window, device) for term in of.of)
    return max((number for number in numbers if number is not None), default=0.0)


def _peer_share(of: PeerShare, window: SignalWindow, device: Device) -> float | None:
    if not _has_engine_activity(window, device):
        return None
    active, total = _of_job(of, window, device, lambda ranks: _active_and_marked(of.mark, window, ranks))
    others, of_others = active - 1, total - marked(of.mark, window, device)
    return of_others / others if others > 0 else None


def _active_and_marked(mark: Mark, window: SignalWindow, ranks: Iterable[Device]) -> tuple[int, int]:
    """Return how many ranks have a known engine activity, and for how many of these the mark is true."""
    marks = [marked(mark, window, rank) for rank in ranks if _has_engine_activity(window, rank)]
    return len(marks), sum(marks)


def _peer_statistic(of: PeerMedian | PeerMin, window: SignalWindow, device: Device) -> float | None:
    if value(of.of, window, device) is None:
        return None
    statistic = min if isinstance(of, PeerMin) else median
    return _of_job(of, window, device, lambda ranks: _statistic(statistic, _marked_values(of, window, ranks)))


def _peer_mean(of: PeerMean, window: SignalWindow, device: Device) -> float | None:
    if value(of.of, window, device) is None or not _has_engine_activity(window, device):
        return None
    if not marked(of.mark, window, device):  # then the others are all that count, and their mean is that of each
        return _of_job(of, window, device, lambda ranks: _statistic(mean, _marked_values(of, window, ranks)))
    others = (rank for rank in window.ranks(device) if rank != device)
    return _statistic(mean, _marked_values(of, window, others))


def _statistic(of: Callable[[Sequence[float]], float], numbers: Iterable[float]) -> float | None:
    known = [*numbers]
    return of(known) if known else None


def _of_job(of: Term, window: SignalWindow, device: Device, result: Callable[[Sequence[Device]], T]) -> T:
    """Return a result of all ranks, which is computed once for a job: it may have thousands of ranks."""
    ranks = window.ranks(device)
    key = (of, "job", ranks[0] if ranks else None)
    if key not in window.memo:
        window.memo[key] = result(ranks)
    found: T = window.memo[key]
    return found


def _marked_values(of: OfRanks, window: SignalWindow, ranks: Iterable[Device]) -> Iterator[float]:
    """Yield the values of those ranks for which the mark is true."""
    for rank in ranks:
        if marked(of.mark, window, rank) and (number := value(of.of, window, rank)) is not None:
            yield number


def marked(mark: Mark, window: SignalWindow, device: Device) -> bool:
    """Return whether a mark is known to be true of a device whose engine activity is known."""
    key = (mark, device)
    if key not in window.memo:
        window.memo[key] = _has_engine_activity(window, device) and holds(mark.condition, window, device) is True
    return bool(window.memo[key])


def _has_engine_activity(window: SignalWindow, device: Device) -> bool:
    return value(Over(window.presence), window, device) is not None


# --- conditions ------------------------------------------------------------------------------------------------------

# The values of terms, in order.
TermValues = Mapping[Leaf, float]
# Whether a condition is true, None if that is unknown; if it is true, the comparisons that make it so, in order.
_Decision = tuple[bool | None, tuple[Compare, ...]]
_FALSE: _Decision = (False, ())
_UNKNOWN: _Decision = (None, ())


class Evaluation(NamedTuple):
    """Whether a condition is true of a device, and why.

    `truth` is None if that is unknown. `because` are the values of the terms that make it true, without alternatives
    that are not true and without exceptions; empty unless it is true. `missing` are the signals that it requires and
    the device does not have; empty unless it is unknown.
    """

    truth: bool | None
    because: TermValues
    missing: tuple[Signal, ...]


def evaluate(condition: Condition, window: SignalWindow, device: Device) -> Evaluation:
    """Return whether a condition is true of a device, which values make it so, and which signals are missing."""
    truth, deciding = _decide(condition, window, device)
    because = _values(deciding, window, device) if deciding else {}
    missing = [] if truth is not None else [s for s in required_signals(condition) if not window.points(device, s)]
    return Evaluation(truth, because, tuple(missing))


def _values(deciding: Iterable[Compare], window: SignalWindow, device: Device) -> TermValues:
    """Return the values of the terms of comparisons that are true; of a maximum, those that reach it."""
    values = ((compare, term, value(term, window, device)) for compare in deciding for term in terms(compare))
    return {
        term: number
        for compare, term, number in values
        if number is not None
        and not (isinstance(compare.left, OfBoard) and number < (value(compare.left, window, device) or 0.0))
    }


def holds(condition: Condition, window: SignalWindow, device: Device) -> bool | None:
    """Return whether a condition is true of a device; None if that is unknown."""
    return _decide(condition, window, device)[0]


def class_of(of: Classification, window: SignalWindow, device: Device) -> str | None:
    """Return the name of the first class whose condition is known to be true; None if none is, or if none counts."""
    return _first_class(of, window, device)[0]


def _decide(of: Condition, window: SignalWindow, device: Device) -> _Decision:
    """Return whether a condition is true of a device, and the comparisons that make it so."""
    match of:
        case Compare():
            left, right = value(of.left, window, device), bound(of, window, device)
            if left is None or right is None:
                return _UNKNOWN
            return (True, (of,)) if COMPARE[of.operator](left, right) else _FALSE
        case And():
            return _all(of, window, device)
        case Or():
            return _any([_decide(child, window, device) for child in of.conditions])
        case OrIfKnown():
            inner, other = _decide(of.condition, window, device), _decide(of.other, window, device)
            return _any((inner, other)) if other[0] else inner
        case Unless():
            inner = _decide(of.condition, window, device)
            return _FALSE if inner[0] is False or _decide(of.other, window, device)[0] else inner
        case Is():
            name, deciding = _first_class(of.classification, window, device)
            return _UNKNOWN if name is None else (True, deciding) if name == of.name else _FALSE
        case _:
            raise no_case(of)


def bound(of: Compare, window: SignalWindow, device: Device) -> float | None:
    """Return the value that the left side is compared with."""
    right = of.right
    if isinstance(right, Limit):
        return window.limits.get(right.name, right.value)
    return right if isinstance(right, float | int) else value(right, window, device)


def _all(of: And, window: SignalWindow, device: Device) -> _Decision:
    """Return the decision of all conditions; those after one that is false are not evaluated."""
    deciding: tuple[Compare, ...] = ()
    unknown = False
    for child in of.conditions:
        truth, own = _decide(child, window, device)
        if truth is False:
            return _FALSE
        unknown, deciding = unknown or truth is None, deciding + own
    return _UNKNOWN if unknown else (True, deciding)


def _any(decisions: Sequence[_Decision]) -> _Decision:
    """Return the decision that at least one is true; all that are true decide it."""
    truths = [truth for truth, _ in decisions]
    if True in truths:
        return True, tuple(compare for _, deciding in decisions for compare in deciding)
    return _UNKNOWN if None in truths else _FALSE


def _first_class(of: Classification, window: SignalWindow, device: Device) -> tuple[str | None, tuple[Compare, ...]]:
    """Return the first class whose condition is known to be true, and the comparisons that make it so."""
    key = (of, device)
    if key not in window.memo:
        conditions = {} if holds(of.unless, window, device) else of.conditions
        decisions = ((name, _decide(condition, window, device)) for name, condition in conditions.items())
        window.memo[key] = next(((name, deciding) for name, (truth, deciding) in decisions if truth), (None, ()))
    first: tuple[str | None, tuple[Compare, ...]] = window.memo[key]
    return first
