"""Limits on responses: what exceeds one is dropped and counted, and the rest counts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.io.user_text import patterns
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.client import Api
from gpu_exporter.kubernetes.objects import Object, SliceDevice, WatchEvent
from gpu_exporter.kubernetes.watch import ListWatch
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.lookup import Incomplete, Lookup, LookupFailed
from gpu_exporter.owners import files, pods, resource_slices
from gpu_exporter.owners.assignment import LookupAnswers, owners
from gpu_exporter.owners.cgroup import ProcessOwner
from gpu_exporter.owners.devices import Allocated, Listing, NodeDevices
from gpu_exporter.owners.jobs import LARGEST_FILE, JobFiles
from gpu_exporter.owners.pods import PodDetails
from gpu_exporter.owners.processes import ProcessLookup, container_name
from tests.support.tools import LIMIT

GPU = Gpu(0, "GPU-01234567-89ab-4cde-8f01-23456789abcd")


def a_pod(name: str = "p", uid: str = "u", **labels: str) -> Object:
    """Return a pod in the API server's format."""
    return {"metadata": {"namespace": "team", "name": name, "uid": uid, "labels": labels}}


# --- unresolved devices --------------------------------------------------------------------------------------------


def test_series_of_unresolved_devices_are_limited() -> None:
    """The last one counts the others, so that the sum is the number of devices."""
    allocated = [Allocated("team", f"p{number}", "main", "nvidia.com/gpu", f"GPU-{number}") for number in range(3000)]
    allocated.append(Allocated("team", "owner", "main", "nvidia.com/gpu", GPU.uuid))
    _, rows = owners(LookupAnswers(NodeDevices({GPU.uuid: GPU}), Listing(tuple(allocated))))
    unresolved = [row for row in rows if row.metric is m.POD_UNRESOLVED]
    assert len(unresolved) == limits.MOST_UNRESOLVED + 1
    assert sum(row.value for row in unresolved) == 3000
    assert unresolved[-1].labels == (("reason", "too_many"),)
    assert [dict(row.labels)["pod"] for row in rows if row.metric is m.POD_INFO] == ["owner"]


# --- pods and slices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        a_pod(uid="u" * 65),
        a_pod(**{"job-name": "x" * 64}),
        a_pod(**{"job-name": "x" * (1 << 20)}),
        a_pod(**{"batch.kubernetes.io/job-completion-index": "1" * 64}),
        a_pod(shown="x" * 64),
        a_pod(**{"shown" + "x" * 400: "y"}),
    ],
    ids=["UID", "workload", "workload of 1 MiB", "rank", "value of a label", "name of a label"],
)
def test_overlong_text_drops_the_pod(item: Object) -> None:
    with pytest.raises(Incomplete) as raised:
        pods.PodReader(patterns("shown.*"))(item)
    assert raised.value.reason == "too_long"
    assert raised.value.rest is None
    assert len(str(raised.value)) < 400


def test_labels_that_are_not_shown_may_be_of_any_number() -> None:
    assert pods.PodReader()(a_pod(**{f"label-{number}": "x" for number in range(1000)})).uid == "u"


