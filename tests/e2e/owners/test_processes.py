"""Processes on a GPU, in a running server on the fake driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import Page, Serve
from tests.support.fakes.driver import FakeDriver, mig_device

MEMORY, SM = "gpu_process_memory_used_bytes", "gpu_process_sm_utilization_ratio"


@pytest.fixture
def procfs(tmp_path: Path) -> Path:
    """The host's procfs: kernel threads, and two processes."""
    path = tmp_path / "proc"
    for pid, name in {2: "kthreadd", 41: "python3", 42: "ray::train"}.items():
        (path / str(pid)).mkdir(parents=True)
        (path / str(pid) / "comm").write_text(f"{name}\n")
    return path


def by_process(page: Page, name: str) -> Mapping[str, float]:
    return {f"{labels['pid']} {labels['process']}": value for n, labels, value in page.samples if n == name}


def test_processes_come_and_go(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    with driver.batch():
        driver.set("ComputeRunningProcesses", "41:1000,42:7")
        driver.set("GraphicsRunningProcesses", "42:9")
        driver.set("ProcessUtilization", "41:97")
    exporter = serve("--processes", "true", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values(MEMORY)))
    assert by_process(page, MEMORY) == {"41 python3": 1000, "42 ray::train": 9}
    assert by_process(page, SM) == {"41 python3": 0.97}  # absent, not zero, for a process without samples
    assert page.value("gpu_processes") == 2
    assert page.value("gpu_processes_unresolved") == 0
    driver.set("ComputeRunningProcesses", "42:8")
    page = exporter.until(lambda page: len(page.values(MEMORY)) == 1)
    assert by_process(page, MEMORY) == {"42 ray::train": 9}
    assert not page.values(SM)
    with driver.batch():
        driver.set("GraphicsRunningProcesses", "none")
        driver.set("ComputeRunningProcesses", "none")
    page = exporter.until(lambda page: page.value("gpu_processes") == 0)
    assert not page.values(MEMORY)


def test_process_without_new_samples_has_no_share(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    with driver.batch():
        driver.set("ComputeRunningProcesses", "41:1000")
        driver.set("ProcessUtilization", "41:50")
    exporter = serve("--processes", "true", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: page.values(SM) == [0.5])
    driver.set("ProcessUtilization", "none")
    page = exporter.until(lambda page: not page.values(SM), 25)
    assert page.values(MEMORY) == [1000]


def test_a_pid_that_cannot_be_resolved_is_counted(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    driver.set("ComputeRunningProcesses", "41:1000,77:5,42:-")
    exporter = serve("--processes", "true", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values(MEMORY)))
    assert by_process(page, MEMORY) == {"41 python3": 1000}  # 42: the driver does not report its memory
    assert page.value("gpu_processes") == 3
    assert page.value("gpu_processes_unresolved") == 1


@pytest.mark.parametrize(
    ("module", "own", "resolved"),
    [("", True, 0), ("Open Kernel Module", False, 0), ("Open Kernel Module", True, 1)],
    ids=["closed module", "open module, the host's procfs", "open module, own procfs"],
)
def test_pids_of_another_namespace_are_not_resolved(
    serve: Serve, driver: FakeDriver, tmp_path: Path, module: str, own: bool, resolved: int
) -> None:
    """In a container, the PID that the driver reports may be another process, whose name must not be exposed."""
    procfs = tmp_path / "proc"
    (procfs / "driver/nvidia").mkdir(parents=True)
    (procfs / "driver/nvidia/version").write_text(f"NVRM version: NVIDIA UNIX {module} for x86_64  580.159.04\n")
    (procfs / "41").mkdir()
    (procfs / "41/comm").write_text("postgres\n")
    driver.set("ComputeRunningProcesses", "41:1000")
    arguments = ("--processes", "true", "--procfs", str(procfs), "--interval", "200ms")
    exporter = serve(*arguments, env=driver.environment)
    (procfs / "self").symlink_to(str(exporter.process.pid if own else os.getpid()))
    page = exporter.until(lambda page: page.values("gpu_processes_unresolved") == [1 - resolved])
    assert len(page.values(MEMORY)) == resolved


def test_processes_are_off_by_default(serve: Serve, driver: FakeDriver) -> None:
    driver.set("ComputeRunningProcesses", "41:1000")
    page = serve("--metrics", "full", env=driver.environment).until(lambda page: page.values("gpu_up") == [1])
    assert "gpu_process" not in page.text


def test_driver_without_process_utilisation(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    driver.set("ComputeRunningProcesses", "41:1000")
    driver.fail("ProcessUtilization", 3)
    exporter = serve("--processes", "true", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values(MEMORY)))
    assert page.values("gpu_metric_supported", metric=SM, reason="not_supported") == [0]


def test_processes_on_mig_instances(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    driver.partition(0, {0: mig_device(9, "3g.71gb"), 1: mig_device(5, "4g.71gb")})
    with driver.batch():
        driver.set("ComputeRunningProcesses", "41:1000", 100)
        driver.set("ComputeRunningProcesses", "42:2000", 101)
    exporter = serve("--processes", "true", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: len(page.values(MEMORY)) == 2)
    assert page.values(MEMORY, GPU_I_ID="9", GPU_I_PROFILE="3g.71gb", pid="41") == [1000]
    assert page.values(MEMORY, GPU_I_ID="5", pid="42") == [2000]
    assert page.value("gpu_processes") == 2


def test_removed_instance_with_processes(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    """Processes of the other instance stay, and only they are counted."""
    parts = {0: mig_device(9, "3g.71gb"), 1: mig_device(5, "4g.71gb")}
    parts[0]["ComputeRunningProcesses"], parts[1]["ComputeRunningProcesses"] = "41:1000", "42:2000"
    driver.partition(0, parts)
    exporter = serve("--processes", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: len(page.values(MEMORY)) == 2)
    driver.partition(0, {1: parts[1]})
    page = exporter.until(lambda page: page.values("gpu_processes") == [1])
    assert page.values(MEMORY) == [2000]
    driver.partition(0, parts)
    exporter.until(lambda page: page.values("gpu_processes") == [2] and len(page.values(MEMORY)) == 2)


def test_pids_of_no_process(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    """Drivers of integrated GPUs list 0 and -1."""
    driver.set("ComputeRunningProcesses", "0:0,4294967295:18446744073709551615,41:1000")
    exporter = serve("--processes", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values(MEMORY)))
    assert set(page.values("gpu_processes")) == {1}
    assert set(page.values("gpu_processes_unresolved")) == {0}


def test_processes_of_every_compute_instance(serve: Serve, driver: FakeDriver, procfs: Path) -> None:
    first = mig_device(2, "2g.35gb") | {"ComputeRunningProcesses": "41:1000"}
    second = first | {"ComputeInstanceId": 1, "UUID": "MIG-1", "ComputeRunningProcesses": "42:2000"}
    driver.partition(0, {0: first, 1: second})
    exporter = serve("--processes", "--procfs", str(procfs), "--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: len(page.values(MEMORY)) == 2)
    assert page.values(MEMORY, GPU_I_ID="2") == [1000, 2000]
    assert page.value("gpu_processes") == 2
