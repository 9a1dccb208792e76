"""Metrics -> the fields to read of each entity, and how often. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Pace, scaled
from gpu_exporter.sources.dcgm.demand import OVERLOADED, Demand, is_asked
from gpu_exporter.sources.dcgm.groups import WatchRequest
from gpu_exporter.sources.dcgm.links import is_of_gpu, place_of
from gpu_exporter.sources.dcgm.values import Entity

# When the means that are sampled at a pace are read: more often than they are sampled, so that none is missed.
READ_MEANS = {Pace.FAST: Pace.FAST, Pace.STEADY: Pace.FAST, Pace.SLOW: Pace.STEADY}
# Profiling fields (`DCGM_FIELD_ID_IS_PROF_FIELD`, and reserved ids). A host engine that cannot profile refuses all.
PROFILING = (range(1001, 1100), range(1532, 1534))
# Metrics that separate calls read, not fields.
BY_CALL = (m.NVLINK_COUNT, m.NVLINK_UP, m.LINK_UP, m.MIG_DEVICE, m.INSTANCE_SLICES, m.EXP_HEALTH, m.EXP_P2P)
# Fields that DCGM 3.3 to 4.6 never answers (PCIe throughput); NVML's call for them busy-waits for 20 ms.
NEVER_ANSWERED = frozenset({200, 201})
FABRIC_KNOWN = range(1, 5)
# Fields that DCGM leaves at 0 if the driver has no value: it checks the return code of the call, not the field's own
# (DcgmCacheManager.cpp of 4.6.0, seen on injected GPUs). Neither memory at 0 degrees nor a board at 0 W answers.
ZERO_IS_NONE = frozenset({140, 157})


def is_profiling(number: int) -> bool:
    """Return whether this field is a profiling field."""
    return any(number in numbers for numbers in PROFILING)


@dataclass(frozen=True, slots=True)
class FieldQuery:
    """A series, and the field of an entity that has its values.

    `pace` says how often it is read: at that of its fastest series. `sampled` is the pace of the samples of a mean.
    """

    series: Series
    entity: Entity
    number: int
    pace: Pace
    sampled: Pace = Pace.FAST

    @property
    def key(self) -> tuple[Entity, int]:
        """The key of its answer in a table."""
        return self.entity, self.number

    def value(self, raw: float) -> float | None:
        """Return the value in the metric's unit; None where DCGM's number means that there is no value."""
        metric = self.series.metric
        if (metric is m.FABRIC and raw not in FABRIC_KNOWN) or (raw == 0 and self.number in ZERO_IS_NONE):
            return None
        if metric.bit is not None:
            return int(raw) >> metric.bit & 1
        return scaled(raw, metric.dcgm_scale)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """The fields to read of one GPU, and the metrics that have no field in DCGM.

    `sums` are plain fields that are only read where the host engine lacks the profiling fields that add up to them.
    """

    plain: tuple[FieldQuery, ...] = ()
    profiling: tuple[FieldQuery, ...] = ()
    unsupported: Mapping[Metric, str] = field(default_factory=dict)

    @property
    def series(self) -> set[Series]:
        """All series that may get values."""
        return {query.series for query in (*self.plain, *self.profiling)}

    @property
    def sums(self) -> tuple[FieldQuery, ...]:
        """The plain fields whose values are computed from profiling fields where there are these."""
        parts = {query.series.metric for query in self.profiling}
        return tuple(
            query for query in self.plain if query.series.metric.sum_of and parts.issuperset(query.series.metric.sum_of)
        )

    def plain_requests(self, seconds: Mapping[Pace, float]) -> list[WatchRequest]:
        """Return what the host engine should sample, without profiling, sums, and links, which are read live."""
        sums = {*self.sums}
        queries = (query for query in self.plain if query not in sums and not is_of_gpu(query.entity))
        return _requests(((query.pace, query) for query in queries), seconds)

    def sum_requests(self, seconds: Mapping[Pace, float]) -> list[WatchRequest]:
        """Return what the host engine should sample if it has no profiling fields that add up to `sums`."""
        return _requests(((query.pace, query) for query in self.sums), seconds)

    def profiling_requests(self, seconds: Mapping[Pace, float]) -> list[WatchRequest]:
        """Return what the host engine should sample for profiling; it may refuse all of it, and so it is separate."""
        return _requests(((query.sampled, query) for query in self.profiling), seconds)

    def without(self, entities: Sequence[Entity], refused: Iterable[int]) -> FieldPlan:
        """Return the plan without fields that the host engine refused."""
        gone = {(entity, number) for entity in entities for number in refused}
        return FieldPlan(
            tuple(query for query in self.plain if query.key not in gone),
            tuple(query for query in self.profiling if query.key not in gone),
            self.unsupported,
        )


def _requests(queries: Iterable[tuple[Pace, FieldQuery]], seconds: Mapping[Pace, float]) -> list[WatchRequest]:
    """Return one request for all entities that have the same fields at the same interval."""
    fields: dict[tuple[float, Entity], set[int]] = defaultdict(set)
    for pace, query in queries:
        fields[seconds[pace], query.entity].add(query.number)
    entities: dict[tuple[float, tuple[int, ...]], list[Entity]] = defaultdict(list)
    for (interval, entity), numbers in fields.items():
        entities[interval, tuple(sorted(numbers))].append(entity)
    return [WatchRequest(tuple(each), numbers, interval) for (interval, numbers), each in entities.items()]


@dataclass(frozen=True, slots=True)
class GpuParts:
    """The parts of a GPU: the numbers of its NVLinks, its MIG instances with their labels, and its MIG mode.

    `measures_links`: whether profiling of each link does not compete with other profiling fields.
    """

    links: Sequence[int] = ()
    instances: Mapping[Entity, Labels] = field(default_factory=dict)
    mig: bool = False
    measures_links: bool = True


def plan(
    series_of: Callable[[Metric, Labels], Series],
    board: Entity,
    metrics: Iterable[Metric],
    parts: GpuParts,
    demand: Demand = Demand.ALL,
    hidden: Collection[Metric] = (),
) -> FieldPlan:
    """Return the fields to read, of the GPU and its parts. `hidden` metrics are not exposed, and read less often.

    `series_of` returns the same series for the same metric and labels each time.
    In MIG mode, metrics of instances are not read from the GPU.
    """
    unsupported: dict[Metric, str] = {}
    places: list[tuple[Metric, Labels, Entity, int]] = []
    for metric in metrics:
        if metric in BY_CALL or metric.entity in m.NON_GPU_ENTITIES:
            continue
        found = list(_places(metric, board, parts))
        if metric.dcgm is None or metric.dcgm in NEVER_ANSWERED:
            unsupported[metric] = "no_field"
        elif not is_asked(metric, demand):
            unsupported[metric] = OVERLOADED
        elif not found and metric.entity is EntityKind.NVLINK:
            unsupported[metric] = "not_supported"
        else:
            places += [(metric, *place) for place in found]
    plain: list[FieldQuery] = []
    profiling: list[FieldQuery] = []
    paces = _paces(places, hidden)
    for metric, labels, entity, number in places:
        series, pace = series_of(metric, labels), paces[number]
        if is_profiling(number):
            profiling.append(FieldQuery(series, entity, number, READ_MEANS[pace], pace))
        else:
            plain.append(FieldQuery(series, entity, number, pace))
    return FieldPlan(tuple(plain), tuple(profiling), unsupported)


def _places(metric: Metric, board: Entity, parts: GpuParts) -> Iterator[tuple[Labels, Entity, int]]:
    """Yield the labels of each series of a metric, and the entity and field that have its values."""
    if metric.dcgm is None:
        return
    if metric.entity is EntityKind.NVLINK:
        for index in parts.links:
            place = place_of(board, index, metric.dcgm)
            if place is not None and (parts.measures_links or not is_profiling(place[1])):
                yield (("nvlink", str(index)),), *place
    elif parts.mig and metric.per_instance:
        for entity, labels in parts.instances.items():
            yield labels, entity, metric.dcgm
    else:
        yield (), board, metric.dcgm


def _paces(places: Iterable[tuple[Metric, Labels, Entity, int]], hidden: Collection[Metric]) -> dict[int, Pace]:
    """Return the pace of each field: that of its fastest metric."""
    paces: dict[int, Pace] = {}
    for metric, _, entity, number in places:
        pace = _pace(metric, entity, number, hidden)
        paces[number] = min(paces.get(number, pace), pace, key=lambda each: each.value)
    return paces


def _pace(metric: Metric, entity: Entity, number: int, hidden: Collection[Metric]) -> Pace:
    """Return how often a metric is read, or how often a mean is sampled. Live reads are never fast."""
    pace = metric.nvml_pace if is_profiling(number) else metric.pace
    slowest = Pace.SLOW if is_of_gpu(entity) else Pace.STEADY if metric in hidden and metric is not m.GPU_TEMP else pace
    return max(pace, slowest, key=lambda each: each.value)
