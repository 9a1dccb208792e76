"""Device ids, job files, shares of pods, and how long answers of lookups hold: tables and properties."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.config import Config, package_settings
from gpu_exporter.host.procfs import since_boot
from gpu_exporter.kubernetes.client import Api
from gpu_exporter.kubernetes.objects import Object, SliceDevice, SliceSpec, WatchEvent
from gpu_exporter.kubernetes.watch import ListWatch
from gpu_exporter.model import lookup as lookup_module
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.lookup import Lookup, LookupFailed
from gpu_exporter.model.snapshot import GpuSamples, OwnerLabels, Snapshot
from gpu_exporter.owners import pods
from gpu_exporter.owners.assignment import DeviceLoad, LookupAnswers, owners, shares
from gpu_exporter.owners.attributor import Attributor, Lookups
from gpu_exporter.owners.cgroup import ProcessOwner, uid
from gpu_exporter.owners.choice import kubelet_of
from gpu_exporter.owners.devices import Allocated, DeviceId, DeviceRef, Listing, NodeDevices, parse
from gpu_exporter.owners.jobs import JobFiles
from gpu_exporter.owners.pods import PodDetails, label_name
from gpu_exporter.owners.processes import ProcessLookup, container_name
from gpu_exporter.owners.resource_slices import read, uuids
from gpu_exporter.owners.settings import OwnerSettings
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer
from tests.support.tools import LIMIT

U = "01234567-89ab-4cde-8f01-23456789abcd"
GPU = Gpu(0, f"GPU-{U}", device="nvidia4")
OTHER = Gpu(1, "GPU-76543210-89ab-4cde-8f01-23456789abcd", device="nvidia0")
HERE = NodeDevices({GPU.uuid: GPU}, {f"MIG-{U}": DeviceRef(GPU.uuid, "7")})
TEXT = Variant(openmetrics=False, gzip=False)


# --- device ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"GPU-{U}", DeviceId(uuid=f"GPU-{U}")),
        (f"GPU-{U.upper()}", DeviceId(uuid=f"GPU-{U.upper()}")),
        (f"GPU-{U}::0", DeviceId(uuid=f"GPU-{U}", replica="0")),
        (f"GPU-{U}-0", DeviceId(uuid=f"GPU-{U}", replica="0")),
        (f"GPU-{U}-12", DeviceId(uuid=f"GPU-{U}", replica="12")),
        (f"GPU-{U}-_-23", DeviceId(uuid=f"GPU-{U}", replica="23")),
        (f"GPU-{U}__3", DeviceId(uuid=f"GPU-{U}", replica="3")),
        (f"MIG-{U}-1", DeviceId(mig=f"MIG-{U}", replica="1")),
        (f"MIG-{U}-_-1", DeviceId(mig=f"MIG-{U}", replica="1")),
        (f"MIG-GPU-{U}/7/0-4", DeviceId(uuid=f"GPU-{U}", instance="7", replica="4")),
        (f"MIG-{U}", DeviceId(mig=f"MIG-{U}")),
        (f"MIG-{U}::12", DeviceId(mig=f"MIG-{U}", replica="12")),
        (f"MIG-GPU-{U}/7/0", DeviceId(uuid=f"GPU-{U}", instance="7")),
        (f"MIG-GPU-{U}/07/0::1", DeviceId(uuid=f"GPU-{U}", instance="7", replica="1")),
        ("0", DeviceId(index="0")),
        ("15::3", DeviceId(index="15", replica="3")),
        ("2.0", DeviceId(index="2", instance="0")),
        ("nvidia0", DeviceId(device="nvidia0")),
        ("nvidia0/vgpu3", DeviceId(device="nvidia0", replica="3")),
        ("nvidia0/gi2", DeviceId(device="nvidia0", instance="2")),
        ("nvidia0/gi2/vgpu0", DeviceId(device="nvidia0", instance="2", replica="0")),
    ],
)
def test_device_id_is_parsed(text: str, expected: DeviceId) -> None:
    """All known forms."""
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "GPU-", f"GPU-{U}x", f"GPU-{U}::", f"GPU-{U}::a", f"GPU-{U}::1::2", f"GPU-{U}-1-2", f"GPU-{U}-", f"GPU-{U}-a",
     f"GPU-{U}1", f"GPU-{U}-_-", f"{U}-1", "0-1", "nvidia0-1", f"MIG-{U}/1/2", "nvidia", "nvidia0/gi", "nvidia0/1",
     "nvidia0/vgpu1/gi2", "/dev/nvidia0", "0000:3b:00.0", "-1", "1.", "\u0661", "0\n", "99999", U, "all"],
)  # fmt: skip
def test_other_text_is_not_a_device_id(text: str) -> None:
    """It is rejected instead of guessed."""
    assert parse(text) is None


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_none(text: str) -> None:
    """No text causes an error, neither when it is parsed nor when it is looked up."""
    device = parse(text)
    assert device is None or HERE.find(device) in (None, DeviceRef(GPU.uuid), DeviceRef(GPU.uuid, "7"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GPU.uuid, DeviceRef(GPU.uuid)),
        ("0", DeviceRef(GPU.uuid)),
        ("nvidia4", DeviceRef(GPU.uuid)),  # by minor number, which is not the index
        ("nvidia0", None),
        ("4", None),
        (f"MIG-{U}", DeviceRef(GPU.uuid, "7")),
        ("nvidia4/gi7", DeviceRef(GPU.uuid, "7")),
        ("nvidia4/gi8", None),
        (f"MIG-GPU-{U}/7/0", DeviceRef(GPU.uuid, "7")),
        (f"GPU-{U[:-1]}0", None),
    ],
)
def test_device_id_is_found(text: str, expected: DeviceRef | None) -> None:
    """Ids refer to the devices of this node, or to none."""
    device = parse(text)
    assert device
    assert HERE.find(device) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("4", DeviceRef(GPU.uuid)),
        ("4.7", DeviceRef(GPU.uuid, "7")),
        ("nvidia4", DeviceRef(GPU.uuid)),
        ("0", DeviceRef(OTHER.uuid)),
        ("1", None),
        (GPU.uuid, DeviceRef(GPU.uuid)),
        (f"MIG-{U}", DeviceRef(GPU.uuid, "7")),
    ],
)
def test_a_job_file_is_named_by_minor_number(name: str, expected: DeviceRef | None) -> None:
    """As Slurm counts: GPU has the index 0 and is /dev/nvidia4, OTHER has the index 1 and is /dev/nvidia0."""
    here = NodeDevices({GPU.uuid: GPU, OTHER.uuid: OTHER}, HERE.migs)
    _, rows = owners(LookupAnswers(here, jobs={name: ("17",)}))
    found = {DeviceRef(row.gpu.uuid, dict(row.labels).get("GPU_I_ID", "")) for row in rows if row.gpu}
    assert found == ({expected} if expected else set())


def test_without_minor_numbers_a_job_file_is_named_by_index() -> None:
    """A driver that reports no minor numbers, as in WSL."""
    gpu = replace(OTHER, device="")
    _, rows = owners(LookupAnswers(NodeDevices({gpu.uuid: gpu}), jobs={"1": ("17",), "0": ("18",)}))
    assert [dict(row.labels)["job_id"] for row in rows] == ["17"]


# --- owners --------------------------------------------------------------------------------------------------------


def allocated(pod: str, device: str = GPU.uuid, container: str = "main") -> Allocated:
    return Allocated("team", pod, container, "nvidia.com/gpu", device)


def classic(*found: Allocated, pods: Mapping[str, PodDetails] | None = None) -> dict[str, str]:
    """Return the classic labels of the GPU."""
    owner_labels, _ = owners(LookupAnswers(HERE, Listing(tuple(found)), pods or {}))
    return dict(owner_labels.labels(Series(m.POWER, GPU)))


def test_a_pod_with_two_containers_on_a_gpu_has_it() -> None:
    """An init container often has the same device as the main one: the pod has the GPU, and `container` is empty."""
    both = allocated("a"), allocated("a", container="init")
    assert classic(*both) == {"namespace": "team", "pod": "a", "container": ""}
    _, rows = owners(LookupAnswers(HERE, Listing(both)))
    assert [dict(row.labels)["container"] for row in rows] == ["init", "main"]


@pytest.mark.parametrize(
    ("annotation", "device", "expected"),
    [
        ("", f"{GPU.uuid}-3", [(0, "main")]),
        (f"{OTHER.uuid},NVIDIA,3000,0:;", f"{GPU.uuid}-3", [(1, "main")]),
        (f";{OTHER.uuid}[0-1],NVIDIA,3000,0:{GPU.uuid},NVIDIA,3000,0:;", f"{GPU.uuid}-3", [(0, "main"), (1, "main")]),
        ("nonsense", f"{GPU.uuid}-3", [(0, "main")]),
        (f"{OTHER.uuid},NVIDIA,3000,0:;", f"{GPU.uuid}::3", [(0, "main")]),  # NVIDIA's plugin: nobody reads it
        (f"{OTHER.uuid},NVIDIA,3000,0:;", GPU.uuid, [(0, "main")]),
    ],
)
@pytest.mark.parametrize("name", ["hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new"])
def test_the_scheduler_of_a_sharing_plugin_chooses_the_gpu(
    name: str, annotation: str, device: str, expected: list[tuple[int, str]]
) -> None:
    """It writes the GPU into an annotation, whatever the id that kubelet chose."""
    here = NodeDevices({GPU.uuid: GPU, OTHER.uuid: OTHER})
    item: Any = {"metadata": {"name": "a", "namespace": "team", "annotations": {name: annotation}}}
    known = {"team/a": pods.PodReader()(item)}
    _, rows = owners(LookupAnswers(here, Listing((allocated("a", device),)), known))
    assert [(row.gpu.index, dict(row.labels)["container"]) for row in rows if row.gpu] == expected


def test_an_annotation_is_of_the_whole_pod() -> None:
    """Which of several containers has which GPU is not known. A GPU that is not of this node is not resolved."""
    both = Listing((allocated("a", f"{GPU.uuid}-3"), allocated("a", f"{GPU.uuid}-4", container="other")))
    missing = f"GPU-{U[:-1]}0"
    here = NodeDevices({GPU.uuid: GPU, OTHER.uuid: OTHER})
    _, rows = owners(LookupAnswers(here, both, {"team/a": PodDetails(gpus=(OTHER.uuid, missing))}))
    found = [(row.metric, row.gpu, dict(row.labels).get("container"), dict(row.labels).get("device")) for row in rows]
    assert found == [(m.POD_INFO, OTHER, None, None), (m.POD_UNRESOLVED, None, "", missing)]


def test_no_lookup_means_no_labels() -> None:
    """Without --kubernetes, the labels do not exist; with it, they may be empty."""
    owner_labels, rows = owners(LookupAnswers(HERE))
    assert (owner_labels.labels(Series(m.POWER, GPU)), list(rows)) == ((), [])
    assert OwnerLabels().labels(Series(m.POWER, GPU)) == ()


def test_gpu_families_carry_no_pod() -> None:
    """A counter continues when another pod gets the GPU."""
    owner_labels, _ = owners(LookupAnswers(HERE, Listing((allocated("a"),))))
    assert owner_labels.labels(Series(m.SM_SECONDS, GPU)) == ()
    assert owner_labels.labels(Series(m.POWER)) == ()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([GPU.uuid, f"{GPU.uuid}::1", "0", f"MIG-{U}"]))))
def test_a_gpu_has_one_pod_or_none(found: list[tuple[str, str]]) -> None:
    """Whatever kubelet lists, the pod of the classic labels is the only one on the device."""
    listing = Listing(tuple(sorted(allocated(pod, device) for pod, device in found)))
    owner_labels, rows = owners(LookupAnswers(HERE, listing))
    for place in (DeviceRef(GPU.uuid), DeviceRef(GPU.uuid, "7")):
        own = (("GPU_I_ID", place.instance),) if place.instance else ()
        pods = {dict(row.labels)["pod"] for row in rows if dict(row.labels).get("GPU_I_ID", "") == place.instance}
        label = dict(owner_labels.labels(Series(m.FB_USED, GPU, own)))["pod"]
        assert label == (pods.pop() if len(pods) == 1 else "")
    assert len({(row.metric, row.gpu, row.labels) for row in rows}) == len(rows)


def test_a_change_of_owner_changes_the_lines_at_once() -> None:
    """Also if the value stays the same, and only those of that GPU."""
    renderer, other = Renderer("n"), Gpu(1, "GPU-1")
    series = [Series(m.POWER, GPU), Series(m.POWER, other), Series(m.SM_SECONDS, GPU)]
    samples = tuple(Sample(each, 1.0) for each in series)
    bodies = []
    for pod in ("a", "a", "b", None):
        taken = {(GPU.uuid, ""): (("pod", pod),)} if pod else {}
        snapshot = Snapshot(0, "nvml", samples, owner_labels=OwnerLabels((("pod", ""),), taken))
        bodies.append(renderer.render(snapshot).body(TEXT).decode())
    assert ['pod="a"' in body for body in bodies] == [True, True, False, False]
    assert ['pod="b"' in body for body in bodies] == [False, False, True, False]
    assert [body.count('pod=""') for body in bodies] == [1, 1, 1, 2]


def test_label_names() -> None:
    """They have the form of kube-state-metrics."""
    assert label_name("app.kubernetes.io/name") == "label_app_kubernetes_io_name"


# --- shares --------------------------------------------------------------------------------------------------------

PIDS = st.integers(1, 6)


@given(
    st.integers(0, 10**12),
    st.dictionaries(PIDS, st.integers(0, 10**11)),
    st.dictionaries(PIDS, st.integers(0, 100)),
    st.dictionaries(PIDS, st.sampled_from(["", "a" * 32, "b" * 32])),
)
def test_shares_add_up(more: int, memory: dict[int, int], sm: dict[int, int], pods: dict[int, str]) -> None:
    """Shares of pods and the rest add up to the memory in use, and to the whole SM time."""
    used = sum(memory.values()) + more
    load = DeviceLoad(used, dict(memory), {pid: value / 100 for pid, value in sm.items()}, sampled=True)
    running = {pid: ProcessOwner(pod=pod) for pid, pod in pods.items()}
    rows = list(shares(HERE, {DeviceRef(GPU.uuid): load}, running, {}))
    total = {metric: sum(row.value for row in rows if row.metric is metric) for metric in {row.metric for row in rows}}
    assert total.get(m.POD_MEMORY, 0) + total[m.POD_MEMORY_REST] == pytest.approx(used)
    assert total.get(m.POD_SM, 0) + total[m.POD_SM_REST] + total[m.POD_SM_IDLE] == pytest.approx(1, abs=1e-5)
    assert all(row.value >= 0 for row in rows)
    assert len({(row.metric, row.labels) for row in rows}) == len(rows)


def test_a_pod_by_any_of_its_uids() -> None:
    """A static pod has another UID in its cgroups."""
    known = {"kube-system/dcgm": PodDetails(uids=(U, "ab" * 16))}
    load = DeviceLoad(10, {1: 3.0, 2: 4.0})
    running = {1: ProcessOwner(pod=uid(U)), 2: ProcessOwner(pod="ab" * 16)}
    rows = [row for row in shares(HERE, {DeviceRef(GPU.uuid): load}, running, known) if row.metric is m.POD_MEMORY]
    assert {dict(row.labels)["pod"] for row in rows} == {"dcgm"}


# --- lookups ---------------------------------------------------------------------------------------------------------


def test_last_answer_is_kept_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures do not remove it, but it expires."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lookup = Lookup("kubelet", "nothing")
    assert (lookup.value, lookup.age, lookup.up) == ("nothing", None, False)
    lookup.answer("something")
    lookup.fail(LookupFailed("no_socket", "gone"))
    now[0] += lookup_module.KEPT_SECONDS - 1
    assert (lookup.value, lookup.up, lookup.errors) == ("something", False, {"no_socket": 1})
    now[0] += 2
    assert lookup.value == "nothing"
    lookup.answer("something")
    assert lookup.value == "something"


def test_a_bug_affects_only_the_owners(caplog: pytest.LogCaptureFixture) -> None:
    """Responses have no owners then, and the error is logged once."""
    kubelet: Lookup[Listing] = Lookup("kubelet", Listing())
    kubelet.answer(Listing((("not", "a", "held"),)))  # type: ignore[arg-type]
    attributor = Attributor(Lookups(kubelet), ())
    seen = [GpuSamples(GPU, None, (), {})]
    with caplog.at_level("ERROR"):
        assert [attributor.attribute(seen) for _ in range(3)] == [(OwnerLabels(), ())] * 3
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_two_hundred_pods_cost_little() -> None:
    """Measure the part on the clock thread: while nothing changes, it costs less than half of a change."""
    gpus = [Gpu(n, f"GPU-{n:08d}{U[8:]}", device=f"nvidia{n}") for n in range(8)]
    seen = [GpuSamples(gpu, time.monotonic(), [Sample(Series(m.POWER, gpu), 1.0)] * 200, {}) for gpu in gpus]
    kubelet: Lookup[Listing] = Lookup("kubelet", Listing())
    attributor = Attributor(Lookups(kubelet), ())
    taken = {}
    for change in ("first", "second", "second"):
        devices = [f"{gpus[n % 8].uuid}::{n}" for n in range(200)]
        kubelet.answer(
            Listing(tuple(Allocated("team", f"{change}-{n}", "main", "r", each) for n, each in enumerate(devices)))
        )
        took = []
        for _ in range(20):
            began = time.process_time()
            _, rows = attributor.attribute(seen)
            took.append(time.process_time() - began)
        taken[change] = (took[0], sorted(took)[10])
    assert len(rows) == 202
    assert taken["second"][1] < taken["first"][0] / 2


# --- job files -----------------------------------------------------------------------------------------------------


def jobs_in(directory: Path, procfs: Path | None = None) -> JobFiles:
    return JobFiles(directory, procfs or directory)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"1\n", ("1",)),
        (b"1\n2\n1\n", ("1", "2")),
        (b" 1 \r\n\r\n", ("1",)),
        (b"", ()),
        (b"\n\n", ()),
        (b"\xff\n", ()),
        (b"a\x00b\n", ()),
        ("übung_7\n".encode(), ("übung_7",)),
    ],
    ids=repr,
)
def test_job_files(tmp_path: Path, content: bytes, expected: tuple[str, ...]) -> None:
    """Each printable line is an id."""
    (tmp_path / "0").write_bytes(content)
    assert jobs_in(tmp_path).ask() == ({"0": expected} if expected else {})


def test_a_file_that_is_being_written(tmp_path: Path) -> None:
    """A line without an end counts once the file is the same at two lookups; until then the last content holds."""
    files, path = jobs_in(tmp_path), tmp_path / "0"
    path.write_text("12")
    assert files.ask() == {}
    path.write_text("1234")
    assert files.ask() == {}
    assert files.ask() == {"0": ("1234",)}
    path.write_text("1234\n56")
    os.utime(path, ns=(1, time.time_ns()))
    assert files.ask() == {"0": ("1234",)}
    assert files.ask() == {"0": ("1234", "56")}


def test_other_files_are_not_job_files(tmp_path: Path) -> None:
    """Pipes, directories and other names are ignored."""
    (tmp_path / "0").mkdir()
    os.mkfifo(tmp_path / "1")
    (tmp_path / "passwd").write_text("root\n")
    (tmp_path / "3.swp").write_text("3\n")
    (tmp_path / "4").write_text("7\n")
    assert jobs_in(tmp_path).ask() == {"4": ("7",)}


def test_files_from_before_the_boot(tmp_path: Path) -> None:
    """A node that crashed ran no epilog."""
    (tmp_path / "stat").write_text(f"cpu 1\nbtime {int(time.time()) - 100}\n")
    for name, age in {"0": 200, "1": 50}.items():
        (tmp_path / name).write_text("7\n")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    assert jobs_in(tmp_path).ask() == {"1": ("7",)}


def test_symbolic_link_is_reported(tmp_path: Path) -> None:
    """It may lead anywhere. Only its own GPU loses its jobs."""
    (tmp_path / "0").symlink_to("/etc/hostname")
    (tmp_path / "1").write_text("7\n")
    lookup: Lookup[Mapping[str, tuple[str, ...]]] = Lookup("hpc_jobs", {})
    with pytest.raises(LookupFailed, match="make it a file that this user can read") as raised:
        jobs_in(tmp_path).ask()
    lookup.fail(raised.value, raised.value.rest)
    assert (lookup.value, lookup.up) == ({"1": ("7",)}, False)


# --- slices and names ------------------------------------------------------------------------------------------------


def test_slices() -> None:
    """Attribute names may have the driver's name. Other kinds of devices, and other drivers, are left out."""
    devices: list[SliceDevice] = [
        {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-0"}}},
        {
            "name": "gpu-1",
            "attributes": {"gpu.nvidia.com/type": {"string": "gpu"}, "gpu.nvidia.com/uuid": {"string": "GPU-1"}},
        },
        {"name": "vfio-0", "attributes": {"type": {"string": "vfio"}}},
        {"name": "bare"},
    ]
    spec: SliceSpec = {"driver": "gpu.nvidia.com", "pool": {"name": "n", "generation": 1}, "devices": devices}
    found = read({"spec": spec})
    assert found
    assert uuids([found]) == {("n", "gpu-0"): "GPU-0", ("n", "gpu-1"): "GPU-1"}
    assert read({"spec": {**spec, "driver": "other"}}) is None
    assert read({}) is None


def test_names_of_containers(tmp_path: Path) -> None:
    """Names are found in the runtime's files, or empty if they cannot be read."""
    docker, podman = (
        ProcessOwner(container="c" * 64, runtime="docker"),
        ProcessOwner(container="d" * 64, runtime="podman"),
    )
    assert container_name(docker, tmp_path) == container_name(podman, tmp_path) == ""
    listed = tmp_path / "var/lib/containers/storage/overlay-containers/containers.json"
    listed.parent.mkdir(parents=True)
    listed.write_text(f'[{{"id": "{"e" * 64}", "names": ["x"]}}, {{"id": "{"d" * 64}", "names": ["y"]}}]')
    assert container_name(podman, tmp_path) == "y"
    listed.write_text("no JSON")
    assert container_name(podman, tmp_path) == ""


# --- watches and libraries -----------------------------------------------------------------------------------------


class Script:
    """A scripted API server: each watch has its events, and may end with an error."""

    def __init__(self, *watches: Sequence[WatchEvent | LookupFailed | None]) -> None:
        self._watches = iter(watches)
        self.listed = 0
        self.done = threading.Event()

    def close(self) -> None:
        """There is no connection."""

    def list_objects(self, path: str, **query: str) -> tuple[list[Object], str]:
        """Return one pod, at version 1."""
        self.listed += 1
        return [{"metadata": {"namespace": "team", "name": "a"}}], "1"

    def watch(self, path: str, seconds: float, **query: str) -> Iterator[WatchEvent | None]:
        """Yield the events of the next watch."""
        for each in next(self._watches, ()):
            if isinstance(each, LookupFailed):
                raise each
            yield each
        self.done.set()


class Hurried(threading.Event):
    """A stop event without waits between two attempts."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0)


def test_watch_that_fails_lists_again(caplog: pytest.LogCaptureFixture) -> None:
    """The server may have been restored from a backup. One log line reports the failure."""
    away = LookupFailed("unavailable", "API server: Connection refused")
    added: WatchEvent = {
        "type": "ADDED",
        "object": {"metadata": {"namespace": "team", "name": "b", "resourceVersion": "2"}},
    }
    script = Script((None, added, away), (away,), (away,), (None,))
    lookup: Lookup[Mapping[str, PodDetails]] = Lookup("pods", {})
    watch = ListWatch(lookup, cast(Api, script), pods.path, pods.PodReader(), {})
    watch._stopping = Hurried()
    with caplog.at_level("INFO"):
        watch.start()
        assert script.done.wait(LIMIT)
        watch.stop()
        watch.join(LIMIT)
    assert script.listed >= 4
    assert set(lookup.value) == {"team/a"}
    assert lookup.errors == {"unavailable": 3}
    words = [record.getMessage() for record in caplog.records]
    assert words == ["attribution: pods answers", f"attribution: pods: {away}", "attribution: pods answers"]


@pytest.mark.parametrize("package", ["grpc", "google.protobuf"])
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """One line says what to install."""
    for module in ("gpu_exporter.owners.kubelet", "gpu_exporter.io.protobuf"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GpuExporterError, match="run `pip install grpcio protobuf`"):
        kubelet_of(package_settings(Config(), OwnerSettings))


def test_a_process_on_several_gpus_was_there_when_the_first_was_read() -> None:
    """Otherwise a GPU that is read later would accept a process that has reused the PID."""

    class Wanted:
        wanted: Mapping[int, float] = {}

    gpus = [(GPU, 100.0), (Gpu(1, "GPU-1"), 50.0), (Gpu(2, "GPU-2"), 80.0)]
    own = (("pid", "7"), ("process", "x"))
    seen = [GpuSamples(gpu, at, [Sample(Series(m.PROCESS_MEMORY, gpu, own), 1.0)], {}) for gpu, at in gpus]
    processes: Lookup[Mapping[int, ProcessOwner]] = Lookup("processes", {})
    lookup = Wanted()
    Attributor(Lookups(processes=processes, process_lookup=cast(ProcessLookup, lookup)), ()).attribute(seen)
    assert lookup.wanted[7] == pytest.approx(since_boot(50.0), abs=1)
