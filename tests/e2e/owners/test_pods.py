"""Owners of GPUs from a fake kubelet over gRPC, with a fake driver, in a running exporter."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
import pytest

from tests.conftest import Exporter, Page, Serve, run
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.fakes.hostengine import FakeHostengine
from tests.support.fakes.kubelet import FakeKubelet, Given, given, pod
from tests.support.owners import MIG, POWER, USED, UUID, owned, owner, rows, up

READ_AT = "gpu_last_read_timestamp_seconds"


def attributed(serve: Serve, driver: FakeDriver, kubelet: FakeKubelet, *arguments: str) -> Exporter:
    """An exporter that uses this kubelet, and has read every GPU."""
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--interval", "200ms")
    exporter = serve(*own, *arguments, env=driver.environment)
    exporter.until(lambda page: bool(page.values("gpu_up")) and len(page.values(POWER)) == len(page.values("gpu_up")))
    return exporter


# Ids of device plugins, and the GPU and instance that each refers to. GPU 2 is in MIG mode.
FORMS: Mapping[str, tuple[str, int, str]] = {
    "NVIDIA, by UUID": (UUID[1], 1, ""),
    "NVIDIA, a replica": (f"{UUID[1]}::3", 1, ""),
    "NVIDIA, by index": ("1", 1, ""),
    "NVIDIA, MIG": (str(MIG[0]["UUID"]), 2, "9"),
    "NVIDIA, a replica of MIG": (f"{MIG[1]['UUID']}::7", 2, "5"),
    "NVIDIA, MIG before driver 470": (f"MIG-{UUID[2]}/5/0", 2, "5"),
    "GKE": ("nvidia1", 1, ""),
    "GKE, shared": ("nvidia1/vgpu2", 1, ""),
    "GKE, MIG": ("nvidia2/gi9", 2, "9"),
    "GKE, MIG shared": ("nvidia2/gi5/vgpu0", 2, "5"),
}


def alone(pod: str) -> Callable[[Page], bool]:
    """Return a condition: only this pod has devices."""
    return lambda page: [row["pod"] for row in rows(page)] == [pod]


def test_every_form_of_a_device_id(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Each id ends in the classic labels and in gpu_pod_info of the right device, and of no other."""
    exporter = attributed(serve, node, kubelet)
    for number, (form, (device, gpu, instance)) in enumerate(FORMS.items()):
        name = f"pod-{number}"
        kubelet.pods = [given(name, device, "nvidia.com/mig-3g.71gb" if instance else "nvidia.com/gpu")]
        page = exporter.until(alone(name))
        (row,) = rows(page, uuid=UUID[gpu])
        shares = {"shares": "1"} if "::" in device or "vgpu" in device else {}
        own = {"GPU_I_ID": instance} if instance else {}
        assert row == {"namespace": "team", "pod": name, "container": "main", **own, **shares}, form
        for index in range(3):
            whole = index == gpu and not instance
            assert owner(page, UUID[index]) == (("team", name, "main") if whole else ("", "", "")), form
        for each in ("9", "5"):
            mine = each == instance
            assert owner(page, UUID[2], USED, GPU_I_ID=each) == (("team", name, "main") if mine else ("", "", "")), form


