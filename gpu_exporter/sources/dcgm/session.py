"""Everything that belongs to one connection to a host engine. Used only on the source's thread.

Nothing of it outlives the connection: a host engine that was restarted has none of its groups and watches any more.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.sources.dcgm.bindings import Bindings
from gpu_exporter.sources.dcgm.connection import EngineConnection
from gpu_exporter.sources.dcgm.demand import SAMPLED_SECONDS
from gpu_exporter.sources.dcgm.errors import (
    FUNCTION_NOT_FOUND,
    MODULE_NOT_LOADED,
    NOT_SUPPORTED,
    DcgmError,
    outcome,
)
from gpu_exporter.sources.dcgm.groups import Groups, WatchRequest
from gpu_exporter.sources.dcgm.health_and_peers import NO_ANSWERS, CallAnswers, DcgmIncident
from gpu_exporter.sources.dcgm.inventory import RETRY_SECONDS, Inventory
from gpu_exporter.sources.dcgm.links import is_of_gpu
from gpu_exporter.sources.dcgm.values import NO_ANSWER, Entity, FieldAnswer, gpu

NO_MODULE = "no_module"


class Calls:
    """The calls of one connection, made while any device subscribes to them."""

    def __init__(self, connection: EngineConnection, groups: Groups, inventory: Inventory) -> None:
        self.answers: CallAnswers = NO_ANSWERS
        self._connection, self._groups, self._inventory = connection, groups, inventory
        self._bindings = connection.bindings
        self._subscriptions: dict[object, tuple[Entity, frozenset[Metric]]] = {}
        self._boards: tuple[Entity, ...] = ()
        self._retry_at: dict[Metric, float] = {}

    def subscribe(self, subscriber: object, board: Entity, rows: frozenset[Metric]) -> None:
        """Read these rows of a GPU, each at its pace, until `unsubscribe`."""
        if rows:
            self._subscriptions[subscriber] = board, rows

    def unsubscribe(self, subscriber: object) -> None:
        """Stop reading for a subscriber."""
        self._subscriptions.pop(subscriber, None)

    def read(self, pace: Pace) -> None:
        """Make the calls of this pace that are due. Raises SourceLost."""
        for row in {row for _, rows in self._subscriptions.values() for row in rows if row.pace is pace}:
            if time.monotonic() < self._retry_at.get(row, 0.0):
                continue
            try:
                if row is m.EXP_HEALTH:
                    self.answers = self.answers._replace(health=self._health())
                else:
                    self.answers = self.answers._replace(peers=self._peers())
            except DcgmError as error:
                reason = NO_MODULE if error.code == MODULE_NOT_LOADED else outcome(error.code)
                if error.code in (MODULE_NOT_LOADED, FUNCTION_NOT_FOUND, NOT_SUPPORTED):
                    self._retry_at[row] = time.monotonic() + RETRY_SECONDS
                failed = {"health": reason} if row is m.EXP_HEALTH else {"peers": reason}
                self.answers = self.answers._replace(**failed)

    def _health(self) -> tuple[DcgmIncident, ...]:
        """One call for all GPUs: its answer takes a megabyte."""
        boards = tuple(sorted({board for board, rows in self._subscriptions.values() if m.EXP_HEALTH in rows}))
        if boards != self._boards:
            before, self._boards = self._boards, ()
            if before:
                self._groups.drop(before)
            group = self._groups.acquire(boards)
            try:
                self._connection.call(self._bindings.watch_health, group)
            except DcgmError:
                self._groups.drop(boards)
                raise
            self._boards = boards
        return self._connection.call(self._bindings.health, self._groups.handle(boards))

    def _peers(self) -> dict[int, dict[int, int]]:
        """Return the link states by index instead of DCGM's number."""
        index_of = {number: index for index, number in enumerate(self._inventory.gpus())}
        states = self._connection.call(self._bindings.peers)
        return {
            index_of[number]: {index_of[peer]: status for peer, status in peers.items() if peer in index_of}
            for number, peers in states.items()
            if number in index_of
        }


XID = 230
# Samples are kept for a slow reader: DCGM's own limits on age and number.
KEEP_SECONDS, KEEP_SAMPLES = 3600.0, 1000


