"""The benchmark of an out-of-memory error between two scrapes, with the fake driver in place of a program."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import memory_peak
from benchmarks.exporter import exporter_command, free_port, running
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import NEWER

MIB = 2**20
TOTAL, LOW = 80_000 * MIB, 10_000 * MIB


def use(driver: FakeDriver, used: int) -> None:
    with driver.batch():
        driver.set("MemoryInfo.used", used)
        driver.set("MemoryInfo.free", TOTAL - used)


@pytest.mark.slow
def test_a_peak_between_two_scrapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last program may have been seen by a scrape on a busy machine: then it says so."""
    driver = FakeDriver(tmp_path / "driver", 1)
    driver.set("MemoryInfo.total", TOTAL)
    driver.set("MemoryInfo.reserved", 0)
    use(driver, LOW)

    def peak(seconds: float) -> None:
        use(driver, int(0.995 * TOTAL))
        time.sleep(seconds)
        use(driver, LOW)

    port = free_port()
    with running(exporter_command(port, "--interval", "500ms"), port, driver.environment) as exporter:
        taken, said = memory_peak.scrape(exporter, 15.0, 5, 3.0, peak)
    lines = memory_peak.shown(taken)

    assert [line.split()[2] for line in lines[1:]] == ["9.8"] * 5
    assert [line.split()[3] for line in lines[1:]] == ["9.8", "9.8", "77.7", "77.7", "77.7"]
    assert memory_peak.ALERT in memory_peak.found_in(taken[: memory_peak.AFTER + 2])
    # The scrapes stand for those of every minute, and the last one for further ones: the alert waits two minutes.
    assert memory_peak.missed([*taken, *[taken[-1]] * 3], said, NEWER / "promtool", 60.0) == []
    assert "found" in capsys.readouterr().out
