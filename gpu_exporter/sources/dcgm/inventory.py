"""The hardware of a host engine: GPUs, MIG instances, NVLinks, NVSwitches, CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm.bindings import Attributes, MigPart
from gpu_exporter.sources.dcgm.connection import EngineConnection
from gpu_exporter.sources.dcgm.errors import MODULE_NOT_LOADED, SEE_LOG, DcgmError
from gpu_exporter.sources.dcgm.groups import FieldWatch, Groups, WatchRequest
from gpu_exporter.sources.dcgm.values import Entity, EntityGroup, FieldAnswer, gpu, link

T = TypeVar("T")
# How many seconds a list of MIG instances or NVLinks is used before it is read again.
LIST_SECONDS = 5.0
# The same for a list that the host engine has no module for: it tries to load the module each time.
RETRY_SECONDS = 600.0
# A field of an NVLink that says whether it is up, for a host engine without the module that lists them.
LINK_STATE, MOST_LINKS = 1508, 18
LINK_NONE, LINK_DOWN, LINK_UP = 0, 2, 3
SYSTEM_SECONDS = 3600.0


class Inventory:
    """The hardware of one connection. Every method raises SourceLost if the connection is broken."""

    def __init__(self, connection: EngineConnection, groups: Groups) -> None:
        self._connection, self._groups = connection, groups
        self._bindings = connection.bindings
        self._lists: dict[str, tuple[float, Any]] = {}
        self._link_watches: dict[int, tuple[FieldWatch, dict[int, DcgmError]]] = {}
        self._system: Mapping[tuple[Entity, int], FieldAnswer] | None = None

    def gpus(self, *, supported: bool = False) -> list[int]:
        """Return DCGM's numbers of all GPUs since its start, or of those that it can read now."""
        try:
            return self._connection.call(self._bindings.gpus, supported=supported)
        except DcgmError as error:
            message = f"DCGM: {self._connection.where}: its GPUs cannot be listed: {error}"
            raise SourceLost(message, fix=SEE_LOG) from error

    def attributes(self, number: int) -> Attributes:
        """Return the identity of a GPU. Raises DcgmError."""
        return self._connection.call(self._bindings.attributes, number)

    def system_answers(self, through: Entity, fields: tuple[int, ...]) -> Mapping[tuple[Entity, int], FieldAnswer]:
        """Return fields that belong to no entity, read through a GPU.

        They are watched once and until the end of the connection: the host engine can't end such a watch.
        """
        if self._system is None:
            _, refused = self._groups.watch(WatchRequest("system", (through,), fields, SYSTEM_SECONDS))
            accepted = [field for field in fields if field not in refused]
            self._system = self._connection.latest([through], accepted) if accepted else {}
        return self._system

    def entities(self, group: EntityGroup) -> list[Entity]:
        """Return the entities of a kind; none where the host engine has no module for them."""
        try:
            return [Entity(group, number) for number in self._connection.call(self._bindings.entities, group)]
        except DcgmError:
            return []

    def cores(self) -> Mapping[int, int]:
        """Return the CPU of each core."""
        try:
            return self._connection.call(self._bindings.cores)
        except DcgmError:
            return {}

    def parts(self) -> Sequence[MigPart]:
        """Return the MIG instances of all GPUs, from a list that is a few seconds old at most."""
        return self._cached_list("parts", self._bindings.parts) or ()

    def links(self, number: int) -> Sequence[int]:
        """Return the states of a GPU's NVLinks, from a list a few seconds old at most, or from their state fields."""
        states = self._cached_list("links", self._bindings.links)
        return states[0].get(number, ()) if states is not None else self._link_states(number)

    def switch_links(self, number: int) -> Sequence[int]:
        """Return the states of an NVSwitch's NVLinks."""
        states = self._cached_list("links", self._bindings.links)
        return states[1].get(number, ()) if states is not None else ()

    def _cached_list(self, name: str, function: Callable[[Any], T]) -> T | None:
        """Return a list that is a few seconds old at most; None if the host engine did not return one."""
        due, content = self._lists.get(name, (0.0, None))
        if time.monotonic() >= due:
            seconds = LIST_SECONDS
            try:
                content = self._connection.call(function)
            except DcgmError as error:
                content = None
                seconds = RETRY_SECONDS if error.code == MODULE_NOT_LOADED else LIST_SECONDS
            self._lists[name] = (time.monotonic() + seconds, content)
        return cast("T | None", content)

    def _link_states(self, number: int) -> Sequence[int]:
        links = tuple(link(gpu(number), index) for index in range(MOST_LINKS))
        if number not in self._link_watches:
            self._link_watches[number] = self._groups.watch(WatchRequest("links", links, (LINK_STATE,), LIST_SECONDS))
        _, refused = self._link_watches[number]
        if refused:
            return ()
        answers = self._connection.latest(links, (LINK_STATE,))
        values = [answers[entity, LINK_STATE].value for entity in links if (entity, LINK_STATE) in answers]
        return [LINK_NONE if value is None else LINK_UP if value == 1 else LINK_DOWN for value in values]
