"""XIDs from NVML and the kernel log: each event counts once."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import RECOVERY, recovery_action
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import KEPT, EventLog, GpuEvidence
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.events.kernel_log_entry import LogEntry, LogPosition, SxidLine, XidLine
from gpu_exporter.model.gpu import Gpu, XidEvent

PCI = "00000000:06:00.0"
GPU = Gpu(0, "GPU-0", PCI, "NVIDIA H200")
XIDS = load()
NUMBERS = count(1)


def log() -> EventLog:
    return EventLog(XIDS, lambda pci: GpuEvidence(GPU, {"DCGM_FI_DEV_GPU_TEMP": 40.0}) if pci == PCI else None)


def nvml(events: EventLog, code: int, at: float) -> None:
    events.add_driver_xids([XidEvent(at, PCI, code)])


def kernel(events: EventLog, code: int, at: float, **more: object) -> None:
    line = XidLine(PCI, code, **more)  # type: ignore[arg-type]
    events.add_kernel_log_entry(LogEntry(LogPosition("boot", next(NUMBERS)), at, line), at)


def counts(events: EventLog, name: object = m.XID_EVENTS) -> dict[int, float]:
    """Return the exposed counts by code, without zeros."""
    found = events.samples([GPU], True)
    return {int(labels["xid"]): value for metric, _, value, labels in found if metric is name and value}


def test_each_source_alone() -> None:
    events = log()
    events.registered(GPU, 100)
    nvml(events, 79, 101)
    nvml(events, 79, 102)
    kernel(events, 13, 103)
    assert counts(events) == {79: 2, 13: 1}
    assert counts(events, m.XID_LAST) == {79: 102, 13: 103}


@pytest.mark.parametrize("order", ["nknk", "nnkk", "kknn", "knnk"])
def test_both_sources_report_the_same_events(order: str) -> None:
    """In any order, and however late."""
    events = log()
    events.registered(GPU, 100)
    nvml_at, kernel_at = iter((101.9, 502.9)), iter((101.0, 102.0))
    for source in order:
        if source == "n":
            nvml(events, 48, next(nvml_at))
        else:
            kernel(events, 48, next(kernel_at))
    assert counts(events) == {48: 2}
    assert [sorted(event["witnesses"]) for event in events.recent()] == [["kernel", "nvml"]] * 2


def test_events_before_the_registration_are_only_in_the_kernel_log() -> None:
    events = log()
    kernel(events, 31, 50)
    events.registered(GPU, 100)
    nvml(events, 31, 150)
    kernel(events, 31, 149)
    assert counts(events) == {31: 2}
    assert [event["witnesses"] for event in events.recent()] == [["nvml", "kernel"], ["kernel"]]


def test_a_gpu_that_was_lost_and_found() -> None:
    """Late lines of the log are matched with the registration of their time."""
    events = log()
    events.registered(GPU, 100)
    nvml(events, 79, 150)
    events.registered(GPU, 200)
    nvml(events, 79, 250)
    kernel(events, 79, 149)
    kernel(events, 79, 249)
    assert counts(events) == {79: 2}


@given(st.lists(st.tuples(st.sampled_from([13, 48]), st.booleans(), st.booleans()), max_size=30), st.randoms())
def test_each_event_counts_once(happened: list[tuple[int, bool, bool]], random: object) -> None:
    """If one source reports all events, the count is exact, whatever the other one misses."""
    events = log()
    events.registered(GPU, 100)
    reports = [(nvml, code, 101.0 + n) for n, (code, _, _) in enumerate(happened)]
    reports += [(kernel, code, 101.0 + n) for n, (code, seen, _) in enumerate(happened) if seen]
    random.shuffle(reports)  # type: ignore[attr-defined]
    for report, code, at in reports:
        report(events, code, at)
    truth = {code: float(sum(each == code for each, _, _ in happened)) for code, _, _ in happened}
    assert counts(events) == truth
    assert len(events.recent()) == len(happened)


def test_drain_codes_start_at_zero_with_an_xid_source() -> None:
    events = log()
    zero = {int(labels["xid"]) for metric, _, value, labels in events.samples([GPU], True) if metric is m.XID_EVENTS}
    assert zero == set(XIDS.drain_codes)
    assert not [metric for metric, *_ in events.samples([GPU], False) if metric in (m.XID_EVENTS, m.XID_ERRORS)]


def test_the_classic_gauge_has_the_last_code() -> None:
    events = log()
    events.registered(GPU, 100)
    kernel(events, 31, 101)
    kernel(events, 45, 101.5)
    found = {metric: value for metric, _, value, _ in events.samples([GPU], True)}
    assert found[m.XID_ERRORS] == 45


def test_rows_are_made_anew_only_if_one_changes() -> None:
    events = log()
    events.registered(GPU, 100)
    kernel(events, 31, 101)
    before = events.samples([GPU], True)
    assert events.samples([GPU], True) is before
    kernel(events, 31, 102)
    assert {value for _, _, value, _ in events.samples([GPU], True)} - {value for _, _, value, _ in before} == {102, 2}


def test_an_unknown_code_is_of_unknown_kind() -> None:
    events = log()
    kernel(events, 4711, 1)
    found = [(metric, labels) for metric, _, _, labels in events.samples([GPU], True)]
    (labels,) = [labels for metric, labels in found if metric is m.XID_EVENTS and labels["xid"] == "4711"]
    assert (labels["kind"], labels["action"]) == ("unknown", "none")


def test_only_recent_events_have_evidence() -> None:
    events = log()
    kernel(events, 31, time.time(), pid=486, name="bad", message="MMU Fault")
    kernel(events, 13, 5.0)
    fresh, old = events.recent()
    assert fresh["evidence"] == {"DCGM_FI_DEV_GPU_TEMP": 40.0}
    assert (fresh["pid"], fresh["process"], fresh["message"], fresh["uuid"]) == (486, "bad", "MMU Fault", "GPU-0")
    assert old["evidence"] == {}


def test_a_gpu_that_was_never_attached_has_its_address() -> None:
    events = log()
    line = XidLine("00000000:AA:00.0", 79)
    events.add_kernel_log_entry(LogEntry(LogPosition("boot", 1), 7.0, line), 7.0)
    (found,) = [each for each in events.samples([GPU], True) if each[0] is m.XID_EVENTS and each[2]]
    assert found[1] is None
    assert found[3]["pci_bus_id"] == "00000000:AA:00.0"


def test_sxids() -> None:
    events = log()
    for at in (1.0, 2.0):
        events.add_kernel_log_entry(
            LogEntry(LogPosition("b", int(at)), at, SxidLine("00000000:C1:00.0", 20034, True)), at
        )
    found = {metric: (value, labels) for metric, _, value, labels in events.samples([], True)}
    labels = {"pci_bus_id": "00000000:C1:00.0", "sxid": "20034", "fatal": "true"}
    assert found[m.SXID_EVENTS] == (2, labels)
    assert found[m.SXID_LAST] == (2.0, labels)


def test_a_storm_is_bounded() -> None:
    events = log()
    for _ in range(1000):
        kernel(events, 31, 1.0)
    assert counts(events) == {31: 1000}
    assert len(events.recent()) == KEPT


def test_a_restart_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """NVML reported an XID, but its log line is read only after the restart; then another XID follows."""
    store, first = EventStore(tmp_path), log()
    first.registered(GPU, 100)
    nvml(first, 48, 101)
    store.save(first, 0)
    second = log()
    EventStore(tmp_path).load(second)
    second.registered(GPU, 200)
    kernel(second, 48, 100.9)
    assert counts(second) == {48: 1}
    kernel(second, 48, 201)
    nvml(second, 48, 201.5)
    assert counts(second) == {48: 2}


def test_the_history_has_each_event_once(tmp_path: Path) -> None:
    store, events = EventStore(tmp_path), log()
    now = time.time()
    for age in (25, 15, 5):
        kernel(events, 31, now - age)
        store.save(events, 10)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2
    store.save(events, 0)
    store.save(events, 0)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["at"] for line in lines] == [now - 25, now - 15, now - 5]


class KilledAt:
    """The state directory as it is before and after each renaming: what a process leaves that is killed there."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder, self._kept, self._replace = folder, kept, os.replace
        self.copies: list[Path] = []

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file."""
        self._keep()
        self._replace(source, target)
        self._keep()

    def _keep(self) -> None:
        copy = self._kept / str(len(self.copies))
        shutil.copytree(self._folder, copy)
        self.copies.append(copy)
        if (copy / "events.json").exists() and (copy / "events.jsonl").exists():  # a copy has another inode
            was, now = (f'"appending": [{(folder / "events.jsonl").stat().st_ino}, ' for folder in (self._folder, copy))
            state = (copy / "events.json").read_text()
            (copy / "events.json").write_text(state.replace(was, now))


@pytest.mark.parametrize("full", [False, True], ids=["not full", "rotated"])
@pytest.mark.parametrize("torn", [0, 1, 100])
def test_a_kill_repeats_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int, *, full: bool
) -> None:
    """Whenever the process is killed, also in the middle of a line, the next one completes the history.

    It reads the kernel log from the saved position on.
    """
    folder, names = tmp_path / "state", [f"event {number}" for number in range(12)]
    folder.mkdir()
    if full:
        (folder / "events.jsonl").write_text("x" * ((1 << 20) - 3000) + "\n")
    killed = KilledAt(folder, tmp_path)
    monkeypatch.setattr(os, "replace", killed.replace)
    _follow(folder, names, step=3)
    monkeypatch.undo()
    assert len(killed.copies) > 10
    for copy in killed.copies:
        _tear(copy, torn)
        _follow(copy, names, step=12)
        lines = [line for path in copy.glob("events.jsonl*") for line in path.read_text().splitlines()]
        assert sorted(json.loads(line)["process"] for line in lines if line[:1] == "{") == sorted(names)


def _tear(folder: Path, torn: int) -> None:
    """Cut so many bytes off the lines that were being appended, if there are any."""
    history = folder / "events.jsonl"
    with suppress(FileNotFoundError):
        state = json.loads((folder / "events.json").read_text())["events"]
        inode, size = state.get("appending", (0, history.stat().st_size))
        begin = size if history.stat().st_ino == inode else 0
        if "appending" in state and history.stat().st_size > begin:
            history.write_bytes(history.read_bytes()[: -torn or None])


def _follow(folder: Path, names: Sequence[str], step: int) -> None:
    """Read the rest of the kernel log, and save the events after each few lines."""
    store, events = EventStore(folder), log()
    store.load(events)
    begin = events.position.number if events.position else 0
    for number in range(begin, len(names)):
        kernel(events, 31, 1000.0 + number, name=names[number])
        events.position = LogPosition("boot", number + 1)
        if number % step == step - 1:
            store.save(events, 0)
    store.save(events, 0)


def test_the_history_turns_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("x" * (1 << 20))
    events = log()
    kernel(events, 31, 10.0)
    EventStore(tmp_path).save(events, 0)
    assert (tmp_path / "events.jsonl.1").stat().st_size == 1 << 20
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 1


def test_a_directory_that_cannot_be_written_is_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store, events = EventStore(tmp_path / "file" / "below"), log()
    for _ in range(3):
        kernel(events, 31, 1.0)
        store.save(events, 0)
    assert len(caplog.records) == 1
    assert "--state-dir" in caplog.text


def test_a_full_disk_tears_no_line_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, events = EventStore(tmp_path), log()
    kernel(events, 31, 1.0)
    store.load(events)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        store.save(events, 0)
    assert events.changed
    assert failed_writes(events) == 1
    kernel(events, 13, 2.0)
    store.save(events, 0)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["xid"] for line in lines] == [31, 13]
    assert not store.has_unwritten(events, 0)
    assert not events.changed
    assert failed_writes(events) == 1
    assert failed_writes(log()) is None  # without a state directory


def failed_writes(events: EventLog) -> float | None:
    """Return the exposed number of failed writes."""
    return next((value for metric, _, value, _ in events.samples([GPU], True) if metric is m.UNSAVED), None)


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_an_event_older_than_the_last_one_is_written(tmp_path: Path) -> None:
    """As after a clock was set back, or if a log becomes readable late."""
    store, events = EventStore(tmp_path), log()
    for at in (100.0, 50.0):
        kernel(events, 31, at)
        store.save(events, 0)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("number", sorted(RECOVERY))
@pytest.mark.parametrize("order", ["k", "nk", "kn"])
def test_an_announced_recovery_action_outranks_the_table(number: int, order: str) -> None:
    """Only the kernel log has the recovery action of an XID 154; NVML reports the code."""
    events = log()
    events.registered(GPU, 100)
    for source in order:
        if source == "n":
            nvml(events, 154, 101)
        else:
            kernel(events, 154, 101, recovery_action=recovery_action(number))
    assert [event["action"] for event in events.recent()] == [RECOVERY[number].action.value]
