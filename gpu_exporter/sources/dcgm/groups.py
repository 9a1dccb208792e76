"""Groups, field groups and watches of one connection, shared by everything that needs the same ones.

A host engine that was restarted has none of them any more.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm.bindings import MOST_FIELDS
from gpu_exporter.sources.dcgm.connection import EngineConnection
from gpu_exporter.sources.dcgm.errors import (
    BADPARAM,
    DUPLICATE_KEY,
    GENERIC,
    NOT_SUPPORTED,
    PROFILING_MULTI_PASS,
    UNKNOWN_FIELD,
    DcgmError,
)
from gpu_exporter.sources.dcgm.values import Entity

# Errors by which a host engine refuses a whole field group because of one field: the other fields are retried.
OF_ONE_FIELD = frozenset({BADPARAM, UNKNOWN_FIELD, NOT_SUPPORTED, GENERIC, PROFILING_MULTI_PASS})
# Those of a field that the host engine does not know, whatever the entity.
UNKNOWN = frozenset({BADPARAM, UNKNOWN_FIELD})

Entities = tuple[Entity, ...]
FieldIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Fields of some entities, to be sampled every `seconds`.

    The host engine keeps samples for `keep` seconds, and no more than `samples` of them; 0 keeps what a read needs.
    """

    entities: Entities
    fields: FieldIds
    seconds: float
    keep: float = 0.0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class FieldWatch:
    """What the host engine samples: fields of entities, in the field groups that it accepted.

    `group` has all entities that were watched by the same call.
    """

    entities: Entities
    fields: tuple[FieldIds, ...]
    group: Entities


class WatchResult(NamedTuple):
    """What the host engine samples for a request, and the error of each field that it refused."""

    watches: tuple[FieldWatch, ...]
    refused: Mapping[int, DcgmError]


@dataclass(slots=True)
class _Shared:
    """The handle of a group or field group, and its number of users.

    A host engine has room for 64 groups and 64 field groups of all its clients together.
    """

    handle: Any
    users: int = 0


