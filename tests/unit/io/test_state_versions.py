"""The files of the state directory after an upgrade, after going back, and beside those of a newer gpu-exporter."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

from gpu_exporter.active_checks.history import ActiveChecks, Run
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.event_store import EventStore
from gpu_exporter.health.links import GpuLinks, LinkHistory
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.state_version import NewerStateError, check_version
from gpu_exporter.model.gpu import Gpu, XidEvent
from gpu_exporter.model.verdict import Health

PCI = "00000000:06:00.0"
GPU = Gpu(0, "GPU-0", PCI, "NVIDIA H200")
# As written before the files of events and links had versions.
BEFORE: dict[str, Any] = {
    "events.json": {
        "events": {
            "position": ["boot", 7],
            "since": {PCI: [100.0]},
            "tallies": [[PCI, 79, 0, 1.0, [[0.0, 0, 1]]]],
            "sxids": [],
            "recent": [],
        }
    },
    "links.json": {"gpus": {"GPU-0": {"address": PCI, "pcie": 1e12, "nvlinks": 18.0}}},
    "active-checks.json": {"version": 1, "gpus": {"GPU-0": [{"at": 5.0, "level": 1, "health": "healthy"}]}},
}


class EventsBefore(TypedDict):
    """What the earlier version read of its file, and likewise below: it ignores what it does not know."""

    position: tuple[str, int] | None
    since: dict[str, list[float]]
    tallies: list[tuple[str, int, int, float, list[tuple[float, int, int]]]]


class EventsFileBefore(TypedDict):
    """The file of events."""

    events: EventsBefore


class LinksBefore(TypedDict):
    """What links of a GPU reached."""

    address: str
    pcie: float
    nvlinks: float


class LinksFileBefore(TypedDict):
    """The file of links."""

    gpus: dict[str, LinksBefore]


def _events(folder: Path) -> EventLog:
    """Load the events, count one more, and save."""
    events, store = EventLog(load(), lambda pci: None), EventStore(folder)
    store.load(events)
    events.add_driver_xids([XidEvent(2.0, PCI, 48)])
    store.save(events, 0.0)
    store.close()
    return events


def _counts(events: EventLog) -> dict[int, float]:
    rows = events.samples([GPU], nvml_up=True)
    return {int(labels["xid"]): value for metric, _, value, labels in rows if metric is m.XID_EVENTS and value}


def _links(folder: Path) -> float:
    """Return the expected capacity, after saving what links reached: more NVLinks than before."""
    history = LinkHistory(folder)
    values = {m.PCIE_GEN: 4.0, m.PCIE_WIDTH: 8.0, m.NVLINK_COUNT: 20.0, m.NVLINK_UP: 20.0}
    (found,) = history.expected([GpuLinks(GPU, values)])
    history.save()
    history.wait()
    return found[m.PCIE_EXPECTED]


def _checks(folder: Path) -> None:
    ActiveChecks(folder).append({"GPU-0": Run(6.0, 1, Health.HEALTHY)})


WRITERS: dict[str, Callable[[Path], object]] = {
    "events.json": _events,
    "links.json": _links,
    "active-checks.json": _checks,
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state directory of the version before."""
    for name, content in BEFORE.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def test_an_upgrade_reads_the_files_of_the_version_before(state: Path) -> None:
    assert _counts(_events(state)) == {79: 1, 48: 1}
    assert _links(state) == 1e12
    _checks(state)
    assert [run.at for run in ActiveChecks(state).read().gpus["GPU-0"]] == [5.0, 6.0]
    assert {name: json.loads((state / name).read_bytes())["version"] for name in BEFORE} == dict.fromkeys(BEFORE, 1)


def test_the_version_before_reads_the_files_after_an_upgrade(state: Path) -> None:
    for write in WRITERS.values():
        write(state)
    events = json_as(EventsFileBefore, (state / "events.json").read_bytes())["events"]
    assert [(tally[0], tally[1]) for tally in events["tallies"]] == [(PCI, 79), (PCI, 48)]
    assert events["position"] == ("boot", 7)
    links = json_as(LinksFileBefore, (state / "links.json").read_bytes())["gpus"]
    assert links == {"GPU-0": {"address": PCI, "pcie": 1e12, "nvlinks": 20.0}}


# Not as this version would write it.
NEWER = json.dumps({"version": 2, "events": "elsewhere", "gpus": "elsewhere"})


@pytest.mark.parametrize("name", ["events.json", "links.json"])
def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """One line names it and the fix."""
    (tmp_path / name).write_text(NEWER)
    caplog.set_level(logging.WARNING)
    WRITERS[name](tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.suffix != ".lock"} == {name: NEWER}
    (record,) = caplog.records
    assert record.message.startswith(
        f"{tmp_path / name}: a newer gpu-exporter wrote it (version 2, this one reads 1): "
    )
    assert "upgrade gpu-exporter, or give this one another --state-dir" in record.message
    assert "\n" not in record.message


def test_active_checks_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "active-checks.json").write_text(NEWER)
    with pytest.raises(ValueError, match=r"active-checks\.json: a newer gpu-exporter wrote it .*upgrade gpu-exporter"):
        _checks(tmp_path)
    assert (tmp_path / "active-checks.json").read_text() == NEWER


def test_a_newer_version_may_begin_to_write_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as the other pod of a rollout, which has the lock: the older one does not overwrite what that wrote."""
    events, newer, older = EventLog(load(), lambda pci: None), EventStore(tmp_path), EventStore(tmp_path)
    newer.load(events)
    newer.save(events, 0.0)
    older.load(events)  # waits for the lock
    (tmp_path / "events.json").write_text(NEWER)
    newer.close()
    for _ in range(2):
        older.save(events, 0.0)
    assert (tmp_path / "events.json").read_text() == NEWER
    assert sum("a newer gpu-exporter wrote it" in record.message for record in caplog.records) == 1
    history = LinkHistory(tmp_path)
    (tmp_path / "links.json").write_text(NEWER)
    list(history.expected([GpuLinks(GPU, {m.PCIE_GEN: 4.0, m.PCIE_WIDTH: 8.0})]))
    history.save()
    history.wait()
    assert (tmp_path / "links.json").read_text() == NEWER


@pytest.mark.parametrize("after", ["", "{", None])
def test_events_are_saved_again_once_the_newer_file_has_gone(tmp_path: Path, after: str | None) -> None:
    path = tmp_path / "events.json"
    path.write_text(NEWER)
    events, store = EventLog(load(), lambda pci: None), EventStore(tmp_path)
    store.load(events)
    path.unlink()
    if after is not None:
        path.write_text(after)
    store.save(events, 0.0)
    assert json.loads(path.read_bytes())["version"] == 1
    assert path.with_suffix(".bad").exists() is (after is not None)


@pytest.mark.parametrize(
    ("content", "known", "is_newer"),
    [("{}", 1, False), ('{"version": 1}', 1, False), ('{"version": 2}', 2, False), ('{"version": 3}', 2, True)],
)
def test_versions(content: str, known: int, is_newer: bool) -> None:
    """Without a version, it is the first."""
    if is_newer:
        with pytest.raises(NewerStateError):
            check_version(content.encode(), known)
    else:
        check_version(content.encode(), known)
