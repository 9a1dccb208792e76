"""The last hour of each GPU: means of ten seconds, gaps, and what happens when time jumps."""

from __future__ import annotations

import pytest

from gpu_exporter.live_page.history import POINTS, STEP_SECONDS, LiveHistory

NAMES = ("sm", "power")


def rows(history: LiveHistory) -> dict[tuple[str, str], list[float | None]]:
    """Return the rows of a history by device and name."""
    return {(device, name): list(values) for device, name, values in history.rows()}


def filled(history: LiveHistory, begin: float, seconds: int, value: float = 0.5) -> float:
    """Add one moment per second; return the time of the next one."""
    for second in range(seconds):
        history.take(begin + second, {"a": {"sm": value}}, {"a": 3})
    return begin + seconds


def test_a_point_is_the_mean_of_ten_seconds() -> None:
    """It appears when its ten seconds are over; what was not read is a gap."""
    history = LiveHistory(NAMES)
    complete = [history.take(1000.0 + n, {"a": {"sm": n / 10}}, {"a": 2}) for n in range(11)]
    assert complete == [False] * 10 + [True]
    found = rows(history)
    assert found["a", "sm"][-1] == pytest.approx(0.45)
    assert found["a", "class"][-1] == 2
    assert ("a", "power") not in found
    assert found["a", "sm"][:-1] == [None] * (POINTS - 1)
    assert history.start == 1010.0 - POINTS * STEP_SECONDS
    assert history.newest()["a"][0] == {"sm": pytest.approx(0.45)}


def test_gaps_and_the_end_of_the_hour() -> None:
    """Five minutes without values are thirty gaps; after an hour the oldest points are gone."""
    history = LiveHistory(NAMES)
    after = filled(history, 0.0, 100)
    later = filled(history, after + 300, 20)
    history.take(later, {"a": {"sm": 0.5}}, {"a": 3})
    tail = rows(history)["a", "sm"][-42:]
    assert [value is None for value in tail] == [False] * 10 + [True] * 30 + [False] * 2
    filled(history, later, 3700)
    assert None not in rows(history)["a", "sm"]


def test_a_device_that_has_ended_is_forgotten() -> None:
    """Its points are kept for the hour in which somebody may look at them, and no longer."""
    history = LiveHistory(NAMES)
    filled(history, 0.0, 30)
    for second in range(30, 1800):
        history.take(second, {"b": {"sm": 1.0}}, {})
    found = rows(history)
    assert sum(value is not None for value in found["a", "sm"]) == 3
    assert found["a", "sm"][-1] is None
    for second in range(1800, 3700):
        history.take(second, {"b": {"sm": 1.0}}, {})
    assert {device for device, _ in rows(history)} == {"b"}


def test_a_clock_that_is_set_back_begins_anew() -> None:
    """Points of a time that has not come yet would be lies."""
    history = LiveHistory(NAMES)
    filled(history, 10_000.0, 100)
    filled(history, 5000.0, 21)
    assert sum(value is not None for value in rows(history)["a", "sm"]) == 2


def test_eight_gpus_need_little_memory() -> None:
    """Arrays, not lists: a float object would take six times as much."""
    history = LiveHistory(tuple("abcdefghi"))
    for second in range(25):
        history.take(second, {f"gpu{n}": dict.fromkeys("abcdefghi", 0.5) for n in range(8)}, {})
    tracks = history._tracks.values()
    size = sum(values.itemsize * len(values) for track in tracks for values in track.values.values())
    size += sum(track.classes.itemsize * len(track.classes) for track in tracks)
    assert size == 8 * POINTS * (9 * 4 + 1)
