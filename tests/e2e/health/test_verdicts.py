"""The verdict on each GPU, on the page, in the API and in `doctor`, against the stand-in driver."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Exporter, Page, Serve, run
from tests.support.fakes.driver import AMPERE, FakeDriver, steps

STATES = ("healthy", "degraded", "unhealthy")


def state(page: Page, gpu: int = 0) -> str:
    """Which of the three states is 1; empty if none is."""
    found = [each for each in STATES if page.values("gpu_health_state", gpu=str(gpu), state=each) == [1]]
    assert len(found) <= 1
    return "".join(found)


def reasons(page: Page, gpu: int = 0) -> dict[str, str]:
    """The reasons with their actions."""
    return {
        labels["reason"]: labels["action"]
        for name, labels, value in page.samples
        if name == "gpu_health_reason" and labels["gpu"] == str(gpu) and value == 1
    }


def api(exporter: Exporter, prefix: str = "") -> dict[str, Any]:
    """What /api/v1/gpus answers."""
    answer, body = exporter.get(f"{prefix}/api/v1/gpus")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    found: dict[str, Any] = json.loads(body)
    return found


def pcie(driver: FakeDriver) -> None:
    """A link at half its width under load."""
    driver.set("CurrPcieLinkWidth", 8, gpu=0)
    driver.set("UtilizationRates.gpu", 95, gpu=0)
    driver.set("CurrentClocksEventReasons", 0, gpu=0)


@pytest.mark.parametrize(
    ("fault", "expected", "reason", "action"),
    [
        (lambda driver: driver.set("FieldValues.230", "u:2", gpu=0), "unhealthy", "recovery_action", "node_reboot"),
        (lambda driver: driver.lose(0), "unhealthy", "lost", "node_reboot"),
        (lambda d: d.set("SramEccErrorStatus.bThresholdExceeded", 1, gpu=0), "unhealthy", "sram_threshold", "replace"),
        (lambda driver: driver.fail("ValidateInforom", 14, gpu=0), "degraded", "inforom_corrupt", "replace"),
        (lambda driver: driver.set("GpuFabricInfoV.state", 2, gpu=0), "degraded", "fabric_not_ready", "none"),
        (pcie, "degraded", "pcie_link_degraded", "node_reboot"),
        (lambda driver: driver.set("MarginTemperature", 1, gpu=0), "degraded", "low_thermal_margin", "none"),
    ],
    ids=["recovery action", "lost", "SRAM", "InfoROM", "fabric", "PCIe", "heat"],
)
def test_a_fault_is_on_the_page(
    serve: Serve, tmp_path: Path, fault: Callable[[FakeDriver], None], expected: str, reason: str, action: str
) -> None:
    """State, reason and action of the GPU that has it; the other one is healthy."""
    driver = FakeDriver(tmp_path / "driver", gpus=2)
    fault(driver)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(reasons(page)))
    assert (state(page), reasons(page)) == (expected, {reason: action})
    exporter.until(lambda page: state(page, 1) == "healthy" and not reasons(page, 1))
    sick, healthy = api(exporter)["gpus"]
    assert (sick["health"], sick["action"], sick["up"]) == (expected, action, reason != "lost")
    assert [each["reason"] for each in sick["problems"]] == [reason]
    assert (healthy["health"], healthy["action"], healthy["problems"]) == ("healthy", "none", [])


def test_a_pending_remap_appears_and_clears(serve: Serve, driver: FakeDriver) -> None:
    """Nothing is left of it when the driver no longer says so; it is asked for every 15 seconds."""
    driver.set("RemappedRows.2", 1)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: state(page) == "degraded")
    assert reasons(page) == {"row_remap_pending": "gpu_reset"}
    driver.set("RemappedRows.2", 0)
    page = exporter.until(lambda page: state(page) == "healthy", timeout=20)
    assert reasons(page) == {}


def test_a_lost_gpu_heals(serve: Serve, driver: FakeDriver) -> None:
    """Unhealthy while it is gone, and at once healthy when it is back."""
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: state(page) == "healthy")
    driver.lose(0)
    page = exporter.until(lambda page: state(page) == "unhealthy")
    assert reasons(page) == {"lost": "node_reboot"}
    driver.restore(0)
    exporter.until(lambda page: state(page) == "healthy" and not reasons(page))


def test_a_link_that_is_slow_when_idle_is_healthy(serve: Serve, driver: FakeDriver) -> None:
    """It saves power; only a busy GPU is judged by it, at the tick at which it is busy."""
    driver.set("CurrPcieLinkGeneration", 1)
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: state(page) == "healthy")
    with driver.batch():
        driver.set("UtilizationRates.gpu", 100)
        driver.set("CurrentClocksEventReasons", 0)
        driver.set("CurrPcieLinkGeneration", 5)
    page = exporter.until(lambda page: page.value("DCGM_FI_DEV_GPU_UTIL") == 100)
    assert state(page) == "healthy"
    driver.set("CurrPcieLinkGeneration", 3)
    exporter.until(lambda page: reasons(page) == {"pcie_link_degraded": "node_reboot"})


def test_what_cannot_be_read_is_no_state(serve: Serve, driver: FakeDriver) -> None:
    """All three are 0 while it is not known, also when the driver is gone, which says why."""
    driver.fail("TotalEccErrors.1.0", 4)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_GPU_TEMP")))
    assert (state(page), reasons(page)) == ("", {})
    driver.unload()
    page = exporter.until(lambda page: page.values("gpu_exporter_source_down_reason", reason="not_loaded") == [1])
    assert (page.value("gpu_exporter_source_up"), state(page)) == (0, "")
    assert api(exporter)["gpus"][0]["health"] == "unknown"


def test_a_reload_that_is_needed(serve: Serve, driver: FakeDriver) -> None:
    """The library that this process has does not fit the driver that was loaded meanwhile."""
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: state(page) == "healthy")
    with driver.batch():
        driver.fail("Init", 18)
        driver.load()
    page = exporter.until(lambda page: page.values("gpu_exporter_source_down_reason", reason="version_mismatch") == [1])
    assert page.value("gpu_driver_reload_needed") == 1
    with driver.batch():
        driver.unset("Init")
        driver.load()
    page = exporter.until(lambda page: page.value("gpu_exporter_source_up") == 1)
    assert page.values("gpu_exporter_source_down_reason") == []


def test_the_fabric(driver: FakeDriver) -> None:
    """Status, error and faults of a GPU in a fabric; of one without, and on older hardware, nothing."""

    def ask() -> dict[str, float]:
        ended = run("once", "--metrics", "full", "--json", env=driver.environment)
        samples = json.loads(ended.stdout)["gpus"][0]["samples"]
        return {name: value for name, value in samples.items() if "abric" in name or "FABRIC" in name}

    assert ask() == {}
    with driver.batch():
        driver.set("GpuFabricInfoV.state", 3)
        driver.set("GpuFabricInfoV.mask", 0b10_00_10_01)
    assert ask() == {
        "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 3,
        "DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE": 0,
        'gpu_fabric_fault{fault="degraded_bandwidth"}': 1,
        'gpu_fabric_fault{fault="route_recovery"}': 0,
        'gpu_fabric_fault{fault="access_timeout_recovery"}': 0,
    }
    driver.set("GpuFabricInfoV.status", 999)
    found = ask()
    assert (found["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"], found["DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE"]) == (4, 999)


def test_api(serve: Serve, tmp_path: Path) -> None:
    """Its shape, its headers, and HEAD; what Ampere can't answer is harmless."""
    driver = FakeDriver(tmp_path / "driver", gpus=2, profile=AMPERE)
    driver.lose(1)
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: state(page) == "healthy")
    page = api(exporter)
    assert (page["source"], page["live"], len(page["gpus"])) == ("nvml", True, 2)
    good, lost = page["gpus"]
    assert (good["gpu"], good["modelName"], good["reason"]) == (0, "NVIDIA A100-SXM4-80GB", "")
    assert good["UUID"].startswith("GPU-")
    assert good["info"]["driver_version"] == "580.159.04"
    assert good["unknown"] == [{"what": "recovery action", "why": "not_supported", "harmless": True}]
    assert (lost["gpu"], lost["up"], lost["reason"], lost["health"]) == (1, False, "lost", "unhealthy")
    answer, _ = exporter.get("/api/v1/gpus")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert exporter.ask("HEAD", "/api/v1/gpus") == (200, "")
    assert exporter.ask("POST", "/api/v1/gpus")[0] == 405


