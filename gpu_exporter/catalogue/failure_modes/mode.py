"""The type of a failure mode: one entry is the source of its rule, alert, runbook, panel, tests and diagnosis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.conditions.signal import Signal, record_name
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Compare,
    Condition,
    Is,
    Limit,
    Or,
    OrIfKnown,
    Over,
    Unless,
    limits_of,
    no_case,
    signals_of,
)
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action

# A hold that is counted from samples may be interrupted for so long: a restart of Prometheus, and the time until all rules
# have values again.
INTERRUPTION = 600.0
# An info alert outlasts what interrupts a phase of work, such as a checkpoint.
OF_INFO = 900.0
# A page outlasts a reboot, so that a fault that is still there afterwards does not page again.
OF_PAGES = 600.0
# Failed scrapes of three minutes, until all rules have values again. They must not restart the hold of an alert.
MISSED_SCRAPES = 300.0

# Where a word begins in the name of a mode.
_WORD = re.compile(r"\B(?=[A-Z])")


class Severity(Enum):
    """How urgent an alert is: critical pages someone, warning opens a ticket, info is only shown."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def place(self) -> int:
        """Its place among all, the most severe first."""
        return _PLACES[self]


_PLACES = {severity: place for place, severity in enumerate(Severity)}


class Domain(Enum):
    """The group of a failure mode: one file of rules, one dashboard, one section of the index."""

    HEALTH = "health"
    BOTTLENECK = "bottleneck"
    DISTRIBUTED = "distributed"
    NETWORK = "network"
    COST = "cost"
    REMEDIATION = "remediation"


class Scope(Enum):
    """What must be observed to detect a failure mode: one device, the ranks of a job, or a fleet in Prometheus."""

    DEVICE = "device"
    JOB = "job"
    FLEET = "fleet"


class Place(Enum):
    """Where a cause and its effect occur: on the same GPU, on the same node, in the same job, or in the same cluster."""

    GPU = "GPU"
    NODE = "node"
    JOB = "job"
    CLUSTER = "cluster"


# What follows on a GPU if its host starves it, or if other ranks wait for it; in a job if a rank slows it down or stops it.
STARVED_GPU = (
    "GpuLoaderCpuBound",
    "GpuLaunchThreadSaturated",
    "GpuJobDataBound",
    "GpuDataLoadingBound",
    "GpuHostBound",
    "GpuLaunchBound",
)
STRAGGLING_GPU = ("GpuJobStraggler", "GpuStragglerStarved", "GpuStragglerSlow", "GpuStragglerLaunchBound")
SLOWED_JOB = ("GpuJobSlower", "GpuJobMfuDropped", "GpuCommunicationBound", "GpuPowerOscillation")
STOPPED_JOB = (
    "GpuJobRankEnded",
    "GpuJobStalled",
    "GpuCollectiveStall",
    "GpuJobSlower",
    "GpuJobGoodputLow",
    "GpuJobMfuDropped",
    "GpuAllocatedIdle",
)


def slows_down(*on_gpu: str, job: tuple[str, ...] = ()) -> Mapping[Place, tuple[str, ...]]:
    """Return what a mode explains that makes a GPU slow, and so its job: besides, these modes on the GPU and in the job."""
    return {Place.GPU: (*on_gpu, *STRAGGLING_GPU), Place.JOB: (*job, *SLOWED_JOB)}


@dataclass(frozen=True, slots=True)
class Ramp:
    """A value that starts at `start` and grows by `per_second`."""

    start: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Wave:
    """A value that alternates between `low` and `high` every `seconds`."""

    low: float
    high: float
    seconds: float


Values = Mapping[Metric, "float | Ramp | Wave"]


