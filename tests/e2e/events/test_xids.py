"""XIDs from a fake driver and a fake kernel log, in a running exporter and a real Prometheus."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.model.gpu import Gpu, XidEvent
from tests.conftest import Exporter, Page, Serve, run
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kmsg import FakeKmsg
from tests.support.prometheus import scraping
from tests.support.tools import until


@pytest.fixture
def kmsg(tmp_path: Path) -> FakeKmsg:
    return FakeKmsg(tmp_path / "kmsg")


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path / "driver", gpus=2)


def counted(page: Page, gpu: str = "0") -> dict[int, float]:
    """Return the counts by code, without zeros."""
    found = [(labels, v) for n, labels, v in page.samples if n == "gpu_xid_events_total" and labels.get("gpu") == gpu]
    return {int(labels["xid"]): value for labels, value in found if value}


def listed(exporter: Exporter) -> list[dict[str, Any]]:
    answer, body = exporter.get("/api/v1/events")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "application/json")
    events: list[dict[str, Any]] = json.loads(body)["events"]
    return events


def ready(page: Page) -> bool:
    return page.values("gpu_up") == [1, 1] and page.values("gpu_exporter_xid_witness_up") == [1, 1]


def test_xids_of_both_sources_count_once(serve: Serve, driver: FakeDriver, kmsg: FakeKmsg) -> None:
    """Also repeats, two in one scrape, and an unknown code."""
    exporter = serve("--interval", "200ms", "--kernel-log", str(kmsg.path), env=driver.environment)
    page = exporter.until(ready)
    assert page.values("gpu_xid_events_total", gpu="0", xid="79") == [0]
    assert not page.values("gpu_xid_last_timestamp_seconds")
    for _ in range(2):
        driver.xid(0, 79, 48)
        kmsg.xid(79, "GPU has fallen off the bus.")
        last = kmsg.xid(48, "pid=12, name=python3, DBE")
    kmsg.xid(13, "pid='<unknown>', name=<unknown>, Graphics Exception")
    driver.xid(0, 31, 45)
    kmsg.xid(31, "pid=486, name=bad, channel 0x0000000a, intr 00000000. MMU Fault")
    kmsg.xid(45, "pid=486, name=bad, Ch 00000008")
    driver.xid(1, 4711)
    kmsg.write("NVRM: Xid (PCI:0000:06:00): 62, a lie", facility=1)
    kmsg.write("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 46 LTSSM Fault Up")

    all_of_it = {79: 2, 48: 2, 13: 1, 31: 1, 45: 1}
    page = exporter.until(lambda page: counted(page) == all_of_it and bool(counted(page, "1")))
    time.sleep(1.5)  # in case a source counts an XID twice
    page = exporter.page()
    assert counted(page) == all_of_it
    assert counted(page, "1") == {4711: 1}
    # NVML reports it at the next tick.
    assert last - 1 <= page.value("gpu_xid_last_timestamp_seconds", xid="48") <= time.time()
    assert page.value("DCGM_FI_DEV_XID_ERRORS", gpu="0") == 45
    assert page.values("gpu_xid_events_total", xid="4711", kind="unknown", action="none") == [1]
    assert page.values("gpu_xid_events_total", xid="31", kind="application") == [1]
    assert page.values("gpu_nvswitch_sxid_events_total", sxid="20034", fatal="true") == [1]

    events = listed(exporter)
    assert len(events) == 8
    fault = next(event for event in events if event["xid"] == 31)
    assert (fault["pid"], fault["process"], fault["gpu"]) == (486, "bad", 0)
    assert sorted(fault["witnesses"]) == ["kernel", "nvml"]
    assert fault["evidence"]["DCGM_FI_DEV_GPU_TEMP"] == 36
    assert fault["evidence"]["DCGM_FI_DEV_SM_CLOCK"] == 885


def test_a_restart_in_the_middle(serve: Serve, driver: FakeDriver, kmsg: FakeKmsg, tmp_path: Path) -> None:
    """XIDs before, during and after a restart count once, and the history has one line for each."""
    arguments = ("--interval", "200ms", "--kernel-log", str(kmsg.path), "--state-dir", str(tmp_path / "state"))
    first = serve(*arguments, env=driver.environment)
    first.until(ready)
    driver.xid(0, 48)
    kmsg.xid(48)
    kmsg.xid(13)
    first.until(lambda page: counted(page) == {48: 1, 13: 1})
    driver.xid(0, 95)  # the kernel log is read later
    first.until(lambda page: counted(page) == {48: 1, 13: 1, 95: 1})
    assert first.stop() == 0
    kmsg.xid(95, at=time.time() - 0.5)
    kmsg.xid(48)
    kmsg.again()
    second = serve(*arguments, env=driver.environment)
    second.until(lambda page: counted(page) == {48: 2, 13: 1, 95: 1})
    driver.xid(0, 48)
    kmsg.xid(48)
    second.until(lambda page: counted(page) == {48: 3, 13: 1, 95: 1})
    assert len(listed(second)) == 5
    assert second.stop() == 0
    history = [json.loads(line) for line in (tmp_path / "state/events.jsonl").read_text().splitlines()]
    assert sorted(event["xid"] for event in history) == [13, 48, 48, 48, 95]


def test_without_a_state_the_log_of_this_boot_counts(serve: Serve, driver: FakeDriver, kmsg: FakeKmsg) -> None:
    happened = kmsg.xid(79, at=time.time() - 100)
    page = serve("--kernel-log", str(kmsg.path), env=driver.environment).until(lambda page: bool(counted(page)))
    assert counted(page) == {79: 1}
    assert page.value("gpu_xid_last_timestamp_seconds") == pytest.approx(happened, abs=0.1)


def test_a_text_log_of_other_boots(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """As in a pod: lines that are or may be older than this boot do not count, new lines do."""
    log = tmp_path / "kern.log"
    old = "2020-01-01T00:00:00+00:00 node kernel: [    1.0] NVRM: Xid (PCI:0000:06:00): 79, old\n"
    undated = "Jan  1 00:00:00 node kernel: NVRM: Xid (PCI:0000:06:00): 48, old\n"
    log.write_text(old + undated)
    exporter = serve("--interval", "200ms", "--kernel-log", str(log), env=driver.environment)
    exporter.until(ready)
    with log.open("a") as file:
        file.write("Nov 21 00:00:00 node kernel: NVRM: Xid (PCI:0000:06:00): 31, pid=1, name=x, new\n")
    page = exporter.until(lambda page: bool(counted(page)))
    assert counted(page) == {31: 1}


def test_a_lost_gpu_has_its_xid(serve: Serve, driver: FakeDriver) -> None:
    """Without a kernel log: NVML's event is read although the GPU is lost."""
    exporter = serve("--interval", "200ms", "--kernel-log", "none", env=driver.environment)
    exporter.until(lambda page: page.values("gpu_up") == [1, 1])
    with driver.batch():
        driver.xid(1, 79)
        driver.lose(1)
    page = exporter.until(lambda page: page.values("gpu_up") == [1, 0] and bool(counted(page, "1")))
    assert counted(page, "1") == {79: 1}
    assert page.value("gpu_exporter_xid_witness_up", witness="kernel") == 0


