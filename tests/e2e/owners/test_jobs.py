"""Slurm jobs, containers, and shares of pods by process, in a running exporter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Page, Serve
from tests.support.fakes.apiserver import PODS, FakeApiServer, pod_object
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet, given
from tests.support.owners import MIG, POWER, USED, UUID, rows, up

UID = "01234567-89ab-4cde-8f01-23456789abcd"
OTHER = "76543210-89ab-4cde-8f01-23456789abcd"
CONTAINER = "c" * 64


def process(procfs: Path, pid: int, cgroup: str, *, started: int = 5) -> None:
    """Add a process in a cgroup (v2) to a procfs."""
    (procfs / str(pid)).mkdir(parents=True, exist_ok=True)
    (procfs / str(pid) / "comm").write_text("python3\n")
    (procfs / str(pid) / "stat").write_text(f"{pid} (a ) b) S {'0 ' * 18}{started} 0\n")
    (procfs / str(pid) / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """The host's procfs: a kernel thread, and the time of the boot."""
    path = tmp_path / "host/proc"
    process(path, 2, "/")
    (path / "2/comm").write_text("kthreadd\n")
    (path / "stat").write_text("cpu 1 2 3\nbtime 1000000000\n")
    return path


def job_of(page: Page, uuid: str, name: str = POWER, **labels: str) -> str | None:
    """Return the label `hpc_job` of a GPU's only series."""
    (found,) = [
        have for n, have, _ in page.samples if n == name and have["UUID"] == uuid and labels.items() <= have.items()
    ]
    return found.get("hpc_job")


def test_job_files(serve: Serve, node: FakeDriver, tmp_path: Path, procfs: Path) -> None:
    """Files are named by index, instance and UUID. One job is a label, several are series. Files come and go."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "0").write_text("101\n")
    (jobs / "2.9").write_text("102\n103\n")
    (jobs / "2.5").write_text("104")  # no newline, as `printf` writes it
    (jobs / UUID[1]).write_text("\n 105 \n105\n")
    (jobs / ".0.swp").write_text("999\n")
    (jobs / "README").write_text("999\n")
    (jobs / "7").write_text("999\n")  # no such GPU
    own = ("--hpc-job-mapping-dir", str(jobs), "--procfs", str(procfs), "--interval", "200ms")
    exporter = serve(*own, env=node.environment)
    page = exporter.until(lambda page: len(rows(page, "gpu_job_info")) == 5 and len(page.values(USED)) == 4)
    found = {(row.get("GPU_I_ID", ""), row["job_id"]) for row in rows(page, "gpu_job_info", UUID[2])}
    assert found == {("9", "102"), ("9", "103"), ("5", "104")}
    assert (job_of(page, UUID[0]), job_of(page, UUID[1]), job_of(page, UUID[2])) == ("101", "105", None)
    assert job_of(page, UUID[2], USED, GPU_I_ID="5") == "104"
    assert job_of(page, UUID[2], USED, GPU_I_ID="9") is None
    assert "pod=" not in page.text.replace("_pod=", "")
    (jobs / "0").unlink()
    os.utime(jobs / UUID[1], (999999999, 999999999))  # from before the boot: no epilog ran
    page = exporter.until(lambda page: len(rows(page, "gpu_job_info")) == 3)
    assert (job_of(page, UUID[0]), job_of(page, UUID[1])) == (None, None)


def test_job_directory_that_is_removed(serve: Serve, node: FakeDriver, tmp_path: Path, procfs: Path) -> None:
    """The last jobs stay, and the failure is a metric."""
    jobs = tmp_path / "jobs"
    own = ("--hpc-job-mapping-dir", str(jobs), "--procfs", str(procfs), "--interval", "200ms")
    exporter = serve(*own, env=node.environment)
    exporter.until(lambda page: page.values("gpu_attribution_errors_total", reason="no_directory") > [0])
    jobs.mkdir()
    (jobs / "0").write_text("101\n")
    exporter.until(lambda page: bool(page.values(POWER, UUID=UUID[0])) and job_of(page, UUID[0]) == "101")
    jobs.rename(tmp_path / "elsewhere")
    page = exporter.until(lambda page: up("hpc_jobs", 0)(page) and bool(page.values(POWER, UUID=UUID[0])))
    assert job_of(page, UUID[0]) == "101"


def test_jobs_and_containers_by_cgroup(serve: Serve, node: FakeDriver, procfs: Path) -> None:
    """Without a prolog, cgroups name the owners. A PID that has been reused has none."""
    process(procfs, 41, "/system.slice/slurmstepd.scope/job_123/step_0/user/task_0")
    process(procfs, 42, f"/system.slice/docker-{CONTAINER}.scope")
    process(procfs, 43, "/system.slice/slurmstepd.scope/job_666/step_0", started=2**40)
    config = procfs.parent / f"var/lib/docker/containers/{CONTAINER}/config.v2.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"Name": "/trainer"}')
    with node.batch():
        node.set("ComputeRunningProcesses", "41:1000,43:1000", 0)
        node.set("ComputeRunningProcesses", "42:1000", 1)
    own = ("--processes", "--procfs", str(procfs), "--interval", "200ms")
    exporter = serve(*own, env=node.environment)
    page = exporter.until(lambda page: bool(rows(page, "gpu_job_info")) and bool(rows(page, "gpu_container_info")))
    user = str((procfs / "41").stat().st_uid)
    assert rows(page, "gpu_job_info", UUID[0]) == [{"job_id": "123", "step": "0", "uid": user}]
    assert job_of(page, UUID[0]) == "123"
    named = {"runtime": "docker", "container_id": CONTAINER, "container": "trainer"}
    assert rows(page, "gpu_container_info", UUID[1]) == [named]


def shares(page: Page, name: str, uuid: str) -> Mapping[str, float]:
    """Return the values of a GPU's pods by name, or by UID if the name is unknown."""
    return {
        labels.get("pod", labels.get("pod_uid", "")): value
        for n, labels, value in page.samples
        if n == name and labels["UUID"] == uuid
    }


