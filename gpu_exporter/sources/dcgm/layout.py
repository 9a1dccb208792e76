"""The parts of one GPU: its NVLinks, and its MIG instances with their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Labels, Metric, Pace
from gpu_exporter.sources.dcgm.bindings import MigPart
from gpu_exporter.sources.dcgm.groups import WatchRequest
from gpu_exporter.sources.dcgm.inventory import LINK_NONE, Inventory
from gpu_exporter.sources.dcgm.plan import SAMPLED_SECONDS
from gpu_exporter.sources.dcgm.session import Session
from gpu_exporter.sources.dcgm.values import Entity, EntityGroup

NAME, UUID = 50, 54


@dataclass(frozen=True, slots=True)
class Layout:
    """The states of a GPU's NVLinks, whether it is in MIG mode, and its MIG instances and devices."""

    links: tuple[int, ...]
    mig: bool
    parts: tuple[MigPart, ...]

    @property
    def shape(self) -> object:
        """What decides which fields are read: of a link, only its existence, not its state."""
        return self.mig, self.parts, tuple(state != LINK_NONE for state in self.links)

    def of(self, group: EntityGroup) -> list[MigPart]:
        """Return the MIG parts of one kind."""
        return [part for part in self.parts if part.entity.group is group]


def layout(inventory: Inventory, board: Entity, *, links: bool, mig: bool) -> Layout:
    """Return the current layout of a GPU, with its links if they are wanted. Raises SourceLost.

    `mig` is whether the GPU says that it is in MIG mode; one that has instances is, too.
    """
    parts = inventory.parts()
    own = {part.entity for part in parts if part.parent == board}
    devices = [part for part in parts if part.parent in own]
    # In a GPU instance without a compute instance nothing can run.
    instances = [part for part in parts if part.entity in {device.parent for device in devices}]
    states = tuple(inventory.links(board.id)) if links else ()
    return Layout(states, mig or bool(own), (*instances, *devices))


class Instances(NamedTuple):
    """Return the labels of the GPU instances that are read, and the constant values of these and their devices."""

    labels: Mapping[Entity, Labels]
    constants: Sequence[tuple[Metric, Labels, float]]


def instances(session: Session, layout: Layout, chosen: Sequence[int | str]) -> Instances:
    """Return the chosen GPU instances, by DCGM's numbers or their devices' UUIDs; all by default. Raises SourceLost."""
    devices, parts = layout.of(EntityGroup.GPU_CI), layout.of(EntityGroup.GPU_I)
    uuids = _texts(session, UUID, [device.entity for device in devices])
    if chosen:
        by_uuid = {device.parent for device in devices if uuids.get(device.entity) in chosen}
        parts = [part for part in parts if part.entity.id in chosen or part.entity in by_uuid]
        devices = [device for device in devices if device.parent in {part.entity for part in parts}]
    names = _texts(session, NAME, [part.entity for part in parts])
    labels: dict[Entity, Labels] = {}
    constants: list[tuple[Metric, Labels, float]] = []
    for part in parts:
        labels[part.entity] = (("GPU_I_ID", str(part.number)), ("GPU_I_PROFILE", names.get(part.entity, "")))
        constants.append((m.INSTANCE_SLICES, labels[part.entity], float(part.slices)))
    for device in devices:
        identity = (("compute_instance_id", str(device.number)), ("mig_uuid", uuids.get(device.entity, "")))
        constants.append((m.MIG_DEVICE, (*labels.get(device.parent, ()), *identity), 1.0))
    return Instances(labels, constants)


def _texts(session: Session, field: int, entities: Sequence[Entity]) -> dict[Entity, str]:
    if not entities:
        return {}
    request = WatchRequest("names", tuple(entities), (field,), SAMPLED_SECONDS[Pace.STATIC])
    watch, refused = session.groups.watch(request)
    answers = {} if refused else session.connection.latest(entities, (field,))
    session.groups.unwatch(watch)
    return {entity: answer.value for (entity, _), answer in answers.items() if isinstance(answer.value, str)}
