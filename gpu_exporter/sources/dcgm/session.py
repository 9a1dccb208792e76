"""Everything that belongs to one connection to a host engine. Used only on the source's thread.

Nothing of it outlives the connection: a host engine that was restarted has none of its groups and watches any more.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.metric import Pace
from gpu_exporter.sources.dcgm.bindings import Bindings
from gpu_exporter.sources.dcgm.calls import Calls
from gpu_exporter.sources.dcgm.connection import Connection
from gpu_exporter.sources.dcgm.groups import Groups
from gpu_exporter.sources.dcgm.health_and_peers import NO_ANSWERS, CallAnswers
from gpu_exporter.sources.dcgm.inventory import Inventory
from gpu_exporter.sources.dcgm.values import Answer, Entity
from gpu_exporter.sources.dcgm.xids import XidWatches

# The fields that a subscriber wants read, by pace and entity.
Wanted = Mapping[tuple[Pace, Entity], frozenset[int]]


@dataclass(slots=True)
class Table:
    """The last answers, and when those of a pace were read (monotonic seconds)."""

    answers: dict[tuple[Entity, int], Answer] = field(default_factory=dict)
    call_answers: CallAnswers = NO_ANSWERS
    read_at: dict[Pace, float] = field(default_factory=dict)


class Session:
    """A connection with its groups, its hardware and the answers that its devices share.

    `counted` has the timestamp of the last profiling sample that any device has counted, by entity and field. Every
    method raises SourceLost if the connection is broken.
    """

    def __init__(self, bindings: Bindings, to: Hostengine, timeout: float, heartbeat: Callable[[], None]) -> None:
        """Connect, as `Connection` does."""
        self.connection = Connection(bindings, to, timeout, heartbeat)
        self.groups = Groups(self.connection)
        self.inventory = Inventory(self.connection, self.groups)
        self.calls = Calls(self.connection, self.groups, self.inventory)
        self.xids = XidWatches(self.connection, self.groups)
        self.table = Table()
        self.counted: dict[tuple[Entity, int], int] = {}
        self._wanted: dict[object, Wanted] = {}
        self._batches: dict[Pace, dict[frozenset[int], list[Entity]]] = {}

    def subscribe(self, subscriber: object, wanted: Wanted) -> None:
        """Read these fields from now on, instead of those that the subscriber wanted before."""
        self._wanted[subscriber] = wanted
        self._batches.clear()

    def unsubscribe(self, subscriber: object) -> None:
        """Stop reading for a subscriber."""
        self.calls.unsubscribe(subscriber)
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
            for fields, entities in self._batches[pace].items():
                self.table.answers.update(self.connection.latest(entities, sorted(fields)))
            self.calls.read(pace)
            self.table.call_answers = self.calls.answers
            self.table.read_at[pace] = now

    def _batched(self, pace: Pace) -> dict[frozenset[int], list[Entity]]:
        """Return the entities of a pace, by the fields that are read of them."""
        fields_of: dict[Entity, set[int]] = defaultdict(set)
        for wanted in self._wanted.values():
            for (wanted_pace, entity), fields in wanted.items():
                if wanted_pace is pace:
                    fields_of[entity] |= fields
        batches: dict[frozenset[int], list[Entity]] = defaultdict(list)
        for entity, numbers in fields_of.items():
            if numbers:
                batches[frozenset(numbers)].append(entity)
        return batches

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()