def test_no_xid_source_no_zeros(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """Without any XID source there are no counts, not even 0; the log has the reason once."""
    driver.fail("EventSetCreate", 3)
    exporter = serve("--interval", "200ms", "--kernel-log", str(tmp_path / "gone"), env=driver.environment)
    page = exporter.until(lambda page: page.values("gpu_up") == [1, 1])
    assert page.values("gpu_exporter_xid_witness_up") == [0, 0]
    assert not page.values("gpu_xid_events_total")
    assert not page.values("DCGM_FI_DEV_XID_ERRORS")
    assert exporter.log.read_text().count("no such file") == 1


def test_replayed_gpus_ignore_this_machines_log(serve: Serve, kmsg: FakeKmsg) -> None:
    kmsg.xid(79)
    arguments = ("--source", "replay", "--recording", "h200_workloads", "--kernel-log", str(kmsg.path))
    page = serve(*arguments).until(lambda page: page.values("gpu_up") == [1])
    assert "xid" not in page.text


def test_prometheus_sees_the_first_and_the_repeat(
    serve: Serve, driver: FakeDriver, kmsg: FakeKmsg, tmp_path: Path
) -> None:
    exporter = serve("--interval", "200ms", "--kernel-log", str(kmsg.path), env=driver.environment)
    exporter.until(ready)
    with scraping(tmp_path, "1s", {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]}) as prometheus:
        until(lambda: prometheus.query("count_over_time(up[1m])") >= [5.0], 20, "five scrapes")
        for _ in range(2):
            driver.xid(0, 48)
            kmsg.xid(48)
        kmsg.xid(13)  # its series begins at 1: only the timestamp shows it
        recent = 'time() - gpu_xid_last_timestamp_seconds{gpu="0"} < 60'
        until(lambda: len(prometheus.query(recent)) == 2, 20, "both timestamps")
        repeated = 'round(increase(gpu_xid_events_total{gpu="0",xid="48"}[5m]))'
        until(lambda: prometheus.query(repeated) == [2.0], 20, "an increase of two")
        assert prometheus.query('max_over_time(gpu_xid_events_total{gpu="0",xid="48"}[5m])') == [2.0]