def test_pod_with_too_many_labels_keeps_its_workload() -> None:
    """Any user may give a pod thousands of labels."""
    labels = {f"label-{number}": "x" for number in range(limits.MOST_POD_LABELS + 1)} | {"job-name": "bert"}
    with pytest.raises(Incomplete) as raised:
        pods.PodReader(patterns(".*"))(a_pod(**labels))
    assert raised.value.reason == "too_many"
    assert raised.value.rest == PodDetails(uids=("u",), workload="bert")


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([{"name": "d" * 254}], "too_long"),
        ([{"name": "d"}] * (limits.MOST_SLICE_DEVICES + 1), "too_many"),
    ],
    ids=["name", "number"],
)
def test_slice_beyond_a_limit_is_dropped(devices: list[SliceDevice], reason: str) -> None:
    full: list[SliceDevice] = [
        {**device, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-0"}}} for device in devices
    ]
    with pytest.raises(Incomplete) as raised:
        resource_slices.read({"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "n"}, "devices": full}})
    assert raised.value.reason == reason


class Script:
    """A scripted API server with these pods, whose watch has one more event."""

    def __init__(self, items: list[Object], event: WatchEvent) -> None:
        self._items, self._event = items, event
        self.done = threading.Event()

    def close(self) -> None:
        """There is no connection."""

    def list_objects(self, path: str, **query: str) -> tuple[list[Object], str]:
        """Return the pods."""
        return self._items, "1"

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[WatchEvent | None]:
        """Yield the event."""
        yield None
        yield self._event
        yield None
        self.done.set()


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (a_pod("late"), "too_many"),
        (a_pod("x" * 400), "too_long"),
        (a_pod("a", uid="u" * 100), "too_long"),
    ],
    ids=["number", "name", "an overlong UID of a known pod"],
)
def test_event_beyond_a_limit_drops_only_its_pod(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, item: Object, reason: str
) -> None:
    monkeypatch.setattr(limits, "MOST_OBJECTS", 2)
    script = Script([a_pod("a"), a_pod("b")], {"type": "MODIFIED", "object": item})
    lookup: Lookup[Mapping[str, PodDetails]] = Lookup("pods", {})
    watch = ListWatch(lookup, cast(Api, script), pods.path, pods.PodReader(), {})
    with caplog.at_level("WARNING"):
        watch.start()
        assert script.done.wait(LIMIT)
        watch.stop()
        watch.join(LIMIT)
    assert "team/b" in lookup.value
    assert ("team/a" in lookup.value) is (item["metadata"]["name"] != "a")
    assert lookup.errors[reason] >= 1
    assert lookup.up
    assert len(caplog.records) == 1


# --- job files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kept", "reason"),
    [
        (b"7\n" + b"x" * 300 + b"\n", ("7",), "too_long"),
        (b"".join(b"%d\n" % number for number in range(1000)), tuple(map(str, range(256))), "too_many"),
        (b"1\n" * LARGEST_FILE, None, "too_long"),
    ],
    ids=["a long line", "many lines", "a large file"],
)
def test_job_file_beyond_a_limit(tmp_path: Path, content: bytes, kept: tuple[str, ...] | None, reason: str) -> None:
    (tmp_path / "0").write_bytes(content)
    (tmp_path / "1").write_text("101\n")
    with pytest.raises(Incomplete) as raised:
        JobFiles(tmp_path, tmp_path).ask()
    assert raised.value.reason == reason
    assert raised.value.rest == {"1": ("101",)} | ({"0": kept} if kept else {})


@pytest.mark.parametrize(("limit", "most"), [("MOST_JOB_FILES", 3), ("MOST_JOB_ENTRIES", 3), ("MOST_JOBS", 5)])
def test_number_of_job_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(limits, limit, most)
    for number in range(10):
        (tmp_path / str(number)).write_text("1\n2\n")
    with pytest.raises(Incomplete) as raised:
        JobFiles(tmp_path, tmp_path).ask()
    assert raised.value.reason == "too_many"
    assert 0 < len(raised.value.rest) <= 3


def test_job_directory_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that does not answer fails the lookup by its deadline, and the next one at once."""
    released, real = threading.Event(), files.read

    def hang(path: Path, largest: int) -> object:
        released.wait()
        return real(path, largest)

    monkeypatch.setattr(files, "read", hang)
    (tmp_path / "0").write_text("7\n")
    jobs = JobFiles(tmp_path, tmp_path, patience=0.3)
    try:
        for patience in (0.3, threading.TIMEOUT_MAX):
            jobs._patience = patience
            with pytest.raises(LookupFailed, match="is this file system reachable") as raised:
                jobs.ask()
            assert raised.value.reason == "timeout"
    finally:
        released.set()


def test_pipe_in_place_of_the_kernels_statistics(tmp_path: Path) -> None:
    """It is never waited for: files then count whatever their age."""
    os.mkfifo(tmp_path / "stat")
    (tmp_path / "0").write_text("7\n")
    assert JobFiles(tmp_path, tmp_path).ask() == {"0": ("7",)}


# --- processes and containers --------------------------------------------------------------------------------------


def test_procfs_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hang(path: Path, largest: int) -> None:
        released.wait()

    monkeypatch.setattr(files, "read", hang)
    lookup = ProcessLookup(tmp_path, patience=0.3)
    lookup.wanted = {1: 60.0}
    try:
        with pytest.raises(LookupFailed) as raised:
            lookup.ask()
        assert raised.value.reason == "timeout"
    finally:
        released.set()


@pytest.mark.parametrize(
    "content",
    ['{"Name": 5}', '{"Name": ["x"]}', "[]", '{"Name": "' + "x" * 400 + '"}', "[" * 100_000, '{"Name": "\\ud800"}'],
    ids=["a number", "a list", "no object", "long", "deep", "no text"],
)
def test_strange_file_of_a_container_runtime(tmp_path: Path, content: str) -> None:
    """The container has no name then."""
    owner = ProcessOwner(container="c" * 64, runtime="docker")
    config = tmp_path / f"var/lib/docker/containers/{owner.container}/config.v2.json"
    config.parent.mkdir(parents=True)
    config.write_text(content)
    assert container_name(owner, tmp_path) == ""
