"""Files of the state directory from other programs, or that are not regular files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog, decode
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.io.file_access import InUse
from gpu_exporter.model.gpu import Gpu, XidEvent

PCI = "00000000:06:00.0"
GPU = Gpu(0, "GPU-0", PCI, "NVIDIA H200")
TALLY: list[Any] = [PCI, 79, 0, 1.0, [[0.0, 0, 1]]]
EVENT: dict[str, Any] = {
    "epoch": 0.0,
    "at": 1.0,
    "pci_bus_id": PCI,
    "xid": 79,
    **dict.fromkeys(("name", "kind", "action", "meaning", "uuid", "process", "message"), ""),
    **dict.fromkeys(("gpu", "instance", "pid")),
    "witnesses": ["kernel"],
    "evidence": {"DCGM_FI_DEV_GPU_TEMP": 40.0},
    "written": True,
}
STATE: dict[str, Any] = {
    "position": ["boot", 7],
    "since": {PCI: [100.0]},
    "tallies": [TALLY],
    "sxids": [["00000000:C1:00.0", 20034, "true", 2, 1.0]],
    "recent": [EVENT],
}


def log() -> EventLog:
    return EventLog(load(), lambda pci: None)


def saved(**changes: Any) -> str:
    """Write a state file. Python writes infinity as `Infinity`, which is not JSON."""
    return json.dumps({"events": {**STATE, **changes}})


def used(folder: Path) -> EventLog:
    """Load the state, then use it as an exporter does."""
    events, store = log(), EventStore(folder)
    store.load(events)
    events.registered(GPU, time.time())
    events.add_driver_xids([XidEvent(time.time(), PCI, 48)])
    events.samples([GPU], nvml_up=True)
    events.problems()
    json.dumps(events.recent())
    store.save(events, 0)
    store.close()
    decode((folder / "events.json").read_bytes())
    return events


def counts(events: EventLog) -> dict[int, float]:
    """Return the counts by code, without zeros."""
    rows = events.samples([GPU], nvml_up=True)
    return {int(labels["xid"]): value for metric, _, value, labels in rows if metric is m.XID_EVENTS and value}


def test_a_state_of_an_earlier_version_is_restored(tmp_path: Path) -> None:
    (tmp_path / "events.json").write_text(saved())
    events = used(tmp_path)
    assert counts(events) == {79: 1, 48: 1}
    assert len(events.recent()) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"written": 0, "events": {}}',
        '{"written": 0, "events": 3}',
        "\xff\xfe",
        "[" * 200_000,
        '{"events": ' * 50_000,
        saved(since={PCI: [float("inf")]}),
        saved(since={PCI: [1e300]}),
        saved(since={PCI: [-1.0]}),
        saved(since={PCI: ["now"]}),
        saved(since={"a GPU": [1.0]}),
        saved(position=["boot"]),
        saved(position=["b" * 1000, 7]),
        saved(tallies=[[PCI, 79, 0, float("inf"), []]]),
        saved(tallies=[[PCI, 79, 0, float("nan"), []]]),
        saved(tallies=[[PCI, 79, 0, 1e300, []]]),
        saved(tallies=[[PCI, 79, 0, -1.0, []]]),
        saved(tallies=[[PCI, 79, "many", 1.0, []]]),
        saved(tallies=[[PCI, 79, 10**300, 1.0, []]]),
        saved(tallies=[[PCI, 79, -1, 1.0, []]]),
        saved(tallies=[[PCI, "79", 0, 1.0, []]]),
        saved(tallies=[[PCI, 79, 0, 1.0, [[float("inf"), 0, 1]]]]),
        saved(tallies=[["x" * 1000, 79, 0, 1.0, []]]),
        saved(tallies=[[PCI, 79, 0, 1.0, [[float(n), 0, 1] for n in range(33)]]]),
        saved(sxids=[[PCI, 20034, "perhaps", 1, 1.0]]),
        saved(sxids=[[PCI, 20034, "true", 1, "yesterday"]]),
        saved(recent=[{**EVENT, "at": float("inf")}]),
        saved(recent=[{**EVENT, "at": "yesterday"}]),
        saved(recent=[{**EVENT, "epoch": float("-inf")}]),
        saved(recent=[{**EVENT, "xid": "79"}]),
        saved(recent=[{**EVENT, "evidence": {"DCGM_FI_DEV_GPU_TEMP": float("nan")}}]),
        saved(recent=[{**EVENT, "evidence": {"DCGM_FI_DEV_GPU_TEMP": "hot"}}]),
        saved(recent=[{**EVENT, "witnesses": ["unknown"]}]),
        saved(recent=[{**EVENT, "message": 5}]),
        saved(recent=[{"xid": 79}]),
        " " * (9 << 20),
    ],
    ids=lambda content: content[:40],
)
def test_an_unusable_state_is_moved_aside(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """One log line names it; counts start from zero, and are saved."""
    (tmp_path / "events.json").write_text(content, encoding="latin-1")
    events = used(tmp_path)
    assert counts(events) == {48: 1}
    assert (tmp_path / "events.bad").read_text(encoding="latin-1") == content
    (record,) = caplog.records
    assert record.message.startswith(f"{tmp_path / 'events.json'}: ")
    assert "events.bad" in record.message
    assert "\n" not in record.message
    assert len(record.message) < 600


@given(st.data())
def test_a_damaged_state_never_prevents_the_start(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(saved().encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.one_of(
                st.binary(max_size=3), st.sampled_from([b"Infinity", b"1e999", b"-1", b'"', b"[", b"null", b"9e9"])
            )
        )
    folder = tmp_path_factory.mktemp("state")
    (folder / "events.json").write_bytes(bytes(content))
    used(folder)


@pytest.mark.parametrize("name", ["events.json", "events.draft", "events.jsonl"])
def test_symbolic_links_are_not_followed(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither to an existing file nor to one that would be created."""
    state, elsewhere, new = tmp_path / "state", tmp_path / "elsewhere", tmp_path / "new"
    elsewhere.write_text(saved())
    for target in (elsewhere, new):
        state.mkdir(exist_ok=True)
        for file in ("events.json", name):  # the counts are saved even if the history cannot be
            (state / file).unlink(missing_ok=True)
        (state / name).symlink_to(target)
        events, store = log(), EventStore(state)
        store.load(events)
        assert counts(events) == {}
        events.add_driver_xids([XidEvent(time.time(), PCI, 48)])
        for _ in range(3):
            store.save(events, 0)
        assert sum(name in record.message and "symbolic link" in record.message for record in caplog.records) == 1
        caplog.clear()
        store.close()
    assert elsewhere.read_text() == saved()
    assert not new.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_state_file_that_is_not_a_file(tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path / "events.json")
    assert counts(used(tmp_path)) == {48: 1}
    (message,) = (record.message for record in caplog.records)
    assert message.startswith(f"{tmp_path / 'events.json'}: ")
    assert message.endswith("not a regular file; XIDs are counted from what the kernel log still has")


def test_the_second_exporter_of_a_directory_saves_once_the_first_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As while a pod is replaced: one line says so, nothing is repeated, and nothing is lost."""
    stores, logs = [EventStore(tmp_path), EventStore(tmp_path)], [log(), log()]
    begin = time.time() - 100
    for number in range(6):
        for place in (0, 1) if number >= 2 else (0,):
            logs[place].add_driver_xids([XidEvent(begin + 10 * number + place / 2, PCI, 31)])
        if number == 1:
            stores[0].save(logs[0], 0)
            stores[1].load(logs[1])
        stores[0].save(logs[0], 0)
        stores[1].save(logs[1], 0)
    assert [record.message for record in caplog.records] == [str(InUse(tmp_path))]
    stores.pop(0).close()
    for event_log in logs:  # the first one is no longer there to save the last event
        event_log.add_driver_xids([XidEvent(begin + 80, PCI, 48)])
    stores[0].save(logs[1], 0)
    stores[0].save(logs[1], 0)
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["xid"] for line in lines] == [31] * 6 + [48]
    assert len(caplog.records) == 1
    restored = log()
    EventStore(tmp_path).load(restored)
    assert counts(restored) == {31: 6, 48: 1}
