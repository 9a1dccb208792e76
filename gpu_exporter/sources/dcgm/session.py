"""One connection to a host engine: groups, watches and readings. Used on the source's thread alone.

Nothing of it outlives the connection: a host engine that was restarted knows none of our groups.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar, cast

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.inputs import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.sources.dcgm.bindings import MOST_FIELDS, Attributes, Bindings, Part
from gpu_exporter.sources.dcgm.errors import (
    BADPARAM,
    DUPLICATE_KEY,
    FUNCTION_NOT_FOUND,
    GENERIC,
    MODULE_NOT_LOADED,
    NOT_SUPPORTED,
    PROFILING_MULTI_PASS,
    SOURCE_LOST,
    UNKNOWN_FIELD,
    DcgmError,
    outcome,
    source_lost,
)
from gpu_exporter.sources.dcgm.health_and_peers import NOTHING, Found, Incident
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
NO_MODULE = "no_module"


@dataclass(frozen=True, slots=True)
class Watch:
    """What the host engine samples for us: fields of entities, in the groups that it took."""

    entities: tuple[Entity, ...]
    fields: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Shared(Generic[T]):
    """A group or field group of the host engine, and how many of us use it. It has room for 64 of each, of all clients
    together."""

    handle: T
    users: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """Fields of some entities, to be sampled each `seconds`; `kind` tells one from another."""

    kind: str
    entities: tuple[Entity, ...]
    fields: tuple[int, ...]
    seconds: float
    keep: float = 0.0
    samples: int = 0


# What somebody wants read: fields of an entity at a pace.
Asked = Mapping[tuple[Pace, Entity], frozenset[int]]


@dataclass(slots=True)
class Table:
    """The last answers, and when those of a pace were read (monotonic seconds)."""

    answers: dict[tuple[Entity, int], Answer] = field(default_factory=dict)
    told: Found = NOTHING
    read_at: dict[Pace, float] = field(default_factory=dict)


class Session:
    """A connection. Every method raises SourceLost if it is broken."""

    def __init__(self, bindings: Bindings, to: Hostengine, patience: float, beat: Callable[[], None]) -> None:
        """`beat` is told before each call: what is late is one call, not all that there is to do."""
        self.where = str(to)
        self.table = Table()
        self.counted: dict[tuple[Entity, int], int] = {}
        self._asked: dict[object, Asked] = {}
        self._tell: dict[object, tuple[Entity, frozenset[Metric]]] = {}
        self._health_of: tuple[Entity, ...] = ()
        self._told_again: dict[Metric, float] = {}
        self._alike: dict[Pace, dict[frozenset[int], list[Entity]]] = {}
        self._bindings, self._to, self._beat = bindings, to, beat
        self._names = map(f"gpu-exporter-{os.getpid()}-{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._groups: dict[tuple[Entity, ...], _Shared[Any]] = {}
        self._field_groups: dict[tuple[int, ...], _Shared[Any]] = {}
        self._watched: Counter[tuple[Entity, int]] = Counter()
        self._found: dict[str, tuple[float, Any]] = {}
        self._probed: dict[int, tuple[Watch, dict[int, DcgmError]]] = {}
        self._system: Mapping[tuple[Entity, int], Answer] | None = None
        self._dead = False
        self._told: Counter[int] = Counter()
        self._told_of: tuple[Entity, ...] = ()
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
        if not wish.entities:
            return Watch((), ()), {}
        try:
            group = self._group(wish.entities)
        except DcgmError as error:
            return Watch((), ()), dict.fromkeys(wish.fields, error)
        taken: list[tuple[int, ...]] = []
        open_ends = [wish.fields[start : start + MOST_FIELDS] for start in range(0, len(wish.fields), MOST_FIELDS)]
        while open_ends:
            fields = open_ends.pop()
            try:
                self._watch_some(group, wish, fields)
                taken.append(fields)
            except DcgmError as error:
                if len(fields) > 1 and error.code in OF_ONE_FIELD:
                    middle = len(fields) // 2
                    open_ends += [fields[:middle], fields[middle:]]
                else:
                    refused.update(dict.fromkeys(fields, error))
        return Watch(wish.entities, tuple(taken)), refused

    def _watch_some(self, group: Any, wish: Wish, fields: tuple[int, ...]) -> None:
        field_group = self._field_group(fields)
        try:
            self._ask(
                lambda: self._bindings.watch(
                    self._handle, group, field_group, wish.seconds, wish.keep or 3 * wish.seconds, wish.samples or 2
                )
            )
        except DcgmError:
            self._end(group, wish.entities, fields)  # it may have begun with some
            self._drop_field_group(fields)
            raise
        self._watched.update((entity, field) for entity in wish.entities for field in fields)

    def unwatch(self, watch: Watch) -> None:
        """Give a watch back, as far as the host engine lets. What another of us watches, too, goes on."""
        if not watch.entities:
            return
        group = self._groups[watch.entities].handle
        for fields in watch.fields:
            self._watched.subtract((entity, field) for entity in watch.entities for field in fields)
            self._end(group, watch.entities, fields)
            self._drop_field_group(fields)
        self._drop_group(watch.entities)

    def _end(self, group: Any, entities: Sequence[Entity], fields: Sequence[int]) -> None:
        """Have the host engine sample what nobody of us watches no more: it ends a field at the first word, however
        often it was told to begin."""
        over = tuple(field for field in fields if not any(self._watched[entity, field] > 0 for entity in entities))
        if not over or self._dead:
            return
        with suppress(DcgmError, SourceLost):
            field_group = self._field_group(over)
            self._give_back(lambda: self._bindings.unwatch(self._handle, group, field_group))
            self._drop_field_group(over)

    def _group(self, entities: tuple[Entity, ...]) -> Any:
        """One for all watches of the same entities."""
        known = self._groups.get(entities)
        if known is None:
            name = next(self._names)
            handle = self._ask(lambda: self._bindings.group(self._handle, name, entities))
            known = self._groups[entities] = _Shared(handle)
        known.users += 1
        return known.handle

    def _drop_group(self, entities: tuple[Entity, ...]) -> None:
        known = self._groups[entities]
        known.users -= 1
        if not known.users:
            del self._groups[entities]
            self._give_back(lambda: self._bindings.drop_group(self._handle, known.handle))

    def _field_group(self, fields: tuple[int, ...]) -> Any:
        """One for all that ask for the same fields."""
        known = self._field_groups.get(fields)
        while known is None:
            name = f"{next(self._names)}-{len(fields)}"
            try:
                handle = self._ask(partial(self._bindings.field_group, self._handle, name, fields))
                known = self._field_groups[fields] = _Shared(handle)
            except DcgmError as error:
                if error.code != DUPLICATE_KEY:
                    raise
        known.users += 1
        return known.handle

    def _drop_field_group(self, fields: tuple[int, ...]) -> None:
        known = self._field_groups[fields]
        known.users -= 1
        if not known.users:
            del self._field_groups[fields]
            self._give_back(lambda: self._bindings.drop_field_group(self._handle, known.handle))

    # --- readings -------------------------------------------------------------------------------------------------

    def ask(self, who: object, asked: Asked) -> None:
        """Read these from now on, instead of what `who` asked for before."""
        self._asked[who] = asked
        self._alike.clear()

    def forget(self, who: object) -> None:
        """Read nothing for `who` any more."""
        self._tell.pop(who, None)
        if self._asked.pop(who, None) is None:
            return
        self._alike.clear()
        left = {entity for asked in self._asked.values() for _, entity in asked}
        for key in [key for key in self.table.answers if key[0] not in left]:
            del self.table.answers[key]

    def read(self, paces: Iterable[Pace]) -> None:
        """Bring the answers of these paces into the table: one call for all entities that are asked the same."""
        for pace in paces:
            now = time.monotonic()
            if pace not in self._alike:
                self._alike[pace] = self._asked_at(pace)
            for fields, entities in self._alike[pace].items():
                self.table.answers.update(self.latest(entities, sorted(fields)))
            self._tell_at(pace)
            self.table.read_at[pace] = now

    def tell(self, who: object, board: Entity, rows: frozenset[Metric]) -> None:
        """Ask for these rows of a GPU, which DCGM tells by calls, at the pace of each, until `who` is forgotten."""
        if rows:
            self._tell[who] = board, rows

    def _tell_at(self, pace: Pace) -> None:
        found = self.table.told
        for row in {row for _, rows in self._tell.values() for row in rows if row.pace is pace}:
            if time.monotonic() < self._told_again.get(row, 0.0):
                continue
            answer: Any
            try:
                answer = self._health() if row is m.EXP_HEALTH else self._peers()
            except DcgmError as error:
                answer = NO_MODULE if error.code == MODULE_NOT_LOADED else outcome(error.code)
                if error.code in (MODULE_NOT_LOADED, FUNCTION_NOT_FOUND, NOT_SUPPORTED):
                    self._told_again[row] = time.monotonic() + LATER_SECONDS
            found = found._replace(health=answer) if row is m.EXP_HEALTH else found._replace(peers=answer)
        self.table.told = found

    def _health(self) -> tuple[Incident, ...]:
        """One call for all GPUs: its answer takes a megabyte."""
        boards = tuple(sorted({board for board, rows in self._tell.values() if m.EXP_HEALTH in rows}))
        if boards != self._health_of:
            before, self._health_of = self._health_of, ()
            if before:
                self._drop_group(before)
            group = self._group(boards)
            try:
                self._ask(lambda: self._bindings.watch_health(self._handle, group))
            except DcgmError:
                self._drop_group(boards)
                raise
            self._health_of = boards
        handle = self._groups[boards].handle
        return self._ask(lambda: self._bindings.health(self._handle, handle))

    def _peers(self) -> dict[int, dict[int, int]]:
        """By index, as everywhere outside of DCGM."""
        place = {number: index for index, number in enumerate(self.gpus())}
        known = self._ask(lambda: self._bindings.peers(self._handle))
        return {
            place[number]: {place[other]: status for other, status in others.items() if other in place}
            for number, others in known.items()
            if number in place
        }

    def _asked_at(self, pace: Pace) -> dict[frozenset[int], list[Entity]]:
        together: dict[Entity, set[int]] = defaultdict(set)
        for asked in self._asked.values():
            for (of, entity), fields in asked.items():
                if of is pace:
                    together[entity] |= fields
        alike: dict[frozenset[int], list[Entity]] = defaultdict(list)
        for entity, numbers in together.items():
            if numbers:
                alike[frozenset(numbers)].append(entity)
        return alike

    def latest(self, entities: Sequence[Entity], fields: Sequence[int]) -> Mapping[tuple[Entity, int], Answer]:
        """The last samples of some fields; none if the host engine can't say."""
        try:
            return self._ask(lambda: self._bindings.latest(self._handle, entities, fields))
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self.where}: values can't be read: {error}") from error

    def watch_xids(self, number: int) -> Watch | None:
        """Have the Xids of a GPU kept; None if the host engine does not."""
        watch, refused = self.watch(Wish("xid", (gpu(number),), (XID,), 1.0, XID_KEEP_SECONDS, XID_KEEP_SAMPLES))
        if refused:
            self.unwatch(watch)
            return None
        self._told[number] += 1
        self._regroup()
        return watch

    def unwatch_xids(self, number: int, watch: Watch) -> None:
        """The opposite."""
        self._told[number] -= 1
        self._regroup()
        self.unwatch(watch)

    def _regroup(self) -> None:
        """One group of all GPUs whose Xids are kept: they are asked for in one call."""
        told = tuple(gpu(number) for number in sorted(+self._told))
        if told == self._told_of:
            return
        if self._told_of:
            self._drop_group(self._told_of)
        self._told_of = ()
        if told:
            with suppress(DcgmError):  # none of them is told of then; the kernel log has them, too
                self._group(told)
                self._told_of = told

    def xids(self, stamp: int) -> tuple[list[tuple[Entity, Answer]], int]:
        """Every Xid after a time stamp, and the stamp for the next time."""
        group, fields = self._groups.get(self._told_of), self._field_groups.get((XID,))
        if group is None or fields is None:
            return [], stamp
        try:
            return self._ask(lambda: self._bindings.since(self._handle, group.handle, fields.handle, stamp))
        except DcgmError:  # none yet
            return [], stamp
