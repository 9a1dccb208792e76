"""What a signal is: the ways to read or derive it, as PromQL and in Python. `catalogue/signals.py` is the table of all.

A signal may also be a statistic of a histogram over a window: in Python, from the growth of its buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from math import inf
from operator import add, mul, pow, sub, truediv

from gpu_exporter.model.metric import Labels

# Long enough for several periods of a slow swing; also the window of the bottleneck classes.
WINDOW_SECONDS = 300.0
WINDOW = f"{WINDOW_SECONDS / 60:.0f}m"
# Observations at or below each edge, in rising order; the last edge is infinite.
Below = Mapping[float, float]


@dataclass(frozen=True, slots=True)
class Within:
    """The share of observations at or below `edge`, which is an edge of the histogram."""

    edge: float

    def promql(self, buckets: str) -> str:
        """Return the expression on these bucket series."""
        part, whole = (f'rate({buckets}{{le="{edge}"}}[{WINDOW}])' for edge in (self.edge, "+Inf"))
        return _of_now(f"{part} / ignoring (le) {whole}", buckets)

    def value(self, below: Below) -> float | None:
        """Return the same number from observed counts; None without an observation."""
        return below[self.edge] / below[inf] if below.get(inf) and self.edge in below else None


@dataclass(frozen=True, slots=True)
class Spread:
    """Half the distance between two quantiles: for a square wave, its amplitude and its standard deviation."""

    low: float = 0.1
    high: float = 0.9

    def promql(self, buckets: str) -> str:
        """Return the expression on these bucket series."""
        high, low = (f"histogram_quantile({q:g}, rate({buckets}[{WINDOW}]))" for q in (self.high, self.low))
        return _of_now(f"({high} - {low}) / 2", buckets)

    def value(self, below: Below) -> float | None:
        """Return the same number from observed counts; None without an observation."""
        if len(below) < 2 or not below.get(inf):
            return None
        return (_quantile(self.high, below) - _quantile(self.low, below)) / 2


def _of_now(expression: str, buckets: str) -> str:
    """Drop NaN, which means no observation, and devices that no longer exist."""
    return f'{expression} >= 0 and ignoring (le) {buckets}{{le="+Inf"}}'


def _quantile(q: float, below: Below) -> float:
    """Interpolate linearly within a bucket, as Prometheus does; in the last bucket, return the highest finite edge."""
    rank, (*edges, _) = q * below[inf], below
    start, count = 0.0, 0.0
    for edge in edges:
        if below[edge] >= rank:
            return start + (edge - start) * (rank - count) / (below[edge] - count)
        start, count = edge, below[edge]
    return start


# A device is a GPU, or a GPU instance in MIG mode; its other labels come from the recorded `gpu:device:info`.
DEVICE = ("cluster", "UUID", "GPU_I_ID")
DEVICE_KEY = ", ".join(DEVICE)
IDENTITY = ("node", "gpu", "modelName")
OWNER = ("namespace", "pod", "workload")
# Ranks of one job. Without a workload there are no peers.
JOB = ("cluster", "namespace", "workload", "modelName")
IDENTITY_INFO = "gpu:device_identity:info"
DEVICE_INFO = "gpu:device:info"
# 1 for each device and owner: pod or job.
OWNERS_INFO = "gpu:device_owners:info"
# 1 for each GPU whose profiling counters have stopped: `catalogue/stopped_counters.py`. Their values are left out.
STOPPED_INFO = "gpu:counters_stopped:info"
PROFILING_PREFIX = "DCGM_FI_PROF_"
RATE_WINDOW = "2m"
# By which factor a gauge may exceed its highest value: those of profiling counters do by little.
FAR_BEYOND = 1.5
# The signal that every device has: what is computed of a device without it is unknown.
PRESENCE = "gr_active"


def record_name(signal: str, unit: str) -> str:
    """Return the name of the recording rule of a signal."""
    return f"gpu:{signal}:{unit}"


PRESENCE_INFO = record_name(PRESENCE, "ratio")


@dataclass(frozen=True, slots=True)
class Read:
    """One way to get a signal: the series `name{where}` times `scale`; its rate if `rate`, one bit of it if `bit`.

    `codes`: the series is a gauge of the last code, and the signal is 1 for one of these. That gauge never clears, so a
    code that it has shown for a day no longer counts. `counted`: the series counts events of the last minutes, and the
    signal is this number as long as there are any, and for `keep` afterwards. Both leave out a GPU that has the series
    `unless`. `shape`: the series is a histogram, from which the signal is computed. `age_by`: the series is a time, and
    the signal is its age by the clock of the exporter, a series of this name. `extract`: the label `xid` is this part
    of the label of `any_of`.
    """

    name: str
    scale: float = 1.0
    rate: bool = False
    bit: int | None = None
    where: Labels = ()
    any_of: tuple[str, tuple[str, ...]] | None = None
    codes: tuple[int, ...] = ()
    counted: float | None = None
    keep: str = ""
    unless: str = ""
    age_by: str = ""
    extract: str = ""
    shape: Within | Spread | None = None
    # The highest possible value. A rate may exceed it, because its samples do not come at exact intervals; a value that
    # exceeds it by far is none, and is left out: DCGM sometimes reports a utilisation of thousands of percent.
    most: float | None = None

    @property
    def series(self) -> str:
        """Return the name of the series that are read."""
        return f"{self.name}_bucket" if self.shape else self.name

    def promql(self) -> str:
        """Return the expression of this read, in the signal's unit, before its labels are made uniform."""
        if self.shape:
            return self.shape.promql(self.series)
        matchers = [f'{label}="{value}"' for label, value in self.where]
        if self.any_of:
            matchers.append(f'{self.any_of[0]}=~"{"|".join(self.any_of[1])}"')
        series = f"{self.name}{{{', '.join(matchers)}}}" if matchers else self.name
        if self.rate:
            # If a series began or ended within the window, or was reset, the next definition is used. `rate()` would be
            # too low where the first scrape of the window failed.
            before = f"{series} offset {RATE_WINDOW}"
            scale = "" if self.scale == 1.0 else f" * {self.scale:.15g}"
            rate = f"({series} - {before} >= 0) / (timestamp({series}) - timestamp({before}) > 0){scale}"
            return rate if self.most is None else f"clamp_max({rate}, {self.most:g})"
        if self.bit is not None:
            return f"floor({series} / {2**self.bit}) % 2"
        if self.codes:
            return self._codes()
        if self.counted is not None:
            count = f"max_over_time({series}[{self.keep}])" if self.keep else series
            return f"(({count} > 0) * 0 + {self.counted:g}) unless on (cluster, UUID) {self.unless}"
        if self.age_by:
            return f"{self.age_by} - on (cluster, job, instance) group_right () {series}"
        if self.extract and self.any_of:
            return f'label_replace({series}, "xid", "$1", "{self.any_of[0]}", "{self.extract}")'
        text = series if self.highest is None else f"{series} <= {self.highest:.15g}"
        if self.scale != 1.0:
            text = f"{text if self.highest is None else f'({text})'} * {self.scale:.15g}"
        is_counted = self.name.startswith(PROFILING_PREFIX)
        return f"{text} unless on (cluster, UUID) {STOPPED_INFO}" if is_counted else text

    @property
    def highest(self) -> float | None:
        """Return the highest value of the series that can be a measurement; None if any can, or if it is a counter."""
        return None if self.most is None or self.rate else FAR_BEYOND * self.most / self.scale

    def _codes(self) -> str:
        """Return 1 for each GPU whose gauge has changed to one of the codes within a day.

        It compares with an hour and with a day ago, because the same code may come again soon after a repair. A gap in
        the series, or another pod on the GPU, is no change.
        """
        last = f"max by (cluster, UUID) ({self.name})"
        before = [f"max by (cluster, UUID) (last_over_time({self.name}[1h] offset {ago}))" for ago in ("1h", "1d")]
        changed = f"({last} > 0 unless {last} == {before[0]} == {before[1]})"
        codes = " or ".join(f'label_replace(vector(1), "xid", "{code}", "", "")' for code in self.codes)
        seen = f'count_values by (cluster, UUID) ("xid", {changed}) and on (xid) ({codes})'
        return f"({seen}) unless on (cluster, UUID) {self.unless}"


