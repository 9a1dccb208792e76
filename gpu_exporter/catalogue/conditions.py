"""Conditions on signals: one tree that renders to PromQL and evaluates in Python, so that the two can't disagree.

A condition is true, false or unknown (Kleene's logic). In PromQL it is a filter: it returns the devices for which it is
true, and no others, whether it is false or unknown for them. A device is one set of labels on each signal.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import eq, ge, gt, itemgetter, le, lt, ne
from typing import Any, Protocol

from gpu_exporter.catalogue.signals import GR_ACTIVE, JOB, OPERATORS, OWNER, Signal

Device = Hashable
Points = Sequence[tuple[float, float]]
Limits = Mapping[str, float]
# A value older than this is none, as in Prometheus.
LOOKBACK_SECONDS = 300.0


class Evidence(Protocol):
    """What was seen of some devices until `now` (unix seconds): the points of each signal, and who works with whom.

    `limits` are those that a user changed, by name. `memo` keeps what was computed: one mode needs what another does.
    """

    now: float
    limits: Limits
    memo: dict[Hashable, Any]

    def points(self, device: Device, signal: Signal) -> Points:
        """(unix time, value) in order of time; empty if the signal is not known of this device."""

    def ranks(self, device: Device) -> Sequence[Device]:
        """All devices of the job that this one belongs to, itself included; empty without a job."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that a user may change: `name` is its key in the chart's values."""

    name: str
    value: float
    unit: str
    help: str


class Fn(Enum):
    """What is made of a signal over a window."""

    LAST = "last"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STDDEV = "stddev"
    INCREASE = "increase"
    PREDICT = "predict"
    AGE = "age"


_AGGREGATES: Mapping[Fn, tuple[str, Callable[[Sequence[float]], float]]] = {
    Fn.MEAN: ("avg_over_time", statistics.fmean),
    Fn.MIN: ("min_over_time", min),
    Fn.MAX: ("max_over_time", max),
    Fn.STDDEV: ("stddev_over_time", statistics.pstdev),
}


class Term(Protocol):
    """A number for each device, or none."""

    def promql(self) -> str:
        """On recorded signals and their recorded windows."""

    def value(self, evidence: Evidence, device: Device) -> float | None:
        """The number; None if it is not known."""

    def parts(self) -> Iterator[Over | Share | Median]:
        """The terms it is made of that are recorded or read signals."""


def duration(seconds: float) -> str:
    """As PromQL and rule names write it: 5m."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


@dataclass(frozen=True, slots=True)
class Over:
    """A signal over the last `window` seconds. `whole`: only if it was there at the beginning of the window already.

    `INCREASE` is what a counter has grown since its lowest value in the window, so a reset is no loss of it; `PREDICT`
    is where a straight line through the window leads in `ahead` seconds; `AGE` is now less a timestamp. `bare` leaves
    namespace, pod and workload out, for conditions on the health of a device.
    """

    signal: Signal
    fn: Fn = Fn.LAST
    window: float = 0.0
    ahead: float = 0.0
    whole: bool = False
    bare: bool = False

    @property
    def record(self) -> str:
        """The name under which it is recorded; the signal's own for what is not."""
        recorded = self.fn in _AGGREGATES and not self.whole
        return f"gpu:{self.signal.name}:{self.fn.value}{duration(self.window)}" if recorded else ""

    def promql(self) -> str:
        text = self.record or self.expression()
        return f"max without ({', '.join(OWNER)}) ({text})" if self.bare and self.signal.owned else text

    def expression(self) -> str:
        """What is evaluated. A device that is gone has no past: only those that have the signal now are found."""
        name = self.signal.record
        over = f"{name}[{duration(self.window)}]"
        match self.fn:
            case Fn.LAST:
                return name
            case Fn.AGE:
                return f"(time() - {name})"
            case Fn.INCREASE:
                text = f"({name} - min_over_time({over}))"
            case Fn.PREDICT:
                text = f"(predict_linear({over}, {self.ahead:.0f}) and {name})"
            case _:
                text = f"({_AGGREGATES[self.fn][0]}({over}) and {name})"
        return f"({text} and {name} offset {duration(self.window)})" if self.whole else text

    def value(self, evidence: Evidence, device: Device) -> float | None:
        key = (self, device)
        if key not in evidence.memo:
            evidence.memo[key] = self._value(evidence, device)
        found: float | None = evidence.memo[key]
        return found

    def _value(self, evidence: Evidence, device: Device) -> float | None:
        points, now = evidence.points(device, self.signal), evidence.now
        last = latest(points, now)
        if last is None or (self.whole and latest(points, now - self.window) is None):
            return None
        window = points[
            bisect_right(points, now - self.window, key=itemgetter(0)) : bisect_right(points, now, key=itemgetter(0))
        ]
        match self.fn:
            case Fn.LAST:
                return last
            case Fn.AGE:
                return now - last
            case Fn.PREDICT:
                return _predict(window, now, self.ahead)
        if not window:
            return None
        if self.fn is Fn.INCREASE:
            return last - min(value for _, value in window)
        return _AGGREGATES[self.fn][1]([value for _, value in window])

    def parts(self) -> Iterator[Over | Share | Median]:
        yield self


