"""Conditions on signals, as a tree of nodes without behaviour: `promql.py` renders it, `evaluate.py` evaluates it.

A condition is true, false or unknown (Kleene's logic) for a device, which is one set of labels on each signal.

A new kind of node is a class that joins `Term` or `Condition`. Every function that distinguishes kinds of nodes ends in
`no_case`, so mypy names each of them until it handles the new kind; everything else goes through `children` and
`leaves`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import ClassVar, NoReturn

from gpu_exporter.conditions.signal import Signal

Limits = Mapping[str, float]


def no_case(node: NoReturn) -> TypeError:
    """Return the error that ends a dispatch over all kinds of nodes: mypy reports a kind without a case."""
    return TypeError(f"no case for {node!r}")


@dataclass(frozen=True, slots=True)
class Assumption:
    """Of limits that are compared with readings of one kind: what is measured, and what is extrapolated to models."""

    name: str
    measured: str
    extrapolated: str


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that a user may change: `name` is its key in the chart's values.

    `assumes` is what it assumes about GPU models. `any_model` says why it holds for all of them, if its unit is one of
    which a model has more than another, such as watts.
    """

    name: str
    value: float
    unit: str
    help: str
    assumes: Assumption | None = None
    any_model: str = ""

    def __hash__(self) -> int:
        return hash(self.name)


class Fn(Enum):
    """A function of a signal over a window."""

    LAST = "last"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"
    STDDEV = "stddev"
    INCREASE = "increase"
    PREDICT = "predict"


# Functions whose results are recorded: once, for all conditions that read them.
RECORDED = frozenset((Fn.MEAN, Fn.MIN, Fn.MAX, Fn.STDDEV))
# Terms that a single rule reads: that rule computes them, and no series is recorded of each GPU. A term that it reads
# only once must be here.
READ_ONCE = frozenset(
    (
        "gpu:communicates_sm_active:min_of_ranks1h",
        "gpu:communicates_sm_active:others_mean5m",
        "gpu:exchanges:others_ratio",
        "gpu:exchanges_gr_active:median5m",
        "gpu:exchanges_nic_traffic:median5m",
        "gpu:fb_peak:max5m",
        "gpu:fb_peak_use:max5m",
        "gpu:fb_use:max10m",
        "gpu:fb_used:max5m",
        "gpu:gr_active:mean1h",
        "gpu:job_data:mean5m",
        "gpu:launches:others_ratio",
        "gpu:launches_gr_active:others_mean5m",
        "gpu:measures:others_ratio",
        "gpu:nic_retransmits:mean5m",
        "gpu:pauses:others_ratio",
        "gpu:pcie_expected:max2h",
        "gpu:pcie_replay_limit:max15m",
        "gpu:pcie_rx:max2h",
        "gpu:pcie_rx_use:max2h",
        "gpu:power_now_use:max10m",
        "gpu:sm_active:stddev5m",
        "gpu:stalled:others_ratio",
        "gpu:sw_power_cap:mean5m",
        "gpu:talks:others_ratio",
        "gpu:talks_gr_active:median5m",
        "gpu:talks_nvlink:median5m",
        "gpu:waits_sm_active:median5m",
    )
)


def _recorded(name: str) -> str:
    """Return the name of the series of a term; empty if it is not recorded."""
    return "" if name in READ_ONCE else name


