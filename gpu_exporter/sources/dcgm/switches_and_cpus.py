"""Entities without a GPU: NVSwitches with their NVLinks, and Grace CPUs with their cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.user_text import Devices
from gpu_exporter.model.gpu import Sample, Series
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Pace
from gpu_exporter.sources.dcgm.demand import SAMPLED_SECONDS
from gpu_exporter.sources.dcgm.groups import FieldWatch, WatchRequest
from gpu_exporter.sources.dcgm.inventory import Inventory
from gpu_exporter.sources.dcgm.plan import FieldQuery
from gpu_exporter.sources.dcgm.session import Session
from gpu_exporter.sources.dcgm.values import Entity, EntityGroup, FieldAnswer, link

GROUPS = {
    EntityKind.NVSWITCH: EntityGroup.SWITCH,
    EntityKind.CPU: EntityGroup.CPU,
    EntityKind.CPU_CORE: EntityGroup.CPU_CORE,
}
SUBSCRIBER = "switches and CPUs"
ALL_DEVICES = Devices()


@dataclass(frozen=True, slots=True)
class ChosenDevices:
    """Which devices are read; `kind` of Devices is g for NVSwitches and CPUs, i for NVLinks and cores, f for all."""

    switches: Devices = ALL_DEVICES
    cpus: Devices = ALL_DEVICES


@dataclass(frozen=True, slots=True)
class SwitchesAndCpus:
    """The metrics of entities without a GPU that one session should watch, and the fields that it does watch."""

    session: Session
    wanted: frozenset[Metric]
    queries: tuple[FieldQuery, ...] = ()
    watches: tuple[FieldWatch, ...] = ()


def wanted(metrics: Iterable[Metric]) -> frozenset[Metric]:
    """Return the metrics of entities without a GPU."""
    return frozenset(metric for metric in metrics if metric.entity in m.NON_GPU_ENTITIES and metric.dcgm is not None)


def watch(session: Session, wanted: frozenset[Metric], chosen: ChosenDevices) -> SwitchesAndCpus:
    """Watch those chosen entities that exist; they are read with the GPUs. Raises DcgmError, SourceLost."""
    queries: list[FieldQuery] = []
    watches: list[FieldWatch] = []
    fields_of: dict[tuple[Pace, Entity], frozenset[int]] = {}
    for entities, rows in _entities(session.inventory, sorted(wanted, key=lambda row: row.key), chosen):
        fields = tuple(sorted({row.dcgm for row in rows if row.dcgm is not None}))
        begun, refused = session.groups.watch(WatchRequest(tuple(entities), fields, SAMPLED_SECONDS[Pace.SLOW]))
        watches += begun
        for entity, labels in entities.items():
            accepted = [row for row in rows if row.dcgm is not None and row.dcgm not in refused]
            queries += [
                FieldQuery(Series(row, None, labels), entity, row.dcgm, Pace.SLOW) for row in accepted if row.dcgm
            ]
            if accepted:
                fields_of[Pace.SLOW, entity] = frozenset(row.dcgm for row in accepted if row.dcgm is not None)
    session.subscribe(SUBSCRIBER, fields_of)
    return SwitchesAndCpus(session, wanted, tuple(queries), tuple(watches))


def _entities(
    inventory: Inventory, wanted: Sequence[Metric], chosen: ChosenDevices
) -> Iterator[tuple[Mapping[Entity, Labels], list[Metric]]]:
    """Yield entities with dcgm-exporter's labels, and the metrics that are read of them."""
    for kind, group in GROUPS.items():
        rows = [row for row in wanted if row.entity is kind]
        entities = inventory.entities(group) if rows else []
        if not entities:
            continue
        of_links = [row for row in rows if row in m.SWITCH_LINKS]
        devices = chosen.switches if kind is EntityKind.NVSWITCH else chosen.cpus
        part = kind is EntityKind.CPU_CORE
        labels = _labels(inventory, kind, [entity for entity in entities if _chosen(devices, entity.id, part=part)])
        if labels:
            yield labels, [row for row in rows if row not in of_links]
        if of_links:
            yield _switch_links(inventory, entities, chosen.switches), of_links


def _chosen(devices: Devices, number: int, *, part: bool) -> bool:
    return devices.kind == "f" or ((devices.kind == "i") is part and (not devices.chosen or number in devices.chosen))


def missing(inventory: Inventory, chosen: ChosenDevices) -> Iterator[str]:
    """Yield a warning for each setting that names a device that does not exist."""
    for name, devices, groups in (
        ("switch", chosen.switches, (EntityGroup.SWITCH,)),
        ("cpu", chosen.cpus, (EntityGroup.CPU, EntityGroup.CPU_CORE)),
    ):
        there = {entity.id for entity in inventory.entities(groups[devices.kind == "i" and len(groups) > 1])}
        if devices.kind == "i" and name == "switch":
            there = {n for switch in there for n, state in enumerate(inventory.switch_links(switch)) if state}
        absent = [str(device) for device in devices.chosen if device not in there]
        if absent:
            existing = ", ".join(map(str, sorted(there))) or "none"
            yield f"--{name}-devices: there is no {', '.join(absent)}; those there are: {existing}"


def _labels(inventory: Inventory, kind: EntityKind, entities: Iterable[Entity]) -> dict[Entity, Labels]:
    if kind is EntityKind.NVSWITCH:
        return {entity: (("nvswitch", f"nvswitch{entity.id}"),) for entity in entities}
    if kind is EntityKind.CPU:
        return {entity: (("cpu", str(entity.id)),) for entity in entities}
    cpu_of = inventory.cores()
    return {entity: (("cpucore", str(entity.id)), ("cpu", str(cpu_of.get(entity.id, 0)))) for entity in entities}


def _switch_links(inventory: Inventory, switches: Iterable[Entity], chosen: Devices) -> dict[Entity, Labels]:
    return {
        link(switch, number): (("nvlink", str(number)), ("nvswitch", f"nvswitch{switch.id}"))
        for switch in switches
        for number, state in enumerate(inventory.switch_links(switch.id))
        if state and _chosen(chosen, number, part=True)
    }


def samples(queries: Iterable[FieldQuery], answers: Mapping[tuple[Entity, int], FieldAnswer]) -> tuple[Sample, ...]:
    """Return the samples of those queries whose value is within its metric's range."""
    samples = []
    for query in queries:
        answer = answers.get(query.key)
        if answer is None or not isinstance(answer.value, int | float):
            continue
        value = query.value(answer.value)
        if value is not None and query.series.metric.in_range(value):
            samples.append(Sample(query.series, value))
    return tuple(samples)
