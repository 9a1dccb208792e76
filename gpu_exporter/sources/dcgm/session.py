"""One connection to a host engine: groups, watches and readings. Used on the source's thread alone.

Nothing of it outlives the connection: a host engine that was restarted knows none of our groups.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from gpu_exporter.config import Hostengine
from gpu_exporter.model import Pace, SourceLost
from gpu_exporter.sources.dcgm.bindings import MOST_FIELDS, Attributes, Bindings, Part
from gpu_exporter.sources.dcgm.errors import (
    BADPARAM,
    DUPLICATE_KEY,
    GENERIC,
    MODULE_NOT_LOADED,
    NOT_SUPPORTED,
    PROFILING_MULTI_PASS,
    SOURCE_LOST,
    UNKNOWN_FIELD,
    DcgmError,
    source_lost,
)
from gpu_exporter.sources.dcgm.values import Answer, Entity, EntityGroup, gpu, link

T = TypeVar("T")
XID = 230
# Samples of Xids are kept for who looks late: DCGM's own limits on age and number.
XID_KEEP_SECONDS, XID_KEEP_SAMPLES = 3600.0, 1000
# What a field group may be refused for because of one field of it: the rest is tried without that.
OF_ONE_FIELD = frozenset({BADPARAM, UNKNOWN_FIELD, NOT_SUPPORTED, GENERIC, PROFILING_MULTI_PASS})
# How often what is not sampled is looked at: MIG instances and NVLinks.
LOOK_SECONDS = 5.0
LATER_SECONDS = 600.0
# A field of an NVLink that says whether it is up, for a host engine without the module that lists them.
LINK_STATE, MOST_LINKS = 1508, 18
LINK_NONE, LINK_DOWN, LINK_UP = 0, 2, 3
SYSTEM_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Watch:
    """What the host engine samples for us: a group of entities, and the field groups that it took."""

    group: Any
    fields: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """Fields of some entities, to be sampled each `seconds`; `kind` is a word for the group's name."""

    kind: str
    entities: tuple[Entity, ...]
    fields: tuple[int, ...]
    seconds: float
    keep: float = 0.0
    samples: int = 0


@dataclass(slots=True)
class Table:
    """The last answers, and when those of a pace were read (monotonic seconds)."""

    answers: dict[tuple[Entity, int], Answer] = field(default_factory=dict)
    read_at: dict[Pace, float] = field(default_factory=dict)