def duration(seconds: float) -> str:
    """Return a time as PromQL and rule names write it: 5m."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


# --- terms: a number for each device, or none ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Over:
    """A signal over the last `window` seconds. `whole`: only if it existed at the beginning of the window already.

    `INCREASE` is by how much a counter has grown since its lowest value in the window, so a reset does not hide it;
    `PREDICT` is the value that a straight line through the window has in `ahead` seconds. `bare` leaves namespace, pod
    and workload out, for conditions on the health of a device.
    """

    signal: Signal
    fn: Fn = Fn.LAST
    window: float = 0.0
    ahead: float = 0.0
    whole: bool = False
    bare: bool = False

    def __hash__(self) -> int:
        return hash((self.signal, self.window))  # that of all fields takes long, most of it for `fn`

    @property
    def record(self) -> str:
        """The name under which it is recorded; empty if it is not."""
        recorded = self.fn in RECORDED and not self.whole
        return _recorded(f"gpu:{self.signal.name}:{self.fn.value}{duration(self.window)}") if recorded else ""


@dataclass(frozen=True, slots=True)
class Calc:
    """`left operator right` of two terms of the same device. A number divided by 0 is infinite, 0 / 0 unknown."""

    left: Term
    operator: str
    right: Term


@dataclass(frozen=True, eq=False, slots=True)
class Mark:
    """A condition with a name, recorded as 0 or 1 for each device whose engine activity is known."""

    name: str
    condition: Condition

    @property
    def record(self) -> str:
        """The name under which it is recorded."""
        return f"gpu:{self.name}:bool"

    @property
    def verb(self) -> str:
        """What several ranks do for which it is true: wait; it is named after what one does."""
        if self.name.endswith("ed"):
            return f"are {self.name}"
        return self.name.removesuffix("es" if self.name.endswith("ches") else "s")


@dataclass(frozen=True, slots=True)
class PeerShare:
    """The share of the other ranks of the job for which the mark is true. Unknown if there are no others."""

    mark: Mark

    @property
    def record(self) -> str:
        """The name under which it is recorded; empty if it is not."""
        return _recorded(f"gpu:{self.mark.name}:others_ratio")


@dataclass(frozen=True, slots=True)
class _PeerStatistic:
    """A statistic of a term over ranks of the job for which the mark is true. `statistic` is its name in rules."""

    of: Over
    mark: Mark
    statistic: ClassVar[str]

    @property
    def record(self) -> str:
        """The name under which it is recorded; empty if it is not."""
        window = duration(self.of.window) if self.of.window else ""
        return _recorded(f"gpu:{self.mark.name}_{self.of.signal.name}:{self.statistic}{window}")


class PeerMedian(_PeerStatistic):
    """The median over those ranks."""

    __slots__ = ()
    statistic = "median"


class PeerMean(_PeerStatistic):
    """The mean over the others of those ranks. Unknown if there are no others."""

    __slots__ = ()
    statistic = "others_mean"


class PeerMin(_PeerStatistic):
    """The minimum over those ranks."""

    __slots__ = ()
    statistic = "min_of_ranks"


@dataclass(frozen=True, slots=True)
class OfBoard:
    """The maximum of terms of signals that have no owner, with all labels of the device; 0 if none is above 0."""

    of: tuple[Over, ...]


@dataclass(frozen=True, slots=True)
class NodeMax:
    """The maximum of a `bare` term over the GPUs of the same model on the node, the device itself included."""

    of: Over


# What is computed of a term of several ranks.
OfRanks = PeerMedian | PeerMean | PeerMin
Leaf = Over | PeerShare | OfRanks
Term = Leaf | Calc | OfBoard | NodeMax


# --- conditions: true, false or unknown for each device --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    """`left operator right`; the right side is a limit, a number or another term."""

    left: Term
    operator: str
    right: Limit | Term | float


class And:
    """True if all conditions are. If several rules need it, it has a `name`, under which it is recorded and read.

    Its rarest part should come last, as an `And` of its own: VictoriaMetrics evaluates that first, and nothing else if
    it is true nowhere.
    """

    __slots__ = ("conditions", "name")

    def __init__(self, *conditions: Condition, name: str = "") -> None:
        self.conditions, self.name = conditions, name


class Or:
    """At least one of them. With a `name` it is recorded, as `And` is."""

    __slots__ = ("conditions", "name")

    def __init__(self, *conditions: Condition, name: str = "") -> None:
        self.conditions, self.name = conditions, name


@dataclass(frozen=True, slots=True)
class Unless:
    """`condition`, and not `other`; an unknown `other` counts as false. With a `name` it is recorded, as `And` is."""

    condition: Condition
    other: Condition
    name: str = ""


@dataclass(frozen=True, slots=True)
class OrIfKnown:
    """`condition`, or `other` where that is known to be true; an unknown `other` leaves it to `condition`."""

    condition: Condition
    other: Condition


@dataclass(frozen=True, eq=False, slots=True)
class Classification:
    """Conditions by name, recorded under `record`: a device belongs to the first that is known to be true.

    A GPU for which `unless` is true has no class.
    """

    record: str
    conditions: Mapping[str, Condition]
    unless: Compare


@dataclass(frozen=True, slots=True)
class Is:
    """The device belongs to this class of a classification."""

    classification: Classification
    name: str

    @property
    def before(self) -> tuple[Condition, ...]:
        """The conditions of the classes that come first."""
        names = list(self.classification.conditions)
        return tuple(self.classification.conditions[name] for name in names[: names.index(self.name)])


Condition = Compare | And | Or | Unless | OrIfKnown | Is
Named = And | Or | Unless


def record_of(condition: Named) -> str:
    """Return the series that a condition is recorded as where it is true; empty if it has no name."""
    return f"gpu:{condition.name}:holds" if condition.name else ""


def children(condition: Condition) -> tuple[Condition, ...]:
    """Return the conditions that a condition is made of, in order."""
    match condition:
        case Compare():
            return ()
        case And() | Or():
            return condition.conditions
        case Unless() | OrIfKnown():
            return condition.condition, condition.other
        case Is():
            return (condition.classification.conditions[condition.name],)
        case _:
            raise no_case(condition)


def nodes(condition: Condition) -> Iterator[Condition]:
    """Yield a condition and all that it is made of."""
    yield condition
    for child in children(condition):
        yield from nodes(child)


def leaves(term: Term) -> Iterator[Leaf]:
    """Yield the recorded or read terms that a term is made of, in order."""
    match term:
        case Over() | PeerShare():
            yield term
        case PeerMedian() | PeerMean() | PeerMin():
            yield term
            yield term.of
        case Calc():
            yield from leaves(term.left)
            yield from leaves(term.right)
        case OfBoard():
            yield from term.of
        case NodeMax():
            yield term.of
        case _:
            raise no_case(term)


def comparisons(condition: Condition) -> Iterator[Compare]:
    """Yield every comparison in a condition, in order."""
    if isinstance(condition, Compare):
        yield condition
    for child in children(condition):
        yield from comparisons(child)


def terms(condition: Condition) -> Iterator[Leaf]:
    """Yield the terms that a condition reads, in order."""
    for compare in comparisons(condition):
        yield from leaves(compare.left)
        if not isinstance(compare.right, Limit | float | int):
            yield from leaves(compare.right)


def marks_of(condition: Condition) -> tuple[Mark, ...]:
    """Return the marks of other ranks that a condition reads, in order."""
    return tuple(dict.fromkeys(term.mark for term in terms(condition) if not isinstance(term, Over)))


@cache
def signals_of(condition: Condition) -> tuple[Signal, ...]:
    """Return the signals that a condition reads, in order, including those of its marks."""
    return tuple(dict.fromkeys(_signals(condition)))


def _signals(condition: Condition) -> Iterator[Signal]:
    for term in terms(condition):
        if isinstance(term, Over):
            yield term.signal
            continue
        if not isinstance(term, PeerShare):
            yield term.of.signal
        yield from _signals(term.mark.condition)


@cache
def required_signals(condition: Condition) -> tuple[Signal, ...]:
    """Return the signals of a device without which a condition can be unknown, in order.

    An exception, an alternative and a mark count as false where they are unknown.
    """
    return tuple(dict.fromkeys(over.signal for over in required_terms(condition)))


def required_terms(condition: Condition) -> Iterator[Over]:
    """Yield these signals over the windows in which the condition reads them."""
    match condition:
        case Compare():
            for term in terms(condition):
                if not isinstance(term, PeerShare):
                    yield term if isinstance(term, Over) else term.of
        case And() | Or() | Is():
            for child in children(condition):
                yield from required_terms(child)
        case Unless() | OrIfKnown():
            yield from required_terms(condition.condition)
        case _:
            raise no_case(condition)


def limits_of(condition: Condition) -> tuple[Limit, ...]:
    """Return the limits of a condition, in order, including those of its marks."""
    return tuple(dict.fromkeys(_limits(condition)))


def _limits(condition: Condition) -> Iterator[Limit]:
    for compare in comparisons(condition):
        if isinstance(compare.right, Limit):
            yield compare.right
        for mark in marks_of(compare):
            yield from _limits(mark.condition)


def shared(condition: Condition) -> Iterator[Named]:
    """Yield the parts of a condition that are recorded by name, inner ones first."""
    for child in children(condition):
        yield from shared(child)
    if isinstance(condition, Named) and condition.name:
        yield condition