def test_owners_come_and_go(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Classic labels follow at once, on every series of the device. `gpu_*` families have none."""
    kubelet.pods = [given("first", UUID[0])]
    exporter = attributed(serve, node, kubelet)
    page = exporter.until(owned(UUID[0], "first"))
    classic = [labels for name, labels, _ in page.samples if name.startswith("DCGM_") and labels["UUID"] == UUID[0]]
    assert {labels["pod"] for labels in classic} == {"first"}
    assert not [
        name for name, labels, _ in page.samples if "pod" in labels and name[:4] == "gpu_" and "_pod_" not in name
    ]
    assert 'pod=""' in page.text
    kubelet.pods = [given("second", UUID[0], namespace="other")]
    page = exporter.until(owned(UUID[0], "second"))
    assert owner(page, UUID[0]) == ("other", "second", "main")
    assert len(page.values(POWER, UUID=UUID[0])) == 1
    kubelet.pods = []
    page = exporter.until(lambda page: not rows(page))
    assert owner(page, UUID[0]) == ("", "", "")


def test_shared_gpu_has_no_single_pod(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Its shares are series of gpu_pod_info. The sample exists once, so that no sum counts it twice."""
    kubelet.pods = [
        pod("a", Given("nvidia.com/gpu.shared", [f"{UUID[0]}::0", f"{UUID[0]}::3"])),
        given("b", f"{UUID[0]}::1", "nvidia.com/gpu.shared"),
        given("c", UUID[1]),
    ]
    exporter = attributed(serve, node, kubelet)
    page = exporter.until(lambda page: len(rows(page)) == 3)
    assert {(row["pod"], row["shares"]) for row in rows(page, uuid=UUID[0])} == {("a", "2"), ("b", "1")}
    assert owner(page, UUID[0]) == ("", "", "")
    assert owner(page, UUID[1]) == ("team", "c", "main")
    listed = json.loads(exporter.get("/api/v1/gpus")[1])["gpus"]
    assert [[each["pod"] for each in gpu["owners"]] for gpu in listed] == [["a", "b"], ["c"], [], [], []]
    assert page.values(POWER, UUID=UUID[0]) == [pytest.approx(78, abs=1000)]


def test_other_devices_and_unresolved_ones(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Devices of other vendors are ignored. One that cannot be resolved is attributed to no GPU."""
    missing = "GPU-deadbeef-0000-0000-0000-000000000000"
    kubelet.pods = [
        given("nic", "0", "rdma/hca"),
        given("vfio", "0000:3b:00.0", "nvidia.com/GH100_H200"),
        given("vm", "1", "nvidia.com/GV100GL_Tesla_V100"),  # an IOMMU group
        given("share", "2", "nvidia.com/rdma_shared_device_a"),
        given("own", "0", "example.com/h200"),
        given("gone", missing),
        given("strange", "GPU-1", "nvidia.com/gpu"),
        given("mig", "MIG-deadbeef-0000-0000-0000-000000000000", "nvidia.com/mig-1g.18gb"),
        given("late", "nvidia2/gi3"),
    ]
    exporter = attributed(serve, node, kubelet, "--nvidia-resource-names", "example.com/h200")
    page = exporter.until(lambda page: bool(rows(page)))
    assert [row["pod"] for row in rows(page)] == ["own"]
    unresolved = rows(page, "gpu_pod_device_unresolved")
    assert {(row["pod"], row["device"], row["reason"]) for row in unresolved} == {
        ("gone", missing, "unknown_device"),
        ("strange", "GPU-1", "unknown_form"),
        ("mig", "MIG-deadbeef-0000-0000-0000-000000000000", "unknown_device"),
        ("late", "nvidia2/gi3", "unknown_device"),
    }


def test_kubelet_that_restarts(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """The last answer is used until the new socket exists, and the failure is a metric."""
    kubelet.pods = [given("first", UUID[0])]
    exporter = attributed(serve, node, kubelet)
    exporter.until(owned(UUID[0], "first"))
    kubelet.stop()
    page = exporter.until(up(value=0))
    assert owner(page, UUID[0]) == ("team", "first", "main")
    exporter.until(lambda page: page.values("gpu_attribution_errors_total", source="kubelet", reason="no_socket") > [1])
    assert page.value("gpu_exporter_attribution_age_seconds", source="kubelet") > 0
    kubelet.pods = [given("second", UUID[0])]
    kubelet.start()
    page = exporter.until(up())
    assert owner(page, UUID[0])[1] == "second"
    kubelet.pods = [given("third", UUID[0])]  # a new socket replaces the old one between two lookups
    kubelet.start()
    exporter.until(owned(UUID[0], "third"))
    said = exporter.log.read_text().splitlines()
    assert [line for line in said if " INFO " not in line and " WARNING " not in line] == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"code": grpc.StatusCode.UNIMPLEMENTED}, "unimplemented"),
        ({"code": grpc.StatusCode.RESOURCE_EXHAUSTED}, "resource_exhausted"),
        ({"code": grpc.StatusCode.INTERNAL}, "internal"),
        ({"raw": b"\xff\xff no protobuf"}, "malformed"),
        ({"delay": 7.0}, "deadline_exceeded"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kubelet_that_fails(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, fault: Mapping[str, object], reason: str
) -> None:
    """One log line, a metric, and the last owners. Collections continue at their interval."""
    kubelet.pods = [given("first", UUID[0])]
    exporter = attributed(serve, node, kubelet)
    exporter.until(owned(UUID[0], "first"))
    for name, value in fault.items():
        setattr(kubelet, name, value)
    page = exporter.until(lambda page: up(value=0)(page) and owned(UUID[0], "first")(page), 30)
    assert page.values("gpu_attribution_errors_total", source="kubelet", reason=reason) >= [1]
    exporter.until(lambda later: later.value(READ_AT, UUID=UUID[0]) > page.value(READ_AT, UUID=UUID[0]))
    kubelet.code, kubelet.raw, kubelet.delay = None, None, 0.0
    kubelet.pods = [given("second", UUID[0])]
    exporter.until(owned(UUID[0], "second"), 30)
    lines = [line for line in exporter.log.read_text().splitlines() if "attribution: kubelet" in line]
    assert len(lines) == 3, lines  # answers, does not, answers


def test_no_kubelet_yet(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Labels are empty until kubelet starts."""
    kubelet.stop()
    exporter = attributed(serve, node, kubelet)
    page = exporter.until(up(value=0))
    assert owner(page, UUID[0]) == ("", "", "")
    assert not page.values("gpu_exporter_attribution_age_seconds", source="kubelet")
    kubelet.pods = [given("first", UUID[0])]
    kubelet.start()
    exporter.until(owned(UUID[0], "first"))


def test_without_attribution_no_labels(serve: Serve, node: FakeDriver) -> None:
    """Without the flag there are no labels, and gRPC is not loaded."""
    exporter = serve(env=node.environment)
    page = exporter.until(lambda page: bool(page.values(POWER)))
    assert "grpc" not in Path(f"/proc/{exporter.process.pid}/maps").read_text()
    assert not [name for name, labels, _ in page.samples if "pod" in labels]
    assert "attribution" not in page.text


def test_a_gpu_that_is_lost_keeps_its_owner(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Also that of a MIG instance, which the driver no longer lists."""
    kubelet.pods = [given("whole", UUID[0]), given("part", str(MIG[0]["UUID"]))]
    exporter = attributed(serve, node, kubelet)
    exporter.until(lambda page: len(rows(page)) == 2)
    node.lose(0)
    node.lose(2)
    page = exporter.until(lambda page: page.values("gpu_up") == [0, 1, 0] and not page.values(POWER, UUID=UUID[2]))
    assert [row["pod"] for row in rows(page)] == ["whole", "part"]


def test_two_hundred_pods(serve: Serve, tmp_path: Path, kubelet: FakeKubelet) -> None:
    """200 pods that share eight GPUs have labels, and no scrape asks kubelet."""
    driver = FakeDriver(tmp_path / "driver", gpus=8)
    uuids = [str(identity(gpu)["UUID"]) for gpu in range(8)]
    exporter = attributed(serve, driver, kubelet)
    exporter.until(up())
    kubelet.pods = [given(f"pod-{n}", f"{uuids[n % 8]}::{n // 8}") for n in range(200)]
    page = exporter.until(lambda page: len(rows(page)) == 200)
    assert all(owner(page, uuid) == ("", "", "") for uuid in uuids)
    asked, begin = kubelet.asked, time.monotonic()
    for _ in range(50):
        exporter.page()
    ticks = (time.monotonic() - begin) / 0.2
    assert kubelet.asked - asked < ticks + 25, "a scrape asked kubelet"


def found(*arguments: str, driver: FakeDriver) -> list[tuple[str, str, str]]:
    """Return what doctor finds about attribution."""
    ended = run("doctor", "--json", *arguments, env=driver.environment)
    everything = json.loads(ended.stdout)["findings"]
    return [(each["level"], each["what"], each["cure"]) for each in everything if each["topic"] == "attribution"]


def test_doctor(node: FakeDriver, kubelet: FakeKubelet, tmp_path: Path) -> None:
    """It tries each lookup of `serve` once, and says how to fix one that fails."""
    assert found(driver=node) == []
    kubelet.pods = [given("a", f"{UUID[0]}::0"), given("b", f"{UUID[0]}::1"), given("nic", "0", "rdma/hca")]
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket))
    assert found(*own, driver=node) == [("ok", "kubelet lists 2 devices of 2 pods", "")]
    kubelet.stop()
    ((level, what, cure),) = found(*own, driver=node)
    assert (level, what) == ("warn", f"{kubelet.socket} does not exist")
    assert cure.startswith("mount the folder")
    (tmp_path / "0").write_text("7\n")
    ((level, what, _),) = found("--hpc-job-mapping-dir", str(tmp_path), driver=node)
    assert (level, what) == ("ok", f"{tmp_path} has jobs for 1 GPU")


@pytest.mark.parametrize("flag", ["--kubernetes-pods", "--kubernetes-dra", "--kubernetes-pod-labels=app"])
def test_options_that_need_kubelet(node: FakeDriver, flag: str) -> None:
    """The API server does not know which pod has which GPU."""
    ended = run("serve", flag, env=node.environment)
    assert ended.returncode == 1
    assert ended.stderr.strip().endswith("needs --kubernetes: kubelet says which pod has which GPU")


def test_replayed_gpus_have_no_lookups(serve: Serve, kubelet: FakeKubelet) -> None:
    """The GPUs of a recording belong to no pod here: one log line, and no lookup."""
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket))
    exporter = serve("--source", "replay", "--recording", "h200_workloads", *own)
    exporter.until(lambda page: bool(page.values(POWER)))
    assert "attribution is off, because these are not this machine's GPUs" in exporter.log.read_text()
    assert kubelet.asked == 0


def test_it_stops_at_once(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """Also during a request that kubelet does not answer, which would take 5 s to time out."""
    exporter = attributed(serve, node, kubelet)
    exporter.until(up())
    kubelet.delay = 8.0
    asked = kubelet.asked
    exporter.until(lambda page: kubelet.asked > asked)
    assert exporter.stop() == 0
    assert "attribution: kubelet: " not in exporter.log.read_text()


def test_with_dcgm(serve: Serve, kubelet: FakeKubelet, tmp_path: Path) -> None:
    """Owners do not depend on the source that reads the GPUs."""
    engine = FakeHostengine(tmp_path / "engine", gpus=2)
    engine.start()
    try:
        own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--interval", "200ms")
        exporter = serve(*own, "--kernel-log", "none", *engine.flags, env=engine.environment)
        page = exporter.until(lambda page: len(page.values(POWER)) == 2)
        uuids = sorted({labels["UUID"] for name, labels, _ in page.samples if name == POWER})
        kubelet.pods = [given("a", uuids[0]), given("b", "nvidia1/vgpu0")]
        page = exporter.until(lambda page: len(rows(page)) == 2)
        assert [owner(page, uuid)[1] for uuid in uuids] == ["a", "b"]
    finally:
        engine.kill()