class Session:
    """A connection. Every method raises SourceLost if it is broken."""

    def __init__(self, bindings: Bindings, to: Hostengine, patience: float, beat: Callable[[], None]) -> None:
        """`beat` is told before each call: what is late is one call, not all that there is to do."""
        self.where = str(to)
        self.table = Table()
        self.asked: dict[Pace, dict[Entity, frozenset[int]]] = {pace: {} for pace in Pace}
        self._bindings, self._to, self._beat = bindings, to, beat
        self._names = map(f"gpu-exporter-{os.getpid()}-{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._field_groups: dict[tuple[int, ...], Any] = {}
        self._found: dict[str, tuple[float, Any]] = {}
        self._probed: dict[int, tuple[Watch, dict[int, DcgmError]]] = {}
        self._system: Mapping[tuple[Entity, int], Answer] | None = None
        self._dead = False
        self._told: set[int] = set()
        self._told_group: Any = None
        self._handle = self._ask(lambda: bindings.connect(to, patience))

    def _ask(self, call: Callable[[], T]) -> T:
        self._beat()
        try:
            return call()
        except DcgmError as error:
            if error.code in SOURCE_LOST:
                self._dead = True
                raise source_lost(error.code, self.where) from error
            raise

    def _give_back(self, call: Callable[[], None]) -> None:
        """As far as the host engine lets; not on a dead connection, where each call may hang again."""
        if not self._dead:
            with suppress(DcgmError, SourceLost):
                self._ask(call)

    def close(self) -> None:
        """Disconnect; the host engine drops our groups and watches by itself."""
        with suppress(DcgmError):  # it was gone already
            self._bindings.disconnect(self._handle, self._to)

    # --- what there is --------------------------------------------------------------------------------------------

    def gpus(self, *, supported: bool = False) -> list[int]:
        """DCGM's numbers of all GPUs, or of those that it can read now."""
        try:
            return self._ask(lambda: self._bindings.gpus(self._handle, supported=supported))
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self.where}: its GPUs can't be listed: {error}") from error

    def attributes(self, number: int) -> Attributes:
        """The identity of a GPU. Raises DcgmError."""
        return self._ask(lambda: self._bindings.attributes(self._handle, number))

    def of_system(self, through: Entity, fields: tuple[int, ...]) -> Mapping[tuple[Entity, int], Answer]:
        """Fields that belong to no entity, asked for through a GPU; watched once and for good: the host engine can't
        end such a watch."""
        if self._system is None:
            _, refused = self.watch(Wish("system", (through,), fields, SYSTEM_SECONDS))
            taken = [field for field in fields if field not in refused]
            self._system = self.latest([through], taken) if taken else {}
        return self._system

    def entities(self, group: EntityGroup) -> list[Entity]:
        """The entities of a kind; none where the host engine has no module for them."""
        try:
            return [Entity(group, number) for number in self._ask(lambda: self._bindings.entities(self._handle, group))]
        except DcgmError:
            return []

    def cores(self) -> Mapping[int, int]:
        """Whose CPU each core is."""
        try:
            return self._ask(lambda: self._bindings.cores(self._handle))
        except DcgmError:
            return {}

    def parts(self) -> Sequence[Part]:
        """The MIG instances of all GPUs, looked at now and then."""
        return self._look("parts", lambda: self._bindings.parts(self._handle)) or ()

    def links(self, number: int) -> Sequence[int]:
        """The states of a GPU's NVLinks, looked at now and then: by DCGM's own list, or else by their state fields."""
        known = self._look("links", lambda: self._bindings.links(self._handle))
        return known[0].get(number, ()) if known is not None else self._link_states(number)

    def switch_links(self, number: int) -> Sequence[int]:
        """The same of an NVSwitch."""
        known = self._look("links", lambda: self._bindings.links(self._handle))
        return known[1].get(number, ()) if known is not None else ()

    def _look(self, what: str, ask: Callable[[], T]) -> T | None:
        """What was found lately, or now. What a host engine has no module for is not asked again soon: it tries to load
        the module each time."""
        due, known = self._found.get(what, (0.0, None))
        if time.monotonic() >= due:
            later = LOOK_SECONDS
            try:
                known = self._ask(ask)
            except DcgmError as error:
                known = None
                later = LATER_SECONDS if error.code == MODULE_NOT_LOADED else LOOK_SECONDS
            self._found[what] = (time.monotonic() + later, known)
        return cast("T | None", known)

    def _link_states(self, number: int) -> Sequence[int]:
        links = tuple(link(gpu(number), each) for each in range(MOST_LINKS))
        if number not in self._probed:
            self._probed[number] = self.watch(Wish("links", links, (LINK_STATE,), LOOK_SECONDS))
        if self._probed[number][1]:
            return ()
        answers = self.latest(links, (LINK_STATE,))
        values = [answers[each, LINK_STATE].value for each in links if (each, LINK_STATE) in answers]
        return [LINK_NONE if value is None else LINK_UP if value == 1 else LINK_DOWN for value in values]

    # --- watches --------------------------------------------------------------------------------------------------

    def watch(self, wish: Wish) -> tuple[Watch, dict[int, DcgmError]]:
        """Have fields sampled; the second value says which were refused, and why."""
        refused: dict[int, DcgmError] = {}
        try:
            group = self._ask(
                lambda: self._bindings.group(self._handle, f"{next(self._names)}-{wish.kind}", wish.entities)
            )
        except DcgmError as error:
            return Watch(None, ()), dict.fromkeys(wish.fields, error)
        taken: list[Any] = []
        open_ends = [wish.fields[start : start + MOST_FIELDS] for start in range(0, len(wish.fields), MOST_FIELDS)]
        while open_ends:
            fields = open_ends.pop()
            try:
                taken.append(self._watch_some(group, wish, fields))
            except DcgmError as error:
                if len(fields) > 1 and error.code in OF_ONE_FIELD:
                    middle = len(fields) // 2
                    open_ends += [fields[:middle], fields[middle:]]
                else:
                    refused.update(dict.fromkeys(fields, error))
        return Watch(group, tuple(taken)), refused

    def _watch_some(self, group: Any, wish: Wish, fields: tuple[int, ...]) -> Any:
        field_group = self._field_group(fields)
        try:
            self._ask(
                lambda: self._bindings.watch(
                    self._handle, group, field_group, wish.seconds, wish.keep or 3 * wish.seconds, wish.samples or 2
                )
            )
        except DcgmError:
            # it may have begun with some
            self._give_back(lambda: self._bindings.unwatch(self._handle, group, field_group))
            raise
        return field_group

    def _field_group(self, fields: tuple[int, ...]) -> Any:
        """Shared by all that ask for the same fields: a host engine has room for 64."""
        known = self._field_groups.get(fields)
        while known is None:
            name = f"{next(self._names)}-{len(fields)}"
            try:
                known = self._ask(lambda name=name: self._bindings.field_group(self._handle, name, fields))  # type: ignore[misc]
            except DcgmError as error:
                if error.code != DUPLICATE_KEY:
                    raise
        self._field_groups[fields] = known
        return known

    def unwatch(self, watch: Watch) -> None:
        """Give a watch back, as far as the host engine lets."""
        for fields in watch.fields:
            self._give_back(partial(self._bindings.unwatch, self._handle, watch.group, fields))
        if watch.group is not None:
            self._give_back(partial(self._bindings.drop_group, self._handle, watch.group))

    # --- readings -------------------------------------------------------------------------------------------------

    def read(self, paces: Iterable[Pace]) -> None:
        """Bring the answers of these paces into the table: one call for all entities that are asked the same."""
        for pace in paces:
            now = time.monotonic()
            alike: dict[frozenset[int], list[Entity]] = defaultdict(list)
            for entity, fields in self.asked[pace].items():
                if fields:
                    alike[fields].append(entity)
            for fields, entities in alike.items():
                self.table.answers.update(self.latest(entities, sorted(fields)))
            self.table.read_at[pace] = now

    def latest(self, entities: Sequence[Entity], fields: Sequence[int]) -> Mapping[tuple[Entity, int], Answer]:
        """The last samples of some fields; none if the host engine can't say."""
        try:
            return self._ask(lambda: self._bindings.latest(self._handle, entities, fields))
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self.where}: values can't be read: {error}") from error

    def forget(self, entities: Iterable[Entity]) -> None:
        """Ask these entities for nothing any more."""
        gone = set(entities)
        for asked in self.asked.values():
            for entity in gone & asked.keys():
                del asked[entity]
        for key in [key for key in self.table.answers if key[0] in gone]:
            del self.table.answers[key]

    def watch_xids(self, number: int) -> Watch | None:
        """Have the Xids of a GPU kept; None if the host engine does not."""
        watch, refused = self.watch(Wish("xid", (gpu(number),), (XID,), 1.0, XID_KEEP_SECONDS, XID_KEEP_SAMPLES))
        if refused:
            self.unwatch(watch)
            return None
        self._regroup({*self._told, number})
        return watch

    def unwatch_xids(self, number: int, watch: Watch) -> None:
        """The opposite."""
        self._regroup(self._told - {number})
        self.unwatch(watch)

    def _regroup(self, gpus: set[int]) -> None:
        """One group of all GPUs whose Xids are kept: they are asked for in one call."""
        self._told = gpus
        if self._told_group is not None:
            self._give_back(partial(self._bindings.drop_group, self._handle, self._told_group))
            self._told_group = None
        if gpus:
            name = f"{next(self._names)}-told"
            try:
                self._told_group = self._ask(lambda: self._bindings.group(self._handle, name, map(gpu, sorted(gpus))))
            except DcgmError:  # none of them is told of then; the kernel log has them, too
                self._told = set()

    def xids(self, stamp: int) -> tuple[list[tuple[Entity, Answer]], int]:
        """Every Xid after a time stamp, and the stamp for the next time."""
        group, fields = self._told_group, self._field_groups.get((XID,))
        if group is None or fields is None:
            return [], stamp
        try:
            return self._ask(lambda: self._bindings.since(self._handle, group, fields, stamp))
        except DcgmError:  # none yet
            return [], stamp
