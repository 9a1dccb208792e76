"""Metrics -> the fields to read of each entity, and how often. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Pace, scaled
from gpu_exporter.sources.dcgm.groups import WatchRequest
from gpu_exporter.sources.dcgm.values import Entity

# How often the host engine samples what is read at a pace, so that no answer is much older than its pace.
SAMPLED_SECONDS = {Pace.SLOW: 7.5, Pace.RARE: 30.0, Pace.STATIC: 600.0}
# Profiling fields (`DCGM_FIELD_ID_IS_PROF_FIELD`, and reserved ids). A host engine that cannot profile refuses all.
PROFILING = (range(1001, 1100), range(1532, 1534))
# Metrics that separate calls read, not fields.
BY_CALL = (m.NVLINK_COUNT, m.NVLINK_UP, m.MIG_DEVICE, m.INSTANCE_SLICES, m.EXP_HEALTH, m.EXP_P2P)
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
    """A series, and the field of an entity that has its values. `pace` is that of the field: of its fastest series."""

    series: Series
    entity: Entity
    number: int
    pace: Pace

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
    """The fields to read of one GPU, and the metrics that have no field in DCGM."""

    plain: tuple[FieldQuery, ...] = ()
    profiling: tuple[FieldQuery, ...] = ()
    unsupported: Mapping[Metric, str] = field(default_factory=dict)

    @property
    def series(self) -> set[Series]:
        """All series that may get values."""
        return {query.series for query in (*self.plain, *self.profiling)}

    def plain_requests(self, interval: float) -> list[WatchRequest]:
        """Return what the host engine should sample, without profiling."""
        seconds = {**SAMPLED_SECONDS, Pace.FAST: interval}
        return [
            WatchRequest(pace.name.lower(), entities, fields, seconds[pace])
            for (pace, fields), entities in _batched(self.plain).items()
        ]

    def profiling_requests(self, interval: float) -> list[WatchRequest]:
        """Return what the host engine should sample for profiling; it may refuse all of it, and so it is separate."""
        return [
            WatchRequest("profiling", entities, fields, interval)
            for (_, fields), entities in _batched(self.profiling).items()
        ]

    def without(self, entities: Sequence[Entity], refused: Iterable[int]) -> FieldPlan:
        """Return the plan without fields that the host engine refused."""
        gone = {(entity, number) for entity in entities for number in refused}
        return FieldPlan(
            tuple(query for query in self.plain if query.key not in gone),
            tuple(query for query in self.profiling if query.key not in gone),
            self.unsupported,
        )


def _batched(queries: Sequence[FieldQuery]) -> dict[tuple[Pace, tuple[int, ...]], tuple[Entity, ...]]:
    """Return entities that have the same fields at the same pace."""
    fields: dict[tuple[Pace, Entity], set[int]] = defaultdict(set)
    for query in queries:
        fields[query.pace, query.entity].add(query.number)
    batches: dict[tuple[Pace, tuple[int, ...]], list[Entity]] = defaultdict(list)
    for (pace, entity), numbers in fields.items():
        batches[pace, tuple(sorted(numbers))].append(entity)
    return {key: tuple(entities) for key, entities in batches.items()}


def plan(
    series_of: Callable[[Metric, Labels], Series],
    board: Entity,
    metrics: Iterable[Metric],
    links: Mapping[int, Entity],
    instances: Mapping[Entity, Labels],
    *,
    mig: bool,
) -> FieldPlan:
    """Return the fields to read: of the GPU, its NVLinks by number, and its MIG instances with their labels.

    `series_of` returns the same series for the same metric and labels each time.
    In MIG mode, metrics of instances are not read from the GPU.
    """
    wanted = list(metrics)
    paces: dict[int, Pace] = {}
    for metric in wanted:
        if metric.dcgm is not None:
            paces[metric.dcgm] = min(paces.get(metric.dcgm, metric.pace), metric.pace, key=lambda pace: pace.value)
    plain: list[FieldQuery] = []
    profiling: list[FieldQuery] = []
    unsupported: dict[Metric, str] = {}
    for metric in wanted:
        if metric in BY_CALL or metric.entity in m.NON_GPU_ENTITIES:
            continue
        if metric.dcgm is None or metric.dcgm in NEVER_ANSWERED:
            unsupported[metric] = "no_field"
            continue
        places: list[tuple[Entity, Labels]]
        if metric.entity is EntityKind.NVLINK:
            places = [(entity, (("nvlink", str(number)),)) for number, entity in links.items()]
            if not links:
                unsupported[metric] = "not_supported"
        elif mig and metric.per_instance:
            places = list(instances.items())
        else:
            places = [(board, ())]
        for entity, labels in places:
            query = FieldQuery(series_of(metric, labels), entity, metric.dcgm, paces[metric.dcgm])
            (profiling if is_profiling(metric.dcgm) else plain).append(query)
    return FieldPlan(tuple(plain), tuple(profiling), unsupported)