def test_shares_of_pods(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, procfs: Path, tmp_path: Path) -> None:
    """The pods and the rest add up to the GPU's memory and SM time, also on a MIG instance."""
    api = FakeApiServer(tmp_path / "api")
    api.put(PODS, pod_object("a", UID))
    kubelet.pods = [given("a", f"{UUID[0]}::0"), given("b", f"{UUID[0]}::1")]
    slices = UID.replace("-", "_")
    # as an exporter that is in a pod itself, of no class, sees them from its cgroup namespace
    systemd = f"/../../kubepods-burstable.slice/kubepods-burstable-pod{slices}.slice"
    process(procfs, 41, f"{systemd}/cri-containerd-{CONTAINER}.scope")
    process(procfs, 42, f"{systemd}/cri-containerd-{CONTAINER}.scope")
    # a pod that the API server does not know, of another class
    besteffort = f"/../../kubepods-besteffort.slice/kubepods-besteffort-pod{OTHER.replace('-', '_')}.slice"
    process(procfs, 43, f"{besteffort}/crio-{CONTAINER}.scope")
    process(procfs, 44, "/user.slice/user-1000.slice/session-1.scope")
    with node.batch():
        node.set("ComputeRunningProcesses", "41:1000,42:500,43:300,44:50", 0)
        node.set("ProcessUtilization", "41:20,42:10,43:5,44:5", 0)
        node.set("MemoryInfo.used", 2048, 0)
        node.set("ComputeRunningProcesses", "41:700", 300)
        node.set("MemoryInfo.used", 1000, 300)
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--interval", "200ms")
    asked = ("--kubernetes-pods", "--processes", "--procfs", str(procfs))
    try:
        exporter = serve(*own, *asked, env={**node.environment, **api.environment})
        memory, sm = "gpu_pod_memory_used_bytes", "gpu_pod_sm_utilization_ratio"
        page = exporter.until(
            lambda page: len(shares(page, memory, UUID[0])) == 2 and len(shares(page, sm, UUID[0])) == 2
        )
        assert shares(page, memory, UUID[0]) == {"a": 1500, OTHER: 300}
        assert page.value("gpu_pod_memory_unattributed_bytes", UUID=UUID[0]) == 248
        assert shares(page, sm, UUID[0]) == {"a": 0.3, OTHER: 0.05}
        assert page.value("gpu_pod_sm_unattributed_ratio", UUID=UUID[0]) == 0.05
        assert page.value("gpu_pod_sm_idle_ratio", UUID=UUID[0]) == 0.6
        assert page.values(memory, UUID=UUID[2], GPU_I_ID=str(MIG[0]["GpuInstanceId"]), pod="a") == [700]
        assert page.values("gpu_pod_memory_unattributed_bytes", UUID=UUID[2], GPU_I_ID="9") == [300]
        assert page.values("gpu_pod_sm_idle_ratio", UUID=UUID[1]) == [1]
        assert {row["pod_uid"] for row in rows(page, memory)} == {UID, OTHER}
    finally:
        api.stop()


def test_sm_time_that_the_driver_does_not_report(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, procfs: Path
) -> None:
    """If the driver does not report SM time by process, no share is exposed; memory still is."""
    process(procfs, 41, f"/kubepods/besteffort/pod{UID}/{CONTAINER}")
    with node.batch():
        node.set("ComputeRunningProcesses", "41:1000", 0)
        node.set("MemoryInfo.used", 2048, 0)
        node.fail("ProcessUtilization", 999, gpu=0)
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--processes", "--procfs", str(procfs))
    exporter = serve(*own, "--interval", "200ms", env=node.environment)
    page = exporter.until(lambda page: shares(page, "gpu_pod_memory_used_bytes", UUID[0]) == {UID: 1000})
    assert page.values("gpu_pod_memory_unattributed_bytes", UUID=UUID[0]) == [1048]
    assert not [name for name, labels, _ in page.samples if name[:10] == "gpu_pod_sm" and labels["UUID"] == UUID[0]]
    assert page.values("gpu_pod_sm_idle_ratio", UUID=UUID[1]) == [1]