@dataclass(frozen=True, slots=True)
class Inject:
    """The samples that make a mode fire: `values` replace those of a healthy GPU (see profiles.py).

    `peers` are the values of the other ranks of its job, and with `everyone` the mode fires for them as well. With `alone`,
    the GPU has a job of its own, without other ranks. `xid` is an
    event that repeats. `fault` is a failure that no value shows: lost, wedged, reload (the driver is unloaded) or down (the exporter does
    not answer).
    `absent` metrics have no sample. `series` are the series of another exporter of the cluster or of training loops, by name
    and labels; `series_before` are their values in the hours before, for modes that compare with the past.
    """

    values: Values = field(default_factory=dict)
    peers: Values = field(default_factory=dict)
    xid: int | None = None
    fault: str = ""
    absent: tuple[Metric, ...] = ()
    everyone: bool = False
    alone: bool = False
    series: Mapping[str, float | Ramp] = field(default_factory=dict)
    series_before: Mapping[str, float | Ramp] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureMode:
    """One way in which a GPU or a job goes wrong.

    When the alert fires:
    - `condition` is evaluated per device. `fleet` is PromQL for what only Prometheus can detect, and `limits` are those
      whose names it has in braces. The alert fires if either is true.
    - `on_node` is `fleet` for the ranks that one node sees: `diagnose` evaluates it.
    - `hold`: seconds for which it must be true before the alert fires. If the condition is recorded, under a name or as
      a class, the hold is counted from its samples, so that a gap does not restart it. Otherwise, Prometheus holds the
      alert, and a few failed scrapes do not restart that (`bridged`).
    - `keep`: seconds for which the alert fires after the condition has ended.
    - `unless`: PromQL on other exporters' series that explain the condition: the alert does not fire for them.
    - `lesser`: where this is true, the alert is only info; `lesser_because` says why.
    - `requires`: what must be scraped in addition.

    What it means:
    - `cause` is what it blames. `explains` names the modes that follow from this one, and where (`relation.py`).
    - `shows` is the value of the alert if that is not the first term of the condition; it must be known wherever the
      condition is true.

    Texts:
    - `summary` says what happened to which GPU or job. `{gpu}` and `{job}` are replaced by their labels; `{{ … }}` is a
      template of Prometheus. `singled_out` says it where one of the GPUs is known to be the cause.
    - `advice` says what to do first; it is the alert's description. `annotations` are more of the alert's. `branches` are
      conditions with what to do first where they are true: the first of them says it on the node instead of `advice`.
    - The runbook has `meaning` (what happened), `impact`, `diagnosis` (steps to the cause), `mitigation` (the fix) and
      `wrong` (when the alert fires although nothing is wrong, or is silent although something is).
    """

    name: str
    domain: Domain
    severity: Severity
    hold: float
    action: Action
    summary: str
    advice: str
    inject: Inject
    condition: Condition | None = None
    fleet: str = ""
    on_node: Condition | None = None
    limits: tuple[Limit, ...] = ()
    scope: Scope = Scope.DEVICE
    keep: float = 0.0
    cause: Cause = Cause.FAULT
    unless: str = ""
    lesser: Condition | None = None
    lesser_because: str = ""
    explains: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)
    shows: Over | Calc | None = None
    meaning: str = ""
    impact: str = ""
    wrong: str = ""
    singled_out: str = ""
    branches: tuple[tuple[Condition, str], ...] = ()
    diagnosis: tuple[str, ...] = ()
    mitigation: tuple[str, ...] = ()
    requires: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> float:
        """Return for how many seconds the alert keeps firing. It outlasts failed scrapes, so nobody is paged twice."""
        of_work = self.severity is Severity.INFO and self.domain is not Domain.HEALTH and self.hold > 0
        default = OF_INFO if of_work else MISSED_SCRAPES if self.hold else 0.0
        return self.keep or (OF_PAGES if self.severity is Severity.CRITICAL else default)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Return all conditions of the mode: the one under which it fires, and the one under which it is only info."""
        return tuple(each for each in (self.condition, self.lesser) if each)

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Return the limits of its conditions and of its expression for the fleet."""
        return tuple(dict.fromkeys((*(limit for each in self.conditions for limit in limits_of(each)), *self.limits)))

    @property
    def as_info(self) -> FailureMode:
        """Return the mode as it is where `lesser` is true."""
        return replace(self, severity=Severity.INFO, advice=f"{self.lesser_because} {self.advice}")

    @property
    def counted(self) -> bool:
        """Return whether the hold is counted from recorded samples of the condition; otherwise, Prometheus holds the alert."""
        if not self.hold or self.fleet:
            return False
        named = isinstance(self.condition, And | Or | Unless) and bool(self.condition.name)
        return named or isinstance(self.condition, Is)

    @property
    def counted_within(self) -> float:
        """Return the seconds within which a counted hold must be reached.

        With one scrape in ten failing, one sample in five is missing: a rate reads a series now and two minutes ago.
        """
        return self.hold + max(INTERRUPTION, self.hold / 2)

    @property
    def pending(self) -> float:
        """Return for how many seconds Prometheus itself holds the alert."""
        return 0.0 if self.counted else self.hold

    @property
    def bridged(self) -> float:
        """Return for how many seconds its signals may be missing without restarting a hold by Prometheus.

        At most half of the hold, so that most of it is seen, and the same for all, so that no alert outlasts its cause.
        A short hold is rarely interrupted.
        """
        is_held = bool(self.condition) and not self.fleet and self.pending >= MISSED_SCRAPES
        return MISSED_SCRAPES / 2 if is_held else 0.0

    @property
    def page(self) -> str:
        """Return the name of the file of its runbook, without suffix."""
        return self.name.lower()

    @property
    def record(self) -> str:
        """Return the middle of the names of the series that its condition is recorded as."""
        return _WORD.sub("_", self.name.removeprefix("Gpu")).lower()

    @property
    def bridge(self) -> str:
        """Return the series that the alert reads in place of the condition; empty if its hold is not bridged."""
        return record_name(self.record, "bridged") if self.bridged else ""

    @property
    def value(self) -> Over | None:
        """Return the signal that is the value of the alert, or None if the value is something else."""
        if self.shows:
            return self.shows if isinstance(self.shows, Over) else None
        return _first(self.condition) if self.condition and not self.fleet else None

    @property
    def needs(self) -> tuple[Signal, ...]:
        """Return the signals that the condition reads, in order. Without them the condition is unknown."""
        return signals_of(self.condition) if self.condition else ()


def _first(condition: Condition) -> Over | None:
    match condition:
        case Compare():
            return condition.left if isinstance(condition.left, Over) else None
        case And():
            return _first(condition.conditions[0])
        case Unless():
            return _first(condition.condition)
        case Or() | OrIfKnown() | Is():
            return None
        case _:
            raise no_case(condition)
