"""The verdict on each GPU in metrics, API and `doctor`, on the fake driver."""

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
    """Return the state that is 1, or an empty string."""
    found = [each for each in STATES if page.values("gpu_health_state", gpu=str(gpu), state=each) == [1]]
    assert len(found) <= 1
    return "".join(found)


def reasons(page: Page, gpu: int = 0) -> dict[str, str]:
    """Return the reasons with their actions."""
    return {
        labels["reason"]: labels["action"]
        for name, labels, value in page.samples
        if name == "gpu_health_reason" and labels["gpu"] == str(gpu) and value == 1
    }


def api(exporter: Exporter, prefix: str = "") -> dict[str, Any]:
    """Return the response of /api/v1/gpus."""
    answer, body = exporter.get(f"{prefix}/api/v1/gpus")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    found: dict[str, Any] = json.loads(body)
    return found


def pcie(driver: FakeDriver) -> None:
    """Make the link of a busy GPU run at half its width."""
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
    """State, reason and action of the faulty GPU; the other one is healthy."""
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
    """It disappears when the driver no longer reports it; it is read every 15 seconds."""
    driver.set("RemappedRows.2", 1)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: state(page) == "degraded")
    assert reasons(page) == {"row_remap_pending": "gpu_reset"}
    driver.set("RemappedRows.2", 0)
    page = exporter.until(lambda page: state(page) == "healthy", timeout=20)
    assert reasons(page) == {}


def test_a_lost_gpu_recovers(serve: Serve, driver: FakeDriver) -> None:
    """It is unhealthy until it is back, and then healthy at once."""
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: state(page) == "healthy")
    driver.lose(0)
    page = exporter.until(lambda page: state(page) == "unhealthy")
    assert reasons(page) == {"lost": "node_reboot"}
    driver.restore(0)
    exporter.until(lambda page: state(page) == "healthy" and not reasons(page))


def test_a_link_that_is_slow_when_idle_is_healthy(serve: Serve, driver: FakeDriver) -> None:
    """Slow links save power, so only those of busy GPUs are judged, at the same tick."""
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


def test_unknown_health_is_no_state(serve: Serve, driver: FakeDriver) -> None:
    """All three states are 0, also without the driver, and the reason is exposed."""
    driver.fail("TotalEccErrors.1.0", 4)
    exporter = serve("--interval", "200ms", env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_GPU_TEMP")))
    assert (state(page), reasons(page)) == ("", {})
    driver.unload()
    page = exporter.until(lambda page: page.values("gpu_exporter_source_down_reason", reason="not_loaded") == [1])
    assert (page.value("gpu_exporter_source_up"), state(page)) == (0, "")
    assert api(exporter)["gpus"][0]["health"] == "unknown"


def test_a_reload_that_is_needed(serve: Serve, driver: FakeDriver) -> None:
    """The library of the exporter does not match the driver that was loaded since."""
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
    """GPUs in a fabric have status, error and faults; others and older hardware have none."""

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
    """Format, headers and HEAD; what Ampere does not support is harmless."""
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
    """Each node has its own path; the root has none."""
    exporter = serve("--source", "simulated", "--nodes", "2", "--gpus", "3")
    nodes = [node["labels"]["__metrics_path__"].removesuffix("/metrics") for node in json.loads(exporter.get("/sd")[1])]
    for prefix in nodes:
        found = api(exporter, prefix)
        assert (found["source"], found["live"], len(found["gpus"])) == ("simulated", False, 3)
    assert exporter.get("/api/v1/gpus")[0].status == 404


def test_api_needs_the_password(serve: Serve, driver: FakeDriver, tmp_path: Path) -> None:
    """As every path."""
    web = tmp_path / "web.yml"
    web.write_text('basic_auth_users: {me: "$2b$04$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"}\n')
    exporter = serve("--web.config.file", str(web), env=driver.environment)
    answer, body = exporter.get("/api/v1/gpus")
    assert answer.status == 401
    assert b"GPU" not in body


def test_doctor(tmp_path: Path) -> None:
    """One line with the fix for each GPU that is not healthy."""
    driver = FakeDriver(tmp_path, gpus=3)
    driver.set("RemappedRows.2", 1, gpu=1)
    driver.set("RemappedRows.3", 1, gpu=2)
    ended = run("doctor", env=driver.environment)
    assert ended.returncode == 0
    assert "warn  GPU 1: degraded: a bad memory row will be replaced at the next reset\n      -> drain" in ended.stdout
    assert "warn  GPU 2: unhealthy: a bad memory row could not be replaced\n" in ended.stdout
    assert "GPU 0: healthy" not in ended.stdout


def test_structures_are_passed_by_pointer(driver: FakeDriver) -> None:
    """Passed by value, a structure would crash the driver. In a process of its own."""
    driver.set("GpuFabricInfoV.state", steps((3, 0)))
    script = (
        "import pynvml; from gpu_exporter.sources.nvml.handle import ADAPTERS as ask\n"
        "pynvml.nvmlInit(); gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print(ask['SramEccErrorStatus'](gpu).bThresholdExceeded, ask['GpuFabricInfoV'](gpu)['status'])"
    )
    ended = subprocess.run([sys.executable, "-c", script], env=driver.environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "0 3\n"), ended.stderr