@dataclass(frozen=True, slots=True)
class Derived:
    """A signal from others of the same device: `left operator right`, with one of `OPERATORS`."""

    left: Signal | Derived | float
    operator: str
    right: Signal | Derived | float

    def promql(self) -> str:
        """Return the expression, on recorded signals."""
        right = f"({_operand(self.right)} != 0)" if self.operator == "/" else _operand(self.right)
        return f"{_operand(self.left)} {self.operator} {right}"

    def signals(self) -> Iterator[Signal]:
        """Yield the signals that it is derived from."""
        for side in (self.left, self.right):
            if isinstance(side, Derived):
                yield from side.signals()
            elif isinstance(side, Signal):
                yield side

    def value(self, value_of: Callable[[Signal], float | None]) -> float | None:
        """Return its value, given a function that returns the values of signals.

        None if one of them is unknown, for a division by 0, and on overflow.
        """
        return self.values({signal: (value_of(signal),) for signal in self.signals()})[0]

    def values(self, of: Mapping[Signal, Sequence[float | None]]) -> Sequence[float | None]:
        """Return its values as `value` does, from those of signals, which are all in the same order."""
        calculate, is_ratio = (_power if self.operator == "^" else OPERATORS[self.operator]), self.operator == "/"
        return [
            None if left is None or right is None or (is_ratio and right == 0) else calculate(left, right)
            for left, right in zip(_values(self.left, of), _values(self.right, of), strict=False)
        ]


OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": truediv,
    "^": pow,
}


def _operand(side: Signal | Derived | float) -> str:
    match side:
        case Signal():
            return side.record
        case Derived():
            return f"({side.promql()})"
    return f"{side:.15g}"


def _values(side: Signal | Derived | float, of: Mapping[Signal, Sequence[float | None]]) -> Iterable[float | None]:
    match side:
        case Signal():
            return of[side]
        case Derived():
            return side.values(of)
    return repeat(side)


def _power(base: float, exponent: float) -> float | None:
    try:
        return OPERATORS["^"](base, exponent)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A quantity of a GPU in one unit, such as SM activity as a ratio, whichever exporter the samples come from.

    It has one recording rule, and conditions compare signals, never metrics. `definitions` are the ways to compute it;
    the first one that has samples is used. `has_owner`: it also has the labels namespace, pod and workload.
    `per_instance`: in MIG mode, each GPU instance has its own value. Series with different `extra_labels` (the code of
    an XID) are kept apart; the value of a GPU is their maximum. `plain` is the phrase that `diagnose` prints, with `{}`
    for the value and its unit.
    """

    name: str
    unit: str
    help: str
    definitions: tuple[Read | Derived, ...]
    has_owner: bool = True
    per_instance: bool = False
    extra_labels: tuple[str, ...] = ()
    plain: str = ""

    @property
    def record(self) -> str:
        """Return the name of its recording rule."""
        return record_name(self.name, self.unit)

    def promql(self) -> str:
        """Return the expression of its recording rule."""
        labels = (*(DEVICE if self.per_instance else DEVICE[:2]), *self.extra_labels)
        alternatives = []
        for of_kind, ways in groupby(self.definitions, key=type):
            if of_kind is Derived:
                alternatives += [way.promql() for way in ways]
            else:
                reads = [f"max by ({', '.join(labels)}) ({way.promql()})" for way in ways]
                alternatives.append(self._joined(f"(\n  {f'{chr(10)}  or '.join(reads)}\n)"))
        first, *others = alternatives
        return "\nor\n".join([first, *(f"(\n{other}\n)" if "\n" in other else other for other in others)])

    def _joined(self, values: str) -> str:
        """Return `values` with the labels of the device, on the many side: keeping labels costs less than copying.

        The values come first: VictoriaMetrics evaluates the other side only if there are any. With `extra_labels`, a
        device has several values, so its labels are copied.
        """
        on = ", ".join(DEVICE if self.has_owner else DEVICE[:2])
        info = DEVICE_INFO if self.has_owner else IDENTITY_INFO
        if self.extra_labels:
            return f"{values}\n* on ({on}) group_left ({', '.join(IDENTITY)}) {info}"
        return f"{values}\n* on ({on}) group_right () {info}"
