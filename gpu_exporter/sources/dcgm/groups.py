"""Groups, field groups and watches of one connection, shared by everything that needs the same ones.

A host engine that was restarted has none of them any more.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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

Entities = tuple[Entity, ...]
FieldIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Fields of some entities, to be sampled every `seconds`; `kind` says what they are for.

    The host engine keeps samples for `keep` seconds, and no more than `samples` of them; 0 keeps what a read needs.
    """

    kind: str
    entities: Entities
    fields: FieldIds
    seconds: float
    keep: float = 0.0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class FieldWatch:
    """What the host engine samples for a request: fields of entities, in the field groups that it accepted."""

    entities: Entities
    fields: tuple[FieldIds, ...]


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

    def watch(self, request: WatchRequest) -> tuple[FieldWatch, dict[int, DcgmError]]:
        """Make the host engine sample fields. The second value is the error of each field that it refused."""
        refused: dict[int, DcgmError] = {}
        if not request.entities:
            return FieldWatch((), ()), {}
        try:
            group = self.acquire(request.entities)
        except DcgmError as error:
            return FieldWatch((), ()), dict.fromkeys(request.fields, error)
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
        return FieldWatch(request.entities, tuple(accepted)), refused

    def _watch_fields(self, group: Any, request: WatchRequest, fields: FieldIds) -> None:
        field_group = self._acquire_fields(fields)
        keep, samples = request.keep or 3 * request.seconds, request.samples or 2
        try:
            self._connection.call(self._bindings.watch, group, field_group, request.seconds, keep, samples)
        except DcgmError:
            self._end_unused(group, request.entities, fields)  # the host engine may have begun with some
            self._drop_fields(fields)
            raise
        self._watchers.update((entity, field) for entity in request.entities for field in fields)

    def unwatch(self, watch: FieldWatch) -> None:
        """End a watch. Fields that another watch has, too, are still sampled. Never raises."""
        if not watch.entities:
            return
        group = self._groups[watch.entities].handle
        for fields in watch.fields:
            self._watchers.subtract((entity, field) for entity in watch.entities for field in fields)
            self._end_unused(group, watch.entities, fields)
            self._drop_fields(fields)
        self.drop(watch.entities)

    def _end_unused(self, group: Any, entities: Sequence[Entity], fields: FieldIds) -> None:
        """Stop watching those fields that no watch has any more.

        The host engine ends a field when it is first asked to, however often it was asked to begin.
        """
        unused = tuple(field for field in fields if not any(self._watchers[entity, field] > 0 for entity in entities))
        if not unused or self._connection.dead:
            return
        with suppress(DcgmError, SourceLost):
            field_group = self._acquire_fields(unused)
            self._connection.release(self._bindings.unwatch, group, field_group)
            self._drop_fields(unused)

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
