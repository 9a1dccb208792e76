"""Groups, watches and XIDs of one connection, with bindings that record their calls. No DCGM is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.metric import Pace
from gpu_exporter.sources.dcgm.bindings import MOST_FIELDS, Bindings
from gpu_exporter.sources.dcgm.errors import (
    BADPARAM,
    CONNECTION_NOT_VALID,
    DUPLICATE_KEY,
    MODULE_NOT_LOADED,
    NO_PERMISSION,
    UNKNOWN_FIELD,
    DcgmError,
)
from gpu_exporter.sources.dcgm.groups import WatchRequest, WatchResult
from gpu_exporter.sources.dcgm.session import XID, Session
from gpu_exporter.sources.dcgm.values import Entity, FieldAnswer, gpu


class FakeBindings:
    """A host engine that refuses some fields, of `only` if that is set. `live` has what was created or started and not
    removed; `watches` has the entities and fields of each call that was made to watch."""

    def __init__(self, refused: dict[int, int] | None = None) -> None:
        self.refused = refused or {}
        self.only: Entity | None = None
        self.live: set[object] = set()
        self.watched: set[tuple[Entity, int]] = set()
        self.watches: list[tuple[tuple[Entity, ...], tuple[int, ...]]] = []
        self.errors: dict[str, list[int]] = {}
        self._names: set[str] = set()

    def _fail(self, call: str) -> None:
        if self.errors.get(call):
            raise DcgmError(self.errors[call].pop(0))

    def connect(self, to: Hostengine, timeout: float) -> str:
        return "handle"

    def disconnect(self, handle: str, to: Hostengine) -> None:
        self._fail("disconnect")

    def group(self, handle: str, name: str, entities: Sequence[Entity]) -> object:
        return self._create("group", name, entities)

    def field_group(self, handle: str, name: str, fields: Sequence[int]) -> object:
        return self._create("fields", name, fields)

    def _create(self, kind: str, name: str, members: Sequence[object]) -> object:
        self._fail(kind)
        assert name not in self._names
        self._names.add(name)
        created = (kind, name, tuple(members))
        self.live.add(created)
        return created

    def drop_group(self, handle: str, group: object) -> None:
        self.live.remove(group)

    drop_field_group = drop_group

    def watch(self, handle: str, group: Any, fields: Any, seconds: float, keep: float, samples: int) -> None:
        self.watches.append((group[2], fields[2]))
        for field in fields[2]:
            if field in self.refused and self.only in (None, *group[2]):
                raise DcgmError(self.refused[field])
        self.watched.update((entity, field) for entity in group[2] for field in fields[2])

    def unwatch(self, handle: str, group: Any, fields: Any) -> None:
        self.watched.difference_update((entity, field) for entity in group[2] for field in fields[2])

    def gpus(self, handle: str, *, supported: bool) -> list[int]:
        self._fail("gpus")
        return [0, 3]

    def watch_health(self, handle: str, group: object) -> None:
        self._fail("watch_health")

    def health(self, handle: str, group: Any) -> tuple[object, ...]:
        return group[2]  # type: ignore[no-any-return]

    def peers(self, handle: str) -> dict[int, dict[int, int]]:
        self._fail("peers")
        return {0: {3: 2, 7: 1}, 7: {0: 1}}

    def samples_since(self, handle: str, group: Any, fields: Any, stamp: int) -> tuple[list[object], int]:
        return [*group[2]], stamp + 1


def connected(refused: dict[int, int] | None = None) -> tuple[Session, FakeBindings]:
    fake = FakeBindings(refused)
    return Session(cast(Bindings, fake), Hostengine(), 1.0, lambda: None), fake


def end(session: Session, *results: WatchResult) -> None:
    """End everything that was begun."""
    for result in results:
        for watch in result.watches:
            session.groups.unwatch(watch)


def request(fields: Sequence[int], *entities: Entity) -> WatchRequest:
    return WatchRequest(entities or (gpu(0),), tuple(fields), 1.0)


@pytest.mark.parametrize(
    ("fields", "refused", "accepted"),
    [
        ((1, 2, 3), {}, {(1, 2, 3)}),
        ((1, 2, 3, 4), {3: BADPARAM}, {(1, 2), (4,)}),
        ((1, 2), {1: BADPARAM, 2: BADPARAM}, set()),
        ((1, 2), {2: NO_PERMISSION}, set()),  # the reason is not the field: the others are not tried
        (tuple(range(MOST_FIELDS + 1)), {}, {tuple(range(MOST_FIELDS)), (MOST_FIELDS,)}),
    ],
    ids=["all", "one of four", "none", "no permission", "too many for one group"],
)
def test_a_refused_field_affects_no_other(
    fields: tuple[int, ...], refused: dict[int, int], accepted: set[tuple[int, ...]]
) -> None:
    """The others are watched in smaller field groups, and nothing of a failed attempt is left."""
    session, fake = connected(refused)
    result = session.groups.watch(request(fields))

    assert {group for watch in result.watches for group in watch.fields} == accepted
    assert set(result.refused) == set(fields) - {field for group in accepted for field in group}
    assert fake.watched == {(gpu(0), field) for group in accepted for field in group}
    end(session, result)
    assert (fake.live, fake.watched) == (set(), set())


def test_watches_share_groups_and_fields() -> None:
    """A field ends with its last watch, a group with its last user."""
    session, fake = connected()
    first, second = session.groups.watch(request((1, 2))), session.groups.watch(request((2, 3)))
    assert len([created for created in fake.live if created[0] == "group"]) == 1  # type: ignore[index]
    end(session, first)
    assert fake.watched == {(gpu(0), 2), (gpu(0), 3)}
    end(session, second)
    assert (fake.live, fake.watched) == (set(), set())


def test_the_same_fields_of_several_gpus_are_watched_by_one_call() -> None:
    """They are then read together. One GPU's watch ends without the others'."""
    session, fake = connected()
    asked = [request(fields, gpu(number)) for number in (0, 1) for fields in ((1, 2), (3,))]
    results = session.groups.watch_all(asked)

    assert fake.watches == [((gpu(0), gpu(1)), (1, 2)), ((gpu(0), gpu(1)), (3,))]
    end(session, *results[:2])
    assert fake.watched == {(gpu(1), field) for field in (1, 2, 3)}
    end(session, *results[2:])
    assert (fake.live, fake.watched) == (set(), set())


@pytest.mark.parametrize(
    ("code", "calls"), [(MODULE_NOT_LOADED, 3), (UNKNOWN_FIELD, 3)], ids=["of one GPU", "a field that is not known"]
)
def test_a_field_that_one_gpu_lacks(code: int, calls: int) -> None:
    """What is refused for all GPUs is tried for each of them, unless the host engine does not know the field."""
    session, fake = connected({1: code})
    fake.only = gpu(1)
    results = session.groups.watch_all([request((1, 2), gpu(number)) for number in (0, 1)])
    accepted = {(gpu(0), 1), (gpu(0), 2)} if code == MODULE_NOT_LOADED else {(gpu(0), 2), (gpu(1), 2)}

    assert fake.watched == accepted
    assert [sorted(result.refused) for result in results] == ([[], [1, 2]] if code == MODULE_NOT_LOADED else [[1], [1]])
    assert len(fake.watches) == calls
    end(session, *results)
    assert (fake.live, fake.watched) == (set(), set())


def test_a_taken_name_is_replaced_by_another() -> None:
    session, fake = connected()
    fake.errors["fields"] = [DUPLICATE_KEY, DUPLICATE_KEY]
    watches, refused = session.groups.watch(request((1,)))
    assert ([watch.fields for watch in watches], refused) == ([((1,),)], {})


def test_a_dead_connection_is_not_cleaned_up() -> None:
    """Each call might hang again; the host engine removes everything itself."""
    session, fake = connected()
    result = session.groups.watch(request((1,)))
    fake.errors["gpus"] = [CONNECTION_NOT_VALID]
    with pytest.raises(SourceLost):
        session.inventory.gpus()
    end(session, result)
    session.close()
    assert fake.watched == {(gpu(0), 1)}


def test_xids_of_all_gpus_are_read_through_one_group() -> None:
    """And only if the last one of any GPU is new: to enumerate them, the library makes a call for each GPU."""
    session, fake = connected()
    last = {(gpu(3), XID): FieldAnswer(31.0, "", 0, 7)}
    assert session.xids.samples_since(5, last) == ([], 5)
    results = session.groups.watch_all([session.xids.request(number) for number in (3, 0)])
    for number in (3, 0):
        session.xids.watched(number)
    samples: Any = session.xids.samples_since(5, last)
    assert samples == ([gpu(0), gpu(3)], 6)
    assert session.xids.samples_since(6, last) == ([], 6)
    samples = session.xids.samples_since(6, {(gpu(3), XID): FieldAnswer(79.0, "", 0, 9)})
    assert samples == ([gpu(0), gpu(3)], 7)
    for number in (3, 0):
        session.xids.unwatch(number)
    end(session, *results)
    assert (session.xids.samples_since(7, {}), fake.live) == (([], 7), set())


def test_calls_are_made_for_subscribers() -> None:
    """Health of all GPUs in one call; peers by index instead of DCGM's number, without GPUs that are not listed."""
    session, _ = connected()
    session.calls.subscribe("one", gpu(0), frozenset({m.EXP_HEALTH, m.EXP_P2P}))
    session.calls.subscribe("other", gpu(3), frozenset({m.EXP_HEALTH}))
    for pace in Pace:
        session.calls.read(pace)
    answers: Any = session.calls.answers
    assert (answers.health, answers.peers) == ((gpu(0), gpu(3)), {0: {1: 2}})


@pytest.mark.parametrize(("code", "reason"), [(MODULE_NOT_LOADED, "no_module"), (NO_PERMISSION, "no_permission")])
def test_a_failed_call_has_a_reason(code: int, reason: str) -> None:
    """After a missing module, the next attempt comes much later; other errors are retried soon."""
    session, fake = connected()
    session.calls.subscribe("one", gpu(0), frozenset({m.EXP_P2P}))
    fake.errors["peers"] = [code]
    session.calls.read(m.EXP_P2P.pace)
    assert session.calls.answers.peers == reason
    session.calls.read(m.EXP_P2P.pace)
    assert (session.calls.answers.peers == reason) == (code == MODULE_NOT_LOADED)