class Groups:
    """The groups of a connection. Every method but `unwatch` and `drop` raises SourceLost if that is broken."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self._bindings = connection.bindings
        self._names = map(f"gpu-exporter-{os.getpid()}-{secrets.token_hex(4)}-{{}}".format, itertools.count())
        self._groups: dict[Entities, _Shared] = {}
        self._field_groups: dict[FieldIds, _Shared] = {}
        self._watchers: Counter[tuple[Entity, int]] = Counter()

    # --- watches --------------------------------------------------------------------------------------------------

    def watch(self, request: WatchRequest) -> WatchResult:
        """Make the host engine sample fields."""
        return self.watch_all([request])[0]

    def watch_all(self, requests: Sequence[WatchRequest]) -> list[WatchResult]:
        """Make the host engine sample the fields of all requests, by one call for those that differ only in entities.

        Each call waits until the host engine has read everything that is new. Entities that are first read together
        stay together: otherwise the host engine would wake up for each of them, at each interval.
        """
        alike: dict[WatchRequest, list[int]] = defaultdict(list)
        for place, request in enumerate(requests):
            alike[replace(request, entities=())].append(place)
        results: dict[int, WatchResult] = {}
        for places in alike.values():
            results.update(zip(places, self._watch([requests[place] for place in places]), strict=True))
        return [results[place] for place in range(len(requests))]

    def _watch(self, requests: Sequence[WatchRequest]) -> list[WatchResult]:
        """Watch the same fields for several requests. What is refused for all of them is tried for each alone."""
        entities = tuple(dict.fromkeys(entity for request in requests for entity in request.entities))
        refused: dict[int, DcgmError] = {}
        watches: list[tuple[FieldWatch, ...]] = [()] * len(requests)
        if entities:
            merged = replace(requests[0], entities=entities)
            try:
                group = self.acquire(entities)
            except DcgmError as error:  # perhaps one of the entities is gone
                if len(requests) > 1:
                    return [self._watch([request])[0] for request in requests]
                refused = dict.fromkeys(merged.fields, error)
            else:
                accepted = self._watch_merged(group, merged, refused)
                watches = [self._taken(request.entities, accepted, entities) for request in requests]
                for fields in accepted:
                    self._drop_fields(fields)
                self.drop(entities)
        alone = tuple(field for field, error in refused.items() if error.code not in UNKNOWN)
        if len(requests) == 1 or not alone:
            return [WatchResult(taken, refused) for taken in watches]
        unknown = {field: error for field, error in refused.items() if error.code in UNKNOWN}
        again = [self._watch([replace(request, fields=alone)])[0] for request in requests]
        return [
            WatchResult((*taken, *other.watches), {**unknown, **other.refused})
            for taken, other in zip(watches, again, strict=True)
        ]

    def _watch_merged(self, group: Any, request: WatchRequest, refused: dict[int, DcgmError]) -> list[FieldIds]:
        """Watch the fields that the host engine accepts; return their groups. Fill in the error of each other field."""
        accepted: list[FieldIds] = []
        pending = [request.fields[at : at + MOST_FIELDS] for at in range(0, len(request.fields), MOST_FIELDS)]
        while pending:
            fields = pending.pop()
            try:
                self._watch_fields(group, request, fields)
                accepted.append(fields)
            except DcgmError as error:
                if len(fields) > 1 and error.code in OF_ONE_FIELD:
                    middle = len(fields) // 2
                    pending += [fields[:middle], fields[middle:]]
                else:
                    refused.update(dict.fromkeys(fields, error))
        return accepted

    def _watch_fields(self, group: Any, request: WatchRequest, fields: FieldIds) -> None:
        field_group = self._acquire_fields(fields)
        keep, samples = request.keep or 3 * request.seconds, request.samples or 2
        try:
            self._connection.call(self._bindings.watch, group, field_group, request.seconds, keep, samples)
        except DcgmError:
            self._end_unused(request.entities, fields)  # the host engine may have begun with some
            self._drop_fields(fields)
            raise

    def _taken(self, entities: Entities, accepted: Sequence[FieldIds], group: Entities) -> tuple[FieldWatch, ...]:
        """Return the watch of one of the requests that were made with one group."""
        if not accepted or not entities:
            return ()
        self.acquire(group)
        for fields in accepted:
            self._acquire_fields(fields)
            self._watchers.update((entity, field) for entity in entities for field in fields)
        return (FieldWatch(entities, tuple(accepted), group),)

    def unwatch(self, watch: FieldWatch) -> None:
        """End a watch. Fields that another watch has, too, are still sampled. Never raises."""
        for fields in watch.fields:
            self._watchers.subtract((entity, field) for entity in watch.entities for field in fields)
            self._end_unused(watch.entities, fields)
            self._drop_fields(fields)
        self.drop(watch.group)

    def _end_unused(self, entities: Entities, fields: FieldIds) -> None:
        """Stop watching those fields that no watch has any more.

        The host engine ends a field when it is first asked to, however often it was asked to begin.
        """
        unused = tuple(field for field in fields if not any(self._watchers[entity, field] > 0 for entity in entities))
        if not unused or self._connection.dead:
            return
        with suppress(DcgmError, SourceLost), self._held(entities) as group:
            field_group = self._acquire_fields(unused)
            self._connection.release(self._bindings.unwatch, group, field_group)
            self._drop_fields(unused)

    @contextmanager
    def _held(self, entities: Entities) -> Iterator[Any]:
        """Hold a group of these entities. Raises DcgmError."""
        group = self.acquire(entities)
        try:
            yield group
        finally:
            self.drop(entities)

    # --- groups ---------------------------------------------------------------------------------------------------

    def acquire(self, entities: Entities) -> Any:
        """Return the handle of the group of these entities, which is valid until `drop`. Raises DcgmError."""
        group = self._groups.get(entities)
        if group is None:
            handle = self._connection.call(self._bindings.group, next(self._names), entities)
            group = self._groups[entities] = _Shared(handle)
        group.users += 1
        return group.handle

    def drop(self, entities: Entities) -> None:
        """Release a group that `acquire` returned. Never raises."""
        group = self._groups[entities]
        group.users -= 1
        if not group.users:
            del self._groups[entities]
            self._connection.release(self._bindings.drop_group, group.handle)

    def handle(self, entities: Entities) -> Any | None:
        """Return the handle of a group that is in use; None if it is not."""
        group = self._groups.get(entities)
        return None if group is None else group.handle

    def fields_handle(self, fields: FieldIds) -> Any | None:
        """Return the handle of a field group that is in use; None if it is not."""
        field_group = self._field_groups.get(fields)
        return None if field_group is None else field_group.handle

    def _acquire_fields(self, fields: FieldIds) -> Any:
        field_group = self._field_groups.get(fields)
        while field_group is None:
            name = f"{next(self._names)}-{len(fields)}"
            try:
                handle = self._connection.call(self._bindings.field_group, name, fields)
                field_group = self._field_groups[fields] = _Shared(handle)
            except DcgmError as error:
                if error.code != DUPLICATE_KEY:
                    raise
        field_group.users += 1
        return field_group.handle

    def _drop_fields(self, fields: FieldIds) -> None:
        field_group = self._field_groups[fields]
        field_group.users -= 1
        if not field_group.users:
            del self._field_groups[fields]
            self._connection.release(self._bindings.drop_field_group, field_group.handle)
