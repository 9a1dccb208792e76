"""XIDs while the wall clock is set: ages are right by the monotonic clock, and no time is in the future."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.model.gpu import Gpu, XidEvent

PCI = "00000000:06:00.0"
GPU = Gpu(0, "GPU-0", PCI, "NVIDIA H200")
YEAR = 365 * 86400.0
UNDATED = "Nov 20 12:00:00 node kernel: NVRM: Xid (PCI:0000:06:00): {}, lost\n"
IN_2099 = "2099-01-01T00:00:00+00:00 node kernel: NVRM: Xid (PCI:0000:06:00): {}, lost\n"


class FakeClocks:
    """Both clocks, which advance only when the test says so."""

    def __init__(self) -> None:
        self.monotonic, self._unix = 10_000.0, 1_790_000_000.0

    @property
    def unix(self) -> float:
        return self._unix

    def pass_by(self, seconds: float) -> None:
        self.monotonic += seconds
        self._unix += seconds

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._unix += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> FakeClocks:
    clocks = FakeClocks()
    monkeypatch.setattr(time, "time", lambda: clocks.unix)
    monkeypatch.setattr(time, "monotonic", lambda: clocks.monotonic)
    return clocks


class Started:
    """The events of an exporter after its start. A second one in the same folder is a restart."""

    def __init__(self, folder: Path, log: Path, clocks: FakeClocks) -> None:
        self.events, self._clocks = EventLog(load(), lambda _: None), clocks
        self._history = folder / "events.jsonl"
        self._watch = KernelWatch(self.events, log, EventStore(folder))

    def poll(self, seconds: float = 1.0) -> None:
        self._clocks.pass_by(seconds)
        self._watch.poll()

    @property
    def unhealthy(self) -> bool:
        self.events.confirm_repair(PCI)  # the GPU has no other problem
        return PCI in self.events.problems()

    @property
    def times(self) -> set[float]:
        """Return every time that is exposed, of events and in metrics."""
        rows = self.events.samples([GPU], nvml_up=True)
        return {event["at"] for event in self.events.recent()} | {row[2] for row in rows if row[0] is m.XID_LAST}

    @property
    def written(self) -> list[int]:
        """Return the codes in the history file."""
        if not self._history.exists():
            return []
        return [json.loads(line)["xid"] for line in self._history.read_text().splitlines()]


def append(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(line)


def test_the_clock_was_a_year_ahead_before_an_xid(tmp_path: Path, clocks: FakeClocks) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    exporter = Started(tmp_path, log, clocks)
    exporter.poll()
    clocks.set_clock(YEAR)
    exporter.poll(4)
    clocks.set_clock(-YEAR)
    append(log, UNDATED.format(79))
    exporter.poll()
    assert exporter.unhealthy
    assert exporter.times == {clocks.unix}
    exporter.poll(20)
    assert exporter.written == [79]
    exporter.poll(20 * 60)
    assert not exporter.unhealthy
    assert not Started(tmp_path, log, clocks).unhealthy


def test_the_clock_is_a_year_ahead_during_an_xid(
    tmp_path: Path, clocks: FakeClocks, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the clock is set back, the event has its true time, and says that it was corrected."""
    log = tmp_path / "kern.log"
    log.touch()
    exporter = Started(tmp_path, log, clocks)
    exporter.poll()
    clocks.set_clock(YEAR)
    append(log, UNDATED.format(79))
    exporter.events.add_driver_xids([XidEvent(clocks.unix, PCI, 48)])
    exporter.poll()
    assert exporter.unhealthy
    clocks.set_clock(-YEAR)
    happened = clocks.unix
    exporter.poll(20)
    assert exporter.times == {happened, happened - 1}
    assert [event["clamped"] for event in exporter.events.recent()] == [True, True]
    assert sorted(exporter.written) == [48, 79]
    exporter.poll(20 * 60)
    assert not exporter.unhealthy
    assert sum("in the future" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("with_state", [True, False])
def test_a_line_of_2099(tmp_path: Path, clocks: FakeClocks, caplog: pytest.LogCaptureFixture, with_state: bool) -> None:
    log = tmp_path / "kern.log"
    for code in (79, 31):
        append(log, IN_2099.format(code))
    exporter = Started(tmp_path, log, clocks)
    exporter.poll()
    assert exporter.times == {clocks.unix}
    assert [event["clamped"] for event in exporter.events.recent()] == [True, True]
    assert sum("in the future" in record.message for record in caplog.records) == 1
    exporter.poll(20)
    assert exporter.written == [79, 31]
    exporter.poll(20 * 60)
    assert not exporter.unhealthy
    if not with_state:
        (tmp_path / "events.json").unlink()
    restarted = Started(tmp_path, log, clocks)
    restarted.poll()
    assert restarted.unhealthy is not with_state  # without a state, the line is read again
    restarted.poll(20 * 60)
    assert not restarted.unhealthy


@pytest.mark.parametrize("step", [YEAR, -YEAR, 3600.0, -3600.0])
def test_setting_the_clock_does_not_change_an_age(tmp_path: Path, clocks: FakeClocks, step: float) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    exporter = Started(tmp_path, log, clocks)
    exporter.poll()
    append(log, UNDATED.format(79))
    exporter.poll()
    clocks.set_clock(step)
    exporter.poll(590)
    assert exporter.unhealthy
    exporter.poll(20)
    assert not exporter.unhealthy


def test_a_state_that_was_saved_a_year_ahead(
    tmp_path: Path, clocks: FakeClocks, caplog: pytest.LogCaptureFixture
) -> None:
    """After a restart with the right clock, its XIDs count as recent, and expire; XIDs of both sources count once."""
    log = tmp_path / "kern.log"
    log.touch()
    clocks.set_clock(YEAR)
    first = Started(tmp_path, log, clocks)
    first.events.registered(GPU, clocks.unix)
    first.events.add_driver_xids([XidEvent(clocks.unix, PCI, 79)])
    first.poll()
    clocks.set_clock(-YEAR)
    clocks.pass_by(5)
    second = Started(tmp_path, log, clocks)
    assert second.unhealthy
    assert second.times == {clocks.unix}
    assert "the saved state" in caplog.text
    clocks.pass_by(5)
    second.events.registered(GPU, clocks.unix)
    for _ in range(2):
        second.events.add_driver_xids([XidEvent(clocks.unix, PCI, 79)])
        append(log, UNDATED.format(79))
        second.poll()
    totals = [value for metric, _, value, _ in second.events.samples([GPU], nvml_up=True) if metric is m.XID_EVENTS]
    assert max(totals) == 3
    second.poll(20 * 60)
    assert not second.unhealthy
