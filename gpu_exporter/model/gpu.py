"""GPUs, their owners, and the series and samples that belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.model.metric import Labels, Metric


@dataclass(frozen=True, slots=True)
class Gpu:
    """The identity of a GPU. `info` holds what never changes while the driver is loaded."""

    index: int
    uuid: str = ""
    pci_bus_id: str = ""
    model: str = ""
    device: str = ""
    driver: str = ""
    info: Labels = ()


class Owner(NamedTuple):
    """The owner of a GPU, or with `instance` of that GPU instance. `workload` is the job whose ranks are compared."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    workload: str = ""
    instance: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A metric of an entity: the identity under which values are kept from tick to tick (compared by identity).

    Of a histogram, `part` is which series this is: `_bucket` (with the label `le`), `_sum` or `_count`.
    """

    metric: Metric
    gpu: Gpu | None = None
    labels: Labels = ()
    part: str = ""

    @property
    def name(self) -> str:
        """The name that its samples have in the catalogue's words."""
        return self.metric.name + self.part


class Sample(NamedTuple):
    """A value that was read. What could not be read has no sample: no NaN, no -1, no blank."""

    series: Series
    value: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read of one GPU gave.

    `values` has the series of the paces that were due. Profiling values are means over the `span` seconds
    before `at` (monotonic seconds), or over those that `spans` has for the series. `failed` names series that
    should have answered and did not, with one of the five outcomes; `unsupported` those that this device can't
    answer; `ended` those of MIG instances and processes that are no more. `buffered` has samples that were taken
    since about the read before, each with a stamp that rises from sample to sample; some may be repeated.
    """

    at: float
    values: Mapping[Series, float]
    span: float | None = None
    failed: Mapping[Series, str] = field(default_factory=dict)
    unsupported: Mapping[Metric, str] = field(default_factory=dict)
    spans: Mapping[Series, float] = field(default_factory=dict)
    ended: Set[Series] = frozenset()
    buffered: Mapping[Series, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An XID that the driver reported, received at unix time `at`; `instance` is the MIG instance it was on."""

    at: float
    pci_bus_id: str
    code: int
    instance: int | None = None
