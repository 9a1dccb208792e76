"""What is served of stored profiles."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_exporter.profiling import views
from gpu_exporter.profiling.records import ProcessStacks, StackKind
from gpu_exporter.profiling.store import Bounds, ProfileStore
from gpu_exporter.profiling.views import ProfileViews
from tests.support.pprof import decoded, folded_of, labels_of
from tests.unit.profiling.test_store import HOSTILE, STACKS, summary

STACK = "main thread;/a.py(3): load_batch"


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path, Bounds())


def test_profiles_are_listed_newest_first(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ProfileViews(store)
    assert (found.newest(), json.loads(found.listed())) == ("", {"profiles": []})
    for number in range(3):
        store.add(summary(number), STACKS)
    listed = json.loads(found.listed())["profiles"]
    assert [each["id"] for each in listed] == [f"{number:013}" for number in (2, 1, 0)]
    assert (listed[0]["reason"], listed[0]["processes"][0]["causes"][0]["cause"]) == ("stall", "data_loading")
    assert found.newest() == f"{2:013}"
    monkeypatch.setattr(views, "MOST_LIST_BYTES", 2 * len(json.dumps(listed[0])) - 10)
    assert len(json.loads(found.listed())["profiles"]) == 2


def test_one_profile_has_its_stacks(store: ProfileStore) -> None:
    store.add(summary(1), STACKS)
    body = ProfileViews(store).one(f"{1:013}")
    assert body
    assert json.loads(body)["stacks"] == [
        {"pid": 7, "gpus": [0], "stacks": {STACK: 4.5}, "left_out": 0.0, "kind": "wall", "workers": 0}
    ]
    assert ProfileViews(store).one(f"{2:013}") is None


def test_pprof_has_the_profiles_that_ended_lately(store: ProfileStore) -> None:
    now = time.time()
    for number, age in enumerate((3600.0, 50.0, 20.0)):
        store.add(summary(number, now - age), STACKS)
    found = decoded(ProfileViews(store).pprof(60))
    assert folded_of(found) == {"wall": {STACK: 9.0}}
    labels = {"gpu": "0", "pid": "7", "command": HOSTILE, "rank": "0", "reason": "stall"}
    expected = [{**labels, "profile": f"{number:013}"} for number in (1, 2)]
    assert sorted(labels_of(found), key=lambda each: each["profile"]) == expected
    assert found.duration_nanos == 10_000_000_000
    assert found.period == 20_000_000
    assert abs(found.time_nanos / 1e9 - (now - 50)) < 1
    assert folded_of(decoded(ProfileViews(store).pprof(1))) == {"wall": {}}


def test_the_text_of_pprof_is_bounded(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest profiles are kept."""
    now = time.time()
    for number in range(5):
        store.add(summary(number, now - 10 + number), [ProcessStacks(7, (0,), {STACK: 1.0})])
    monkeypatch.setattr(views, "MOST_MERGED_TEXT", 2 * len(STACK))
    found = labels_of(decoded(ProfileViews(store).pprof(60)))
    assert sorted(each["profile"] for each in found) == [f"{number:013}" for number in (3, 4)]


def test_profiles_that_have_just_ended(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is when a profile ended; of many, the newest ones are merged."""
    monkeypatch.setattr(views, "time", SimpleNamespace(time=lambda: 2000.0))
    for number, at in enumerate((1934.0, 1935.0, 1936.0)):
        store.add(summary(number, at), STACKS)
    found = decoded(ProfileViews(store).pprof(60))
    assert {each["profile"] for each in labels_of(found)} == {f"{2:013}"}
    assert (found.time_nanos, found.duration_nanos) == (1936 * 10**9, 5 * 10**9)
    assert {each["profile"] for each in labels_of(decoded(ProfileViews(store).pprof(61)))} == {
        "0" * 12 + "1",
        "0" * 12 + "2",
    }
    monkeypatch.setattr(views, "MOST_MERGED", 1)
    assert {each["profile"] for each in labels_of(decoded(ProfileViews(store).pprof(1000)))} == {"0" * 12 + "2"}
    assert decoded(ProfileViews(store).pprof(1)).time_nanos == 1999 * 10**9


def test_pprof_has_only_stacks_of_threads(store: ProfileStore) -> None:
    """Stacks of GPUs have another clock. A process without a summary has no command."""
    stacks = [
        ProcessStacks(7, (0, 1), {STACK: 1.0}, kind=StackKind.GPU),
        ProcessStacks(9, (), {STACK: 2.0}),
    ]
    store.add(summary(1, time.time()), stacks)
    found = decoded(ProfileViews(store).pprof(60))
    assert folded_of(found) == {"wall": {STACK: 2.0}}
    assert labels_of(found) == [{"pid": "9", "reason": "stall", "profile": f"{1:013}"}]


def test_a_list_has_the_most_bytes(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        store.add(summary(number), STACKS)
    listed = ProfileViews(store).listed()
    entry = (len(listed) - len('{"profiles":[]}') + 1) // 3
    for spare, count in ((0, 2), (-1, 1)):
        monkeypatch.setattr(views, "MOST_LIST_BYTES", 2 * entry + spare)
        assert len(json.loads(ProfileViews(store).listed())["profiles"]) == count


def test_the_text_of_pprof_at_its_limit(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        store.add(summary(number, time.time()), [ProcessStacks(7, (0,), {STACK: 1.0, "x": 1.0})])
    for spare, count in ((0, 2), (-1, 1)):
        monkeypatch.setattr(views, "MOST_MERGED_TEXT", 2 * (len(STACK) + 1) + spare)
        found = labels_of(decoded(ProfileViews(store).pprof(60)))
        assert len({each["profile"] for each in found}) == count