def test_the_command_reads_the_log(kmsg: FakeKmsg, tmp_path: Path) -> None:
    kmsg.xid(79, "GPU has fallen off the bus.")
    kmsg.xid(31, "pid=486, name=bad, MMU Fault")
    shown = run("events", "--kernel-log", str(kmsg.path))
    first, second = shown.stdout.splitlines()
    assert "XID 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS" in first
    assert "(pid 486, bad); application -> restart_app" in second
    kmsg.again()
    (last, _) = json.loads(run("events", "--json", "--kernel-log", str(kmsg.path)).stdout)["events"]
    assert last["xid"] == 31
    gone = run("events", "--kernel-log", str(tmp_path / "gone"))
    assert gone.returncode == 1
    assert gone.stderr.count("\n") == 1
    assert "no such file" in gone.stderr


def test_a_drain_code_makes_a_gpu_unhealthy(serve: Serve, driver: FakeDriver, kmsg: FakeKmsg) -> None:
    exporter = serve("--interval", "200ms", "--kernel-log", str(kmsg.path), env=driver.environment)
    page = exporter.until(ready)
    assert page.values("gpu_health_state", state="healthy") == [1, 1]
    kmsg.xid(31)
    kmsg.xid(119, gpu=1)
    page = exporter.until(lambda page: bool(counted(page, "1")))
    page = exporter.until(lambda page: page.values("gpu_health_state", state="unhealthy") == [0, 1])
    assert page.values("gpu_health_reason", gpu="1", reason="xid_119", action="gpu_reset") == [1]
    (_, sick) = json.loads(exporter.get("/api/v1/gpus")[1])["gpus"]
    assert (sick["health"], sick["action"]) == ("unhealthy", "gpu_reset")


def test_an_old_drain_code_does_not(serve: Serve, driver: FakeDriver, kmsg: FakeKmsg) -> None:
    kmsg.xid(119, at=time.time() - 700)
    exporter = serve("--interval", "200ms", "--kernel-log", str(kmsg.path), env=driver.environment)
    exporter.until(lambda page: bool(counted(page)))
    exporter.until(lambda page: page.values("gpu_health_state", state="healthy") == [1, 1])


def test_xid_during_a_read_counts(serve: Serve, driver: FakeDriver) -> None:
    """NVML alone: the XID comes after this tick's events were read, and the read then loses the GPU."""
    exporter = serve("--interval", "1s", "--kernel-log", "none", env=driver.environment)
    exporter.until(lambda page: page.values("gpu_up") == [1, 1])
    driver.delay("PowerUsage", 0.5, 1)
    exporter.until(lambda page: page.value("gpu_exporter_collection_duration_seconds", gpu="1") > 0.4)
    with driver.batch():
        driver.xid(1, 79)
        driver.lose(1)
    exporter.until(lambda page: page.values("gpu_up") == [1, 0])
    page = exporter.until(lambda page: bool(counted(page, "1")))
    assert counted(page, "1") == {79: 1}
    assert page.value("gpu_exporter_xid_witness_up", witness="nvml") == 0


def test_a_clock_that_is_set_back_doubles_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kernel line is never matched with an earlier registration."""
    gpu, pci = Gpu(0, "GPU-0", "00000000:06:00.0"), "00000000:06:00.0"
    events = EventLog(load(), lambda _: None)
    log = tmp_path / "kern.log"
    log.write_text("")
    watch = KernelWatch(events, log, None)
    watch.poll()
    now = time.time()
    events.registered(gpu, now)
    watch.poll()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    for _ in range(2):
        events.add_driver_xids([XidEvent(time.time(), pci, 48)])
        stamp = datetime.fromtimestamp(time.time(), timezone.utc).isoformat()
        with log.open("a") as file:
            file.write(f"{stamp} node kernel: NVRM: Xid (PCI:0000:06:00): 48, DBE\n")
        watch.poll()
    totals = [value for metric, _, value, labels in events.samples([gpu], True) if labels.get("xid") == "48"]
    assert totals[0] == 2
