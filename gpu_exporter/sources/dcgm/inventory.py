"""The hardware of a host engine: GPUs, MIG instances, NVLinks, NVSwitches, CPUs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.metric import Pace
from gpu_exporter.sources.dcgm.bindings import Attributes, MigPart
from gpu_exporter.sources.dcgm.connection import EngineConnection
from gpu_exporter.sources.dcgm.demand import SAMPLED_SECONDS
from gpu_exporter.sources.dcgm.errors import MODULE_NOT_LOADED, SEE_LOG, DcgmError
from gpu_exporter.sources.dcgm.groups import Groups, WatchRequest
from gpu_exporter.sources.dcgm.links import LINK_STATE, MOST_LINKS
from gpu_exporter.sources.dcgm.values import NO_ANSWER, Entity, EntityGroup, FieldAnswer, gpu, link

T = TypeVar("T")
# Fields that complement a GPU's attributes: its minor number and compute capability; its MIG mode and UUID.
MINOR_NUMBER, COMPUTE_CAPABILITY, MIG_MODE, UUID = 55, 63, 67, 54
CONSTANT_FIELDS, IDENTITY_FIELDS = (MINOR_NUMBER, COMPUTE_CAPABILITY), (UUID, MIG_MODE)
# How many seconds a list of MIG instances is used before it is read again.
LIST_SECONDS = 5.0
# The same for a list that the host engine has no module for: it tries to load the module each time.
RETRY_SECONDS = 600.0
# The same for the states of NVLinks: for each, the host engine makes a call of the driver.
LINKS_SECONDS = 15.0
LINK_NONE, LINK_DOWN, LINK_UP = 0, 2, 3
SYSTEM_SECONDS = 3600.0


class Inventory:
    """The hardware of one connection. Every method raises SourceLost if the connection is broken."""

    def __init__(self, connection: EngineConnection, groups: Groups) -> None:
        self._connection, self._groups = connection, groups
        self._bindings = connection.bindings
        self._lists: dict[str, tuple[float, Any]] = {}
        self._live_links: dict[int, LiveLinks] = {}
        self._identified: set[Entity] = set()
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
            _, refused = self._groups.watch(WatchRequest((through,), fields, SYSTEM_SECONDS))
            accepted = [field for field in fields if field not in refused]
            self._system = self._connection.latest([through], accepted) if accepted else {}
        return self._system

    def identity(self, board: Entity) -> Mapping[int, FieldAnswer]:
        """Return the fields of a GPU that complement its attributes, which are sampled until the connection ends.

        They are watched for all GPUs together: such a watch waits for the host engine, whatever it has to read.
        """
        if board not in self._identified:
            boards = tuple(dict.fromkeys((*map(gpu, self.gpus(supported=True)), board)))
            requests = [
                WatchRequest((each,), fields, SAMPLED_SECONDS[pace])
                for fields, pace in ((CONSTANT_FIELDS, Pace.STATIC), (IDENTITY_FIELDS, Pace.SLOW))
                for each in boards
            ]
            results = self._groups.watch_all(requests)
            refused = {request.entities for request, result in zip(requests, results, strict=True) if result.refused}
            self._identified.update(each for each in boards if (each,) not in refused)
        answers = self._connection.latest([board], (*CONSTANT_FIELDS, *IDENTITY_FIELDS))
        return {field: answer for (_, field), answer in answers.items()}

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
        return self._cached_list("parts", self._bindings.parts, LIST_SECONDS) or ()

    def links(self, number: int) -> Sequence[int]:
        """Return the states of a GPU's NVLinks, from a list a few seconds old at most, or from their state fields."""
        states = self._link_list()
        return states[0].get(number, ()) if states is not None else self._link_states(number)

    def switch_links(self, number: int) -> Sequence[int]:
        """Return the states of an NVSwitch's NVLinks."""
        states = self._link_list()
        return states[1].get(number, ()) if states is not None else ()

    def _link_list(self) -> tuple[dict[int, list[int]], dict[int, list[int]]] | None:
        return self._cached_list("links", self._bindings.links, LINKS_SECONDS)

    def _cached_list(self, name: str, function: Callable[[Any], T], seconds: float) -> T | None:
        """Return a list that is a few seconds old at most; None if the host engine did not return one."""
        due, content = self._lists.get(name, (0.0, None))
        if time.monotonic() >= due:
            try:
                content = self._connection.call(function)
            except DcgmError as error:
                content = None
                seconds = RETRY_SECONDS if error.code == MODULE_NOT_LOADED else seconds
            self._lists[name] = (time.monotonic() + seconds, content)
        return cast("T | None", content)

    def _link_states(self, number: int) -> Sequence[int]:
        """Return the states of a GPU's NVLinks without the module that lists them, read live."""
        now, board = time.monotonic(), gpu(number)
        known = self._live_links.get(number, NO_LINKS)
        if now - known.read_at < LINKS_SECONDS:
            return known.states
        search = now - known.searched_at >= RETRY_SECONDS
        links = [link(board, place) for place in (range(MOST_LINKS) if search else known.places)]
        answers = self._connection.live(links, (LINK_STATE,)) if links else {}
        values = [answers.get((link(board, place), LINK_STATE), NO_ANSWER).value for place in range(MOST_LINKS)]
        states = tuple(LINK_NONE if value is None else LINK_UP if value == 1 else LINK_DOWN for value in values)
        there = tuple(place for place, state in enumerate(states) if state != LINK_NONE)
        places, searched_at = (there, now) if search else (known.places, known.searched_at)
        self._live_links[number] = LiveLinks(states, now, places, searched_at)
        return states


class LiveLinks(NamedTuple):
    """The states of a GPU's links, and which of them there are; the rest is not read until they are searched again."""

    states: tuple[int, ...]
    read_at: float
    places: Sequence[int]
    searched_at: float


NO_LINKS = LiveLinks((), -float("inf"), (), -float("inf"))