def latest(points: Points, t: float) -> float | None:
    """The value at time t: the last one until then, unless it is too old."""
    place = bisect_right(points, t, key=itemgetter(0))
    return points[place - 1][1] if place and t - points[place - 1][0] < LOOKBACK_SECONDS else None


def _predict(points: Points, now: float, ahead: float) -> float | None:
    """The least-squares line, as Prometheus' predict_linear draws it."""
    if len(points) < 2:
        return None
    if len({value for _, value in points}) == 1:
        return points[0][1]
    slope, intercept = statistics.linear_regression([t - now for t, _ in points], [value for _, value in points])
    return intercept + slope * ahead


@dataclass(frozen=True, slots=True)
class Calc:
    """`left operator right` of two terms of the same device. What is divided by 0 is infinite, 0 / 0 unknown."""

    left: Term
    operator: str
    right: Term

    def promql(self) -> str:
        return f"({self.left.promql()} {self.operator} {self.right.promql()})"

    def value(self, evidence: Evidence, device: Device) -> float | None:
        left, right = self.left.value(evidence, device), self.right.value(evidence, device)
        if left is None or right is None:
            return None
        if self.operator == "/" and right == 0:
            return math.copysign(math.inf, left) if left else None
        return OPERATORS[self.operator](left, right)

    def parts(self) -> Iterator[Over | Share | Median]:
        yield from self.left.parts()
        yield from self.right.parts()


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A condition with a name, recorded as 0 or 1 for each device whose engine activity is known."""

    name: str
    condition: Condition

    @property
    def record(self) -> str:
        return f"gpu:{self.name}:bool"

    def expression(self, limits: Limits) -> str:
        """The recorded expression; what is not known to be true is 0."""
        on = f"(\n{_indented(self.condition.promql(limits))}\n) * 0 + 1"
        return f"({on})\nand\n{GR_ACTIVE.record}\nor\n{GR_ACTIVE.record} * 0"

    def on(self, evidence: Evidence, device: Device) -> bool:
        """Whether it is known to be true of a device whose engine activity is known."""
        key = (self, device)
        if key not in evidence.memo:
            evidence.memo[key] = _active(evidence, device) and self.condition.holds(evidence, device) is True
        return bool(evidence.memo[key])


@dataclass(frozen=True, slots=True)
class Share:
    """Of the other ranks of the job, the share for which the mark is true. Unknown for a job of one."""

    mark: Mark

    @property
    def record(self) -> str:
        return f"gpu:{self.mark.name}:others_ratio"

    def promql(self) -> str:
        return self.record

    def expression(self) -> str:
        """Ranks are those whose engine activity is known."""
        marks, job = f'{self.mark.record}{{workload!=""}}', ", ".join(JOB)
        others = f"(sum by ({job}) ({marks}) - on ({job}) group_right () {marks})"
        return f"{others}\n/ on ({job}) group_left ()\n(count by ({job}) ({marks}) - 1 > 0)"

    def value(self, evidence: Evidence, device: Device) -> float | None:
        if not _active(evidence, device):
            return None
        others = [rank for rank in evidence.ranks(device) if rank != device and _active(evidence, rank)]
        return sum(self.mark.on(evidence, rank) for rank in others) / len(others) if others else None

    def parts(self) -> Iterator[Over | Share | Median]:
        yield self


def _active(evidence: Evidence, device: Device) -> bool:
    return Over(GR_ACTIVE).value(evidence, device) is not None


@dataclass(frozen=True, slots=True)
class Median:
    """The median of a term over those ranks of the job for which the mark is true."""

    of: Over
    where: Mark

    @property
    def record(self) -> str:
        return f"gpu:{self.where.name}_{self.of.signal.name}:median{duration(self.of.window)}"

    def promql(self) -> str:
        return self.record

    def expression(self) -> str:
        job, mine = ", ".join(JOB), f'{self.of.promql()}{{workload!=""}}'
        marked = f"quantile by ({job}) (0.5, {mine} and {self.where.record} == 1)"
        return f"{mine} * 0 + on ({job}) group_left () {marked}"

    def value(self, evidence: Evidence, device: Device) -> float | None:
        if self.of.value(evidence, device) is None:
            return None
        ranks = [rank for rank in evidence.ranks(device) if self.where.on(evidence, rank)]
        values = [value for rank in ranks if (value := self.of.value(evidence, rank)) is not None]
        return statistics.median(values) if values else None

    def parts(self) -> Iterator[Over | Share | Median]:
        yield self
        yield self.of


class Condition(Protocol):
    """True, false or unknown for each device."""

    def promql(self, limits: Limits) -> str:
        """A filter that finds the devices for which it is true."""

    def holds(self, evidence: Evidence, device: Device) -> bool | None:
        """None: unknown."""

    def terms(self) -> Iterator[Over | Share | Median]:
        """The terms it reads, in order."""


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le, "==": eq, "!=": ne}


@dataclass(frozen=True, slots=True)
class Compare:
    """`left operator right`; the right side is a limit or another term."""

    left: Term
    operator: str
    right: Limit | Term | float

    def promql(self, limits: Limits) -> str:
        match self.right:
            case Limit(name, default):
                right = f"{limits.get(name, default):.15g}"
            case float() | int():
                right = f"{self.right:.15g}"
            case _:
                right = self.right.promql()
        return f"{self.left.promql()} {self.operator} {right}"

    def holds(self, evidence: Evidence, device: Device) -> bool | None:
        left, right = self.left.value(evidence, device), self.bound(evidence, device)
        return None if left is None or right is None else _COMPARE[self.operator](left, right)

    def bound(self, evidence: Evidence, device: Device) -> float | None:
        """What the left side is compared with."""
        match self.right:
            case Limit(name, default):
                return evidence.limits.get(name, default)
            case float() | int():
                return self.right
        return self.right.value(evidence, device)

    def terms(self) -> Iterator[Over | Share | Median]:
        yield from self.left.parts()
        if not isinstance(self.right, Limit | float | int):
            yield from self.right.parts()


class And:
    """All of them. With a `name` it is recorded, and read by that: several rules ask for it."""

    __slots__ = ("conditions", "name")

    def __init__(self, *conditions: Condition, name: str = "") -> None:
        self.conditions, self.name = conditions, name

    def promql(self, limits: Limits) -> str:
        return record_of(self) or self.expression(limits)

    def expression(self, limits: Limits) -> str:
        """What is evaluated."""
        return "\nand\n".join(_operand(each, limits) for each in self.conditions)

    def holds(self, evidence: Evidence, device: Device) -> bool | None:
        unknown = False
        for each in self.conditions:
            found = each.holds(evidence, device)
            if found is False:
                return False
            unknown = unknown or found is None
        return None if unknown else True

    def terms(self) -> Iterator[Over | Share | Median]:
        for each in self.conditions:
            yield from each.terms()


class Or:
    """At least one of them. With a `name` it is recorded, as `And` is."""

    __slots__ = ("conditions", "name")

    def __init__(self, *conditions: Condition, name: str = "") -> None:
        self.conditions, self.name = conditions, name

    def promql(self, limits: Limits) -> str:
        return record_of(self) or self.expression(limits)

    def expression(self, limits: Limits) -> str:
        """What is evaluated."""
        return "\nor\n".join(_operand(each, limits) for each in self.conditions)

    def holds(self, evidence: Evidence, device: Device) -> bool | None:
        found = [each.holds(evidence, device) for each in self.conditions]
        return True if True in found else None if None in found else False

    def terms(self) -> Iterator[Over | Share | Median]:
        for each in self.conditions:
            yield from each.terms()


@dataclass(frozen=True, slots=True)
class Unless:
    """`condition`, and `other` is not known to be true: what a device can't tell does not speak against it.

    With a `name` it is recorded, as `And` is.
    """

    condition: Condition
    other: Condition
    name: str = ""

    def promql(self, limits: Limits) -> str:
        return record_of(self) or self.expression(limits)

    def expression(self, limits: Limits) -> str:
        """What is evaluated."""
        return f"{_operand(self.condition, limits)}\nunless\n{_operand(self.other, limits)}"

    def holds(self, evidence: Evidence, device: Device) -> bool | None:
        found = self.condition.holds(evidence, device)
        if found is False or self.other.holds(evidence, device) is True:
            return False
        return found

    def terms(self) -> Iterator[Over | Share | Median]:
        yield from self.condition.terms()
        yield from self.other.terms()


@dataclass(frozen=True, slots=True)
class Also:
    """`condition`, or `other` is known to be true: what a device can't tell leaves the judgement to `condition`."""

    condition: Condition
    other: Condition

    def promql(self, limits: Limits) -> str:
        return f"{_operand(self.other, limits)}\nor\n{_operand(self.condition, limits)}"

    def holds(self, evidence: Evidence, device: Device) -> bool | None:
        return True if self.other.holds(evidence, device) is True else self.condition.holds(evidence, device)

    def terms(self) -> Iterator[Over | Share | Median]:
        yield from self.other.terms()
        yield from self.condition.terms()


def record_of(condition: And | Or | Unless) -> str:
    """The name under which it is recorded where it is true, with the value that it finds; empty for most."""
    return f"gpu:{condition.name}:holds" if condition.name else ""


def shared(condition: Condition) -> Iterator[And | Or | Unless]:
    """What of a condition is recorded by name, inner ones first."""
    match condition:
        case And() | Or():
            parts = condition.conditions
        case Unless() | Also():
            parts = (condition.condition, condition.other)
        case _:
            return
    for part in parts:
        yield from shared(part)
    if not isinstance(condition, Also) and condition.name:
        yield condition


def _operand(condition: Condition, limits: Limits) -> str:
    text = condition.promql(limits)
    return text if isinstance(condition, Compare) or "\n" not in text else f"(\n{_indented(text)}\n)"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
