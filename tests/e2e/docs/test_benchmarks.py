"""Small parts of the benchmarks, on the stand-in driver."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.error import HTTPError

import pytest

from benchmarks import cost, perturbation
from benchmarks.exporter import Exporter, free_port, ours, running
from benchmarks.perturbation import Turns, Work, compared, pairs
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until


def test_cost(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU of the stand-in costs little, and every number is there."""
    monkeypatch.setattr(cost, "WARM_SECONDS", 2.0)
    monkeypatch.setattr(cost, "SCRAPES", 50)
    port = free_port()
    found = cost.measure("full", ours(port, *cost.SETS["full"]), port, 2, boards=1, env=driver.environment)

    assert 0 <= found.cpu < 0.5
    assert 10 < found.rss_mib < 100
    assert found.samples > 100
    assert found.body_bytes > 5 * found.gzip_bytes > 0
    assert 0 < found.alone.p50 <= found.alone.p99 <= found.alone.worst
    assert found.rendering_ms > 0
    assert found.ticks_skipped == 0


def test_allocations(driver: FakeDriver) -> None:
    """A tick gives back what it takes."""
    found = cost.allocations((), driver.environment, ticks=2)

    assert 1 < found["peak_kib"] < 10_000
    assert abs(found["blocks_kept"]) < 5_000


def test_turns(driver: FakeDriver) -> None:
    """An exporter runs when it is its turn, and at no other time."""
    port = free_port()
    with running(ours(port, "--interval", "100ms"), port, driver.environment) as exporter:
        turns = Turns({"1 s": exporter})
        try:
            assert state(exporter) == "T"
            with turns.turn("off"):
                assert state(exporter) == "T"
            with turns.turn("1 s"):
                assert state(exporter) != "T"
                assert "gpu_up" in exporter.page()
            assert state(exporter) == "T"
        finally:
            turns.end()


def state(exporter: Exporter) -> str:
    """What the kernel says of the process: T is stopped."""
    return Path(f"/proc/{exporter.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_work_is_done_as_often_as_asked() -> None:
    """More steps take longer; equal ones are compared."""
    work = Work("hashing", 1)
    try:
        one, many = work.seconds(1), work.seconds(200)
    finally:
        work.end()

    assert many > 5 * one


def test_what_comes_due_in_a_second_is_done_in_a_piece_of_it() -> None:
    """So its cost is the difference of a second; at 100 ms pieces are as long as what they stand for."""
    found = compared({"1 s": [(0.2, 0.21)] * 5, "100 ms": [(0.1, 0.11)] * 5})

    assert {name: each["mean"] for name, each in found.items()} == {
        "1 s": pytest.approx(0.01),
        "100 ms": pytest.approx(0.1),
    }


def test_pairs_are_taken_of_each_condition(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters that are stopped in between look once in each of their turns; the first of each round is left out."""
    monkeypatch.setattr(perturbation, "WARM_SECONDS", 0.5)
    monkeypatch.setattr(perturbation, "ROUNDS", 2)
    port = free_port()
    with running(ours(port), port, driver.environment) as exporter:
        begin, before = time.monotonic(), cost.skipped(exporter.page()) or 0
        turns, work = Turns({"1 s": exporter}), Work("hashing", 1)
        try:
            found = pairs(work, turns, 8)
        finally:
            turns.end()
            work.end()

        def ticks() -> float:
            try:
                skipped = cost.skipped(exporter.page()) or 0
            except HTTPError:  # its page expired while it was stopped
                return 0.0
            return time.monotonic() - begin - skipped + before

        # 2 rounds of 3 turns, and those at both ends; what was left out is told by the next one.
        until(lambda: 6 <= ticks() <= 10, 2, "a tick in each turn")

    assert {name: len(taken) for name, taken in found.items()} == {"noise": 4, "1 s": 4}
    assert all(0 < took < 10 for taken in found.values() for both in taken for took in both)