def test_api_of_many_nodes(serve: Serve) -> None:
    """Each node has its own; the root has none."""
    exporter = serve("--source", "simulated", "--nodes", "2", "--gpus", "3")
    nodes = [node["labels"]["__metrics_path__"].removesuffix("/metrics") for node in json.loads(exporter.get("/sd")[1])]
    for prefix in nodes:
        found = api(exporter, prefix)
        assert (found["source"], found["live"], len(found["gpus"])) == ("simulated", False, 3)
    assert exporter.get("/api/v1/gpus")[0].status == 404


def test_api_needs_the_password(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """Like every other path."""
    web = tmp_path / "web.yml"
    web.write_text('basic_auth_users: {me: "$2b$04$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"}\n')
    exporter = serve("--web.config.file", str(web), env=driver.environment)
    answer, body = exporter.get("/api/v1/gpus")
    assert answer.status == 401
    assert b"GPU" not in body


def test_doctor(tmp_path: Path) -> None:
    """A line for each GPU that is not healthy, with its cure."""
    driver = FakeDriver(tmp_path, gpus=3)
    driver.set("RemappedRows.2", 1, gpu=1)
    driver.set("RemappedRows.3", 1, gpu=2)
    ended = run("doctor", env=driver.environment)
    assert ended.returncode == 0
    assert "warn  GPU 1: degraded: a bad memory row will be replaced at the next reset\n      -> drain" in ended.stdout
    assert "warn  GPU 2: unhealthy: a bad memory row could not be replaced\n" in ended.stdout
    assert "GPU 0: healthy" not in ended.stdout


def test_structures_go_by_pointer(driver: FakeDriver) -> None:
    """A structure by value is a stray address to the driver: the process would die. In a child of its own."""
    driver.set("GpuFabricInfoV.state", steps((3, 0)))
    script = (
        "import pynvml; from gpu_exporter.sources.nvml.handle import ADAPTERS as ask\n"
        "pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print(ask['SramEccErrorStatus'](gpu).bThresholdExceeded, ask['GpuFabricInfoV'](gpu)['status'])"
    )
    ended = subprocess.run([sys.executable, "-c", script], env=driver.environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "0 3\n"), ended.stderr
