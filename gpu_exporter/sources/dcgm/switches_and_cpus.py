"""What DCGM knows beside the GPUs: NVSwitches with their NVLinks, and Grace CPUs with their cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.inputs import Devices
from gpu_exporter.model.gpu import Sample, Series
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Pace
from gpu_exporter.sources.dcgm.plan import SAMPLED_SECONDS, Question
from gpu_exporter.sources.dcgm.session import Session, Watch, Wish
from gpu_exporter.sources.dcgm.values import Answer, Entity, EntityGroup, link

GROUPS = {
    EntityKind.NVSWITCH: EntityGroup.SWITCH,
    EntityKind.CPU: EntityGroup.CPU,
    EntityKind.CPU_CORE: EntityGroup.CPU_CORE,
}


EVERY = Devices()


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which of them are read; `kind` of Devices is g for NVSwitches and CPUs, i for NVLinks and cores, f for all."""

    switches: Devices = EVERY
    cpus: Devices = EVERY


@dataclass(frozen=True, slots=True)
class Beside:
    """What one connection was asked for beside the GPUs, and the questions that it can answer."""

    session: Session
    wanted: frozenset[Metric]
    questions: tuple[Question, ...] = ()
    watches: tuple[Watch, ...] = ()


def wanted(metrics: Iterable[Metric]) -> frozenset[Metric]:
    """Those that are no GPU's."""
    return frozenset(metric for metric in metrics if metric.entity in m.NON_GPU_ENTITIES and metric.dcgm is not None)


def ask(session: Session, wanted: frozenset[Metric], chosen: Chosen) -> Beside:
    """Have them sampled, as far as there are any."""
    found: list[Question] = []
    watches: list[Watch] = []
    asked: dict[tuple[Pace, Entity], frozenset[int]] = {}
    for places, rows in _places(session, sorted(wanted, key=lambda row: row.key), chosen):
        fields = tuple(sorted({row.dcgm for row in rows if row.dcgm is not None}))
        watch, refused = session.watch(Wish("beside", tuple(places), fields, SAMPLED_SECONDS[Pace.SLOW]))
        watches.append(watch)
        for entity, labels in places.items():
            taken = [row for row in rows if row.dcgm is not None and row.dcgm not in refused]
            found += [Question(Series(row, None, labels), entity, row.dcgm, Pace.SLOW) for row in taken if row.dcgm]
            if taken:
                asked[Pace.SLOW, entity] = frozenset(row.dcgm for row in taken if row.dcgm is not None)
    session.ask("beside", asked)
    return Beside(session, wanted, tuple(found), tuple(watches))


def _places(
    session: Session, wanted: Sequence[Metric], chosen: Chosen
) -> Iterator[tuple[Mapping[Entity, Labels], list[Metric]]]:
    """Entities with the labels that dcgm-exporter gives them, and what is asked of these."""
    for kind, group in GROUPS.items():
        rows = [row for row in wanted if row.entity is kind]
        entities = session.entities(group) if rows else []
        if not entities:
            continue
        of_links = [row for row in rows if row in m.SWITCH_LINKS]
        devices = chosen.switches if kind is EntityKind.NVSWITCH else chosen.cpus
        part = kind is EntityKind.CPU_CORE
        labels = _labels(session, kind, [entity for entity in entities if _chosen(devices, entity.id, part=part)])
        if labels:
            yield labels, [row for row in rows if row not in of_links]
        if of_links:
            yield _switch_links(session, entities, chosen.switches), of_links


def _chosen(devices: Devices, number: int, *, part: bool) -> bool:
    return devices.kind == "f" or ((devices.kind == "i") is part and (not devices.chosen or number in devices.chosen))


def missing(session: Session, chosen: Chosen) -> Iterator[str]:
    """A line for each list that names what is not there."""
    for name, devices, groups in (
        ("switch", chosen.switches, (EntityGroup.SWITCH,)),
        ("cpu", chosen.cpus, (EntityGroup.CPU, EntityGroup.CPU_CORE)),
    ):
        there = {entity.id for entity in session.entities(groups[devices.kind == "i" and len(groups) > 1])}
        if devices.kind == "i" and name == "switch":
            there = {n for switch in there for n, state in enumerate(session.switch_links(switch)) if state}
        none = [str(each) for each in devices.chosen if each not in there]
        if none:
            known = ", ".join(map(str, sorted(there))) or "none"
            yield f"--{name}-devices: there is no {', '.join(none)}; those there are: {known}"


def _labels(session: Session, kind: EntityKind, entities: Iterable[Entity]) -> dict[Entity, Labels]:
    if kind is EntityKind.NVSWITCH:
        return {entity: (("nvswitch", f"nvswitch{entity.id}"),) for entity in entities}
    if kind is EntityKind.CPU:
        return {entity: (("cpu", str(entity.id)),) for entity in entities}
    owner = session.cores()
    return {entity: (("cpucore", str(entity.id)), ("cpu", str(owner.get(entity.id, 0)))) for entity in entities}


def _switch_links(session: Session, switches: Iterable[Entity], chosen: Devices) -> dict[Entity, Labels]:
    return {
        link(switch, number): (("nvlink", str(number)), ("nvswitch", f"nvswitch{switch.id}"))
        for switch in switches
        for number, state in enumerate(session.switch_links(switch.id))
        if state and _chosen(chosen, number, part=True)
    }


def samples(questions: Iterable[Question], answers: Mapping[tuple[Entity, int], Answer]) -> tuple[Sample, ...]:
    """Those that have a value within their metric's range."""
    found = []
    for question in questions:
        answer = answers.get(question.key)
        if answer is None or not isinstance(answer.value, int | float):
            continue
        value = question.value(answer.value)
        metric = question.series.metric
        if value is not None and metric.low <= value <= metric.high:
            found.append(Sample(question.series, value))
    return tuple(found)
