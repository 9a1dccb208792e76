"""What a failure mode is: one entry, from which rule, alert, runbook, panel, page, test and diagnosis are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gpu_exporter.catalogue.conditions import (
    And,
    Compare,
    Condition,
    Is,
    Or,
    OrIfKnown,
    Over,
    Unless,
    no_case,
    signals_of,
)
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action

# Seconds that two failed scrapes a minute apart take. They must not end what has held for long, to begin anew.
MISSED_SCRAPES = 180.0


class Severity(Enum):
    """Critical pages, warning makes a ticket, info is shown and never notifies."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Domain(Enum):
    """The row in which a failure mode is shown."""

    HEALTH = "health"
    BOTTLENECK = "bottleneck"
    DISTRIBUTED = "distributed"
    COST = "cost"


class Scope(Enum):
    """Who can know it: what one device shows, the ranks of a job together, or only who scrapes a fleet."""

    DEVICE = "device"
    JOB = "job"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A value that begins at `start` and grows by `per_second`."""

    start: float
    per_second: float


@dataclass(frozen=True, slots=True)
class Wave:
    """A value that changes between `low` and `high` each `seconds`."""

    low: float
    high: float
    seconds: float


Values = Mapping[Metric, "float | Ramp | Wave"]


@dataclass(frozen=True, slots=True)
class Inject:
    """What makes a mode fire: `values` on the GPU it happens to, on top of a healthy one (see profiles.py).

    `peers` are the values of the other ranks of its job. `xid` is an event, which comes again and again; `fault` one
    that no value shows: lost, wedged, down (the exporter does not answer). `absent` rows have no sample. `everyone`: the
    peers show it as well. `series` are what another exporter of the cluster shows, by name and labels.
    """

    values: Values = field(default_factory=dict)
    peers: Values = field(default_factory=dict)
    xid: int | None = None
    fault: str = ""
    absent: tuple[Metric, ...] = ()
    everyone: bool = False
    series: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureMode:
    """One way in which a GPU or a job goes wrong.

    `condition` is per device. `fleet` is PromQL for what only a Prometheus can know; it fires beside the condition, or
    alone. `hold` and `keep` are seconds for which it must be true before, and is said to be true after. `implies` names
    modes that come with it. `wrong` says when it fires and should not. `shows` is the alert's value, where that is not
    the first term of the condition; it must be known wherever the condition is true. In `summary`, `{gpu}` and `{job}`
    stand for what it is about, `{{ … }}` is a template of Prometheus. `requires` is who has to be scraped beside.
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
    scope: Scope = Scope.DEVICE
    keep: float = 0.0
    implies: tuple[str, ...] = ()
    shows: Over | None = None
    meaning: str = ""
    impact: str = ""
    wrong: str = ""
    diagnosis: tuple[str, ...] = ()
    mitigation: tuple[str, ...] = ()
    requires: str = ""

    @property
    def kept(self) -> float:
        """For how many seconds its alert keeps firing, at least while scrapes fail; the end of a page is never delayed."""
        return self.keep or (MISSED_SCRAPES if self.hold and self.severity is not Severity.CRITICAL else 0.0)

    @property
    def value(self) -> Over | None:
        """What the value of its alert is, if that is one signal."""
        return self.shows or (_first(self.condition) if self.condition and not self.fleet else None)

    @property
    def needs(self) -> tuple[Signal, ...]:
        """The signals that the condition reads, in order: without them it is unknown."""
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
