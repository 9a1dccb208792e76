"""What DCGM knows beside the GPUs: NVSwitches with their NVLinks, and Grace CPUs with their cores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpu_exporter import metrics as m
from gpu_exporter.model import EntityKind, Labels, Metric, Pace, Sample, Series
from gpu_exporter.sources.dcgm.plan import SAMPLED_SECONDS, Question
from gpu_exporter.sources.dcgm.session import Session, Wish
from gpu_exporter.sources.dcgm.values import Answer, Entity, EntityGroup, link

GROUPS = {
    EntityKind.NVSWITCH: EntityGroup.SWITCH,
    EntityKind.CPU: EntityGroup.CPU,
    EntityKind.CPU_CORE: EntityGroup.CPU_CORE,
}


def ask(session: Session, metrics: Iterable[Metric]) -> tuple[Question, ...]:
    """Have them sampled, as far as there are any; the questions that can be answered."""
    wanted = [metric for metric in metrics if metric.entity in m.BESIDE and metric.dcgm is not None]
    found: list[Question] = []
    for places, rows in _places(session, wanted):
        fields = tuple(sorted({row.dcgm for row in rows if row.dcgm is not None}))
        _, refused = session.watch(Wish("beside", tuple(places), fields, SAMPLED_SECONDS[Pace.SLOW]))
        for entity, labels in places.items():
            taken = [row for row in rows if row.dcgm is not None and row.dcgm not in refused]
            found += [Question(Series(row, None, labels), entity, row.dcgm, Pace.SLOW) for row in taken if row.dcgm]
            if taken:
                session.asked[Pace.SLOW][entity] = frozenset(row.dcgm for row in taken if row.dcgm is not None)
    return tuple(found)


def _places(session: Session, wanted: Sequence[Metric]) -> Iterator[tuple[Mapping[Entity, Labels], list[Metric]]]:
    """Entities with the labels that dcgm-exporter gives them, and what is asked of these."""
    for kind, group in GROUPS.items():
        rows = [row for row in wanted if row.entity is kind]
        entities = session.entities(group) if rows else []
        if not entities:
            continue
        of_links = [row for row in rows if row in m.SWITCH_LINKS]
        labels = _labels(session, kind, entities)
        yield labels, [row for row in rows if row not in of_links]
        if of_links:
            yield _switch_links(session, entities), of_links


def _labels(session: Session, kind: EntityKind, entities: Iterable[Entity]) -> dict[Entity, Labels]:
    if kind is EntityKind.NVSWITCH:
        return {entity: (("nvswitch", f"nvswitch{entity.id}"),) for entity in entities}
    if kind is EntityKind.CPU:
        return {entity: (("cpu", str(entity.id)),) for entity in entities}
    owner = session.cores()
    return {entity: (("cpucore", str(entity.id)), ("cpu", str(owner.get(entity.id, 0)))) for entity in entities}


def _switch_links(session: Session, switches: Iterable[Entity]) -> dict[Entity, Labels]:
    return {
        link(switch, number): (("nvlink", str(number)), ("nvswitch", f"nvswitch{switch.id}"))
        for switch in switches
        for number, state in enumerate(session.switch_links(switch.id))
        if state
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
