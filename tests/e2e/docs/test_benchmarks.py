"""Short benchmarks on the fake driver."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.error import HTTPError

import pytest

from benchmarks import cost, perturbation
from benchmarks.exporter import Exporter, exporter_command, free_port, running
from benchmarks.perturbation import Turns, Work, pairs, slowdowns
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until


def test_cost(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has plausible numbers for one GPU of the fake driver."""
    monkeypatch.setattr(cost, "WARM_SECONDS", 2.0)
    monkeypatch.setattr(cost, "SCRAPES", 50)
    port = free_port()
    command = exporter_command(port, *cost.SETS["full"])
    found = cost.measure("full", command, port, 2, boards=1, env=driver.environment)

    assert 0 <= found.cpu < 0.5
    assert 10 < found.rss_mib < 100
    assert found.samples > 100
    assert found.body_bytes > 5 * found.gzip_bytes > 0
    assert 0 < found.alone.p50 <= found.alone.p99 <= found.alone.worst
    assert found.rendering_ms > 0
    assert found.ticks_skipped == 0


def test_allocations(driver: FakeDriver) -> None:
    """A collection frees what it allocates."""
    for _ in range(3):  # on a busy machine, the start may take longer than the benchmark waits for it
        found = cost.allocations((), driver.environment, ticks=2)
        if abs(found["blocks_kept"]) < 5_000:
            break

    assert 1 < found["peak_kib"] < 10_000
    assert abs(found["blocks_kept"]) < 5_000


def test_turns(driver: FakeDriver) -> None:
    """An exporter runs only during its turn."""
    port = free_port()
    with running(exporter_command(port, "--interval", "100ms"), port, driver.environment) as exporter:
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
    """Return the state of the process in /proc; T means stopped."""
    return Path(f"/proc/{exporter.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_work_runs_the_given_number_of_steps() -> None:
    """More steps take longer."""
    work = Work("hashing", 1)
    try:
        one, many = work.seconds(1), work.seconds(200)
    finally:
        work.end()

    assert many > 5 * one


def test_slowdown_refers_to_the_interval() -> None:
    """A run of 0.2 s contains the work of a whole second; at 100 ms a run is as long as the interval."""
    found = slowdowns({"1 s": [(0.2, 0.21)] * 5, "100 ms": [(0.1, 0.11)] * 5})

    assert {name: each["mean"] for name, each in found.items()} == {
        "1 s": pytest.approx(0.01),
        "100 ms": pytest.approx(0.1),
    }


def test_pairs_are_taken_of_each_condition(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped exporter collects once in each of its turns; the first sample of each round is dropped."""
    monkeypatch.setattr(perturbation, "WARM_SECONDS", 0.5)
    monkeypatch.setattr(perturbation, "ROUNDS", 2)
    port = free_port()
    with running(exporter_command(port), port, driver.environment) as exporter:
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

        # 2 rounds of 3 turns, and those at both ends; skipped ticks are counted by the next one.
        until(lambda: 6 <= ticks() <= 10, 2, "a tick in each turn")

    assert {name: len(taken) for name, taken in found.items()} == {"noise": 4, "1 s": 4}
    assert all(0 < took < 10 for taken in found.values() for both in taken for took in both)
