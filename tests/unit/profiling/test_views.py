"""What is served of stored profiles."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpu_exporter.profiling import views
from gpu_exporter.profiling.records import ProcessStacks
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
