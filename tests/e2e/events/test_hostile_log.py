"""A running exporter whose clock is set, or whose kernel log is forged or hangs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import Serve
from tests.e2e.app.test_liveness import Hanging
from tests.e2e.events.test_xids import counted, listed, ready
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until

YEAR = 365 * 86400


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path / "driver", gpus=2)


def fake_clock(folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the file with the offset of the wall clock, and the environment of a process that uses it."""
    (library,) = (ROOT / ".tools/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    offset = folder / "offset"
    offset.write_text("+0")
    return offset, {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def test_the_clock_is_a_year_ahead_for_a_while(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """An XID in that time gets its true time when the clock is right again, and reaches the history."""
    state = tmp_path / "state"
    offset, faketime = fake_clock(tmp_path)
    arguments = ("--interval", "200ms", "--kernel-log", "none", "--state-dir", str(state))
    exporter = serve(*arguments, env={**driver.environment, **faketime})
    exporter.until(lambda page: page.values("gpu_up") == [1, 1])
    offset.write_text(f"+{YEAR}")
    exporter.until(lambda page: page.value("gpu_exporter_snapshot_timestamp_seconds") > time.time() + YEAR / 2)
    happened = time.time()
    driver.xid(0, 79)
    exporter.until(lambda page: counted(page) == {79: 1})
    offset.write_text("+0")
    exporter.until(lambda page: page.value("gpu_exporter_snapshot_timestamp_seconds") < time.time() + 60)
    driver.xid(1, 48)
    page = exporter.until(lambda page: counted(page, "1") == {48: 1})
    assert all(abs(at - happened) < 30 for at in page.values("gpu_xid_last_timestamp_seconds"))
    assert [(event["xid"], event["clamped"]) for event in listed(exporter)] == [(48, False), (79, True)]
    assert "in the future" in exporter.log.read_text()
    assert exporter.stop() == 0
    history = [json.loads(line) for line in (state / "events.jsonl").read_text().splitlines()]
    assert {event["xid"] for event in history} == {79, 48}


def test_a_forged_log(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """100 000 codes use neither much memory nor a large response, also after a restart."""
    log = tmp_path / "kern.log"
    log.touch()
    arguments = ("--interval", "200ms", "--kernel-log", str(log), "--state-dir", str(tmp_path / "state"))
    exporter = serve(*arguments, env=driver.environment)
    before = exporter.until(ready).value("process_resident_memory_bytes")
    with log.open("a") as file:
        file.writelines(f"[ 1.500] NVRM: Xid (PCI:0000:06:00): {code}, x\n" for code in range(1, 100_000))
    page = exporter.until(lambda page: sum(page.values("gpu_xid_events_total", gpu="0")) >= 99_999, 120)
    assert len(page.values("gpu_xid_events_total")) < 250
    assert len(page.text) < 500_000
    assert page.value("process_resident_memory_bytes") - before < 60e6
    assert exporter.stop() == 0
    assert (tmp_path / "state/events.json").stat().st_size < 500_000
    again = serve(*arguments, env=driver.environment).until(ready)
    assert again.values("gpu_xid_events_total", xid="other", gpu="0")[0] > 90_000


def test_a_kernel_log_that_hangs(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """The exporter reports it, counts XIDs from NVML, reads the log when it answers, and ends in time."""
    log = tmp_path / "kern.log"
    log.touch()
    hanging = Hanging(tmp_path / "hang", str(log))
    hanging.begin()
    environment = {**driver.environment, **hanging.environment}
    exporter = serve("--interval", "200ms", "--kernel-log", str(log), env=environment)
    exporter.until(lambda page: page.values("gpu_up") == [1, 1])
    driver.xid(0, 48)
    exporter.until(lambda page: counted(page) == {48: 1})
    until(lambda: re.search(r"kern\.log: no answer within 5 s", exporter.log.read_text()), what="a line in the log")
    assert exporter.page().value("gpu_exporter_xid_witness_up", witness="kernel") == 0
    hanging.end()
    exporter.until(ready)
    with log.open("a") as file:
        file.write("[ 1.500] NVRM: Xid (PCI:0000:07:00): 31, x\n")
    exporter.until(lambda page: counted(page, "1") == {31: 1})
    hanging.begin()
    assert exporter.stop() == 0