class XidWatches:
    """The XIDs of one connection. Every method but `unwatch` raises SourceLost if the connection is broken."""

    def __init__(self, connection: EngineConnection, groups: Groups) -> None:
        self._connection, self._groups = connection, groups
        self._watchers: Counter[int] = Counter()
        self._boards: tuple[Entity, ...] = ()
        self._seen: dict[Entity, int] | None = None

    @staticmethod
    def request(number: int) -> WatchRequest:
        """Return what makes the host engine keep the XIDs of a GPU. It learns of them by events, not by sampling."""
        return WatchRequest((gpu(number),), (XID,), SAMPLED_SECONDS[Pace.RARE], KEEP_SECONDS, KEEP_SAMPLES)

    def watched(self, number: int) -> None:
        """Read the XIDs of a GPU from now on."""
        self._watchers[number] += 1
        self._regroup()

    def unwatch(self, number: int) -> None:
        """Stop reading the XIDs of a GPU."""
        self._watchers[number] -= 1
        self._regroup()

    def _regroup(self) -> None:
        """Create one group of all watched GPUs, so that one call reads the XIDs of all."""
        boards = tuple(gpu(number) for number in sorted(+self._watchers))
        if boards == self._boards:
            return
        if self._boards:
            self._groups.drop(self._boards)
        self._boards = ()
        if boards:
            with suppress(DcgmError):  # then DCGM reports no XIDs; the kernel log has them, too
                self._groups.acquire(boards)
                self._boards = boards

    def samples_since(
        self, stamp: int, answers: Mapping[tuple[Entity, int], FieldAnswer]
    ) -> tuple[list[tuple[Entity, FieldAnswer]], int]:
        """Return every XID after a timestamp, and the timestamp for the next call.

        `answers` have the last XID of each GPU. Only if one of these is new are the others asked for: to enumerate the
        samples since a timestamp, the library makes a call for each GPU, each with a buffer of 4 MB.
        """
        group, fields = self._groups.handle(self._boards), self._groups.fields_handle((XID,))
        seen = {board: answers.get((board, XID), NO_ANSWER).stamp for board in self._boards}
        if group is None or fields is None or seen == self._seen:
            return [], stamp
        try:
            samples = self._connection.call(self._connection.bindings.samples_since, group, fields, stamp)
        except DcgmError:  # none yet
            samples = [], stamp
        self._seen = seen
        return samples


# The fields that a subscriber wants read, by pace and entity.
Wanted = Mapping[tuple[Pace, Entity], frozenset[int]]


@dataclass(slots=True)
class FieldTable:
    """The last answers, and when those of a pace were read (monotonic seconds)."""

    answers: dict[tuple[Entity, int], FieldAnswer] = field(default_factory=dict)
    call_answers: CallAnswers = NO_ANSWERS
    read_at: dict[Pace, float] = field(default_factory=dict)


class Session:
    """A connection with its groups, its hardware and the answers that its devices share.

    `counted` has the timestamp of the last profiling sample that any device has counted, by entity and field.
    `sampled_at` is when any device last had a newer sample than before (monotonic seconds). Every method raises
    SourceLost if the connection is broken.
    """

    def __init__(self, bindings: Bindings, to: Hostengine, timeout: float, heartbeat: Callable[[], None]) -> None:
        """Connect, as `Connection` does."""
        self.connection = EngineConnection(bindings, to, timeout, heartbeat)
        self.groups = Groups(self.connection)
        self.inventory = Inventory(self.connection, self.groups)
        self.calls = Calls(self.connection, self.groups, self.inventory)
        self.xids = XidWatches(self.connection, self.groups)
        self.table = FieldTable()
        self.counted: dict[tuple[Entity, int], int] = {}
        self.sampled_at = time.monotonic()
        self._wanted: dict[object, Wanted] = {}
        self._pulses: dict[object, tuple[Entity, int]] = {}
        self._batches: dict[Pace, list[tuple[frozenset[int], list[Entity]]]] = {}

    def subscribe(self, subscriber: object, wanted: Wanted, pulse: tuple[Entity, int] | None = None) -> None:
        """Read these fields from now on, instead of those that the subscriber wanted before.

        `pulse` is one that is sampled for each collection: its time stamp tells whether the host engine keeps up.
        """
        self._wanted[subscriber] = wanted
        self._pulses.pop(subscriber, None)
        if pulse is not None:
            self._pulses[subscriber] = pulse
        self._batches.clear()

    def unsubscribe(self, subscriber: object) -> None:
        """Stop reading for a subscriber."""
        self.calls.unsubscribe(subscriber)
        self._pulses.pop(subscriber, None)
        if self._wanted.pop(subscriber, None) is None:
            return
        self._batches.clear()
        left = {entity for wanted in self._wanted.values() for _, entity in wanted}
        for key in [key for key in self.table.answers if key[0] not in left]:
            del self.table.answers[key]

    def read(self, paces: Iterable[Pace]) -> None:
        """Update the answers of these paces in the table, with one call for all entities that have the same fields."""
        for pace in paces:
            now = time.monotonic()
            if pace not in self._batches:
                self._batches[pace] = self._batched(pace)
            for fields, entities in self._batches[pace]:
                read = self.connection.live if is_of_gpu(entities[0]) else self.connection.latest
                self.table.answers.update(read(entities, sorted(fields)))
            self.calls.read(pace)
            self.table.call_answers = self.calls.answers
            self.table.read_at[pace] = now

    def newest_stamp(self) -> int:
        """Return the newest time stamp of the fields by which the host engine's pace is judged; 0 if there is none."""
        return max((self.table.answers.get(key, NO_ANSWER).stamp for key in self._pulses.values()), default=0)

    def _batched(self, pace: Pace) -> list[tuple[frozenset[int], list[Entity]]]:
        """Return the entities of a pace, by the fields that are read of them."""
        fields_of: dict[Entity, set[int]] = defaultdict(set)
        for wanted in self._wanted.values():
            for (wanted_pace, entity), fields in wanted.items():
                if wanted_pace is pace:
                    fields_of[entity] |= fields
        batches: dict[tuple[bool, frozenset[int]], list[Entity]] = defaultdict(list)
        for entity, numbers in fields_of.items():
            if numbers:
                batches[is_of_gpu(entity), frozenset(numbers)].append(entity)
        return [(fields, entities) for (_, fields), entities in batches.items()]

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()
