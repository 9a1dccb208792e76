"""MIG instances, in a running server on the fake driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.model.metric import Call
from tests.conftest import Page, Serve, run
from tests.support.fakes.driver import FakeDriver, mig_device

SEVEN = {slot: mig_device(7 + slot, "1g.18gb", **{"Gpm.2": 10.0 * slot}) for slot in range(7)}
UUID = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    """Two GPUs, the second with seven instances; instance 7 + n is busy n tenths of the time."""
    driver = FakeDriver(tmp_path / "driver", gpus=2)
    driver.partition(1, SEVEN)
    return driver


def instances(page: Page, name: str) -> dict[str, float]:
    """Return the values of a family on GPU 1 by GPU_I_ID."""
    return {labels["GPU_I_ID"]: value for n, labels, value in page.samples if n == name and labels.get("gpu") == "1"}


def seen(page: Page) -> bool:
    return len(page.values("DCGM_FI_PROF_SM_ACTIVE")) == 8


def test_each_instance_has_series_of_its_own(serve: Serve, driver: FakeDriver) -> None:
    page = serve("--interval", "200ms", env=driver.environment).until(seen)
    assert instances(page, "DCGM_FI_PROF_SM_ACTIVE") == pytest.approx({str(7 + n): n / 10 for n in range(7)})
    assert set(instances(page, "DCGM_FI_DEV_FB_TOTAL").values()) == {18000 * 1000**2 / 2**20}
    assert set(instances(page, "gpu_instance_slices").values()) == {1}
    labels = [labels for name, labels, _ in page.samples if name == "DCGM_FI_PROF_DRAM_ACTIVE" and "GPU_I_ID" in labels]
    assert {(each["GPU_I_PROFILE"], each["UUID"]) for each in labels} == {("1g.18gb", UUID)}
    assert {labels["mig_uuid"] for name, labels, _ in page.samples if name == "gpu_mig_device_info"} == {
        each["UUID"] for each in SEVEN.values()
    }


def test_no_sum_counts_a_gpu_twice(serve: Serve, driver: FakeDriver) -> None:
    """A family has series of the GPU or of its instances, never of both; values of the board exist once."""
    page = serve("--metrics", "full", "--interval", "200ms", env=driver.environment).until(seen)
    whole: set[str] = set()
    parts: set[str] = set()
    for name, labels, _ in page.samples:
        if labels.get("gpu") == "1":
            (parts if "GPU_I_ID" in labels else whole).add(name.removesuffix("_total"))
    assert not whole & parts
    assert parts >= {str(row).removesuffix("_total") for row in (m.SM_ACTIVE, m.SM_SECONDS, m.FB_USED, m.FB_USED_RATIO)}
    assert whole >= {
        str(row).removesuffix("_total") for row in (m.POWER, m.GPU_TEMP, m.SM_CLOCK, m.PCIE_TX, m.MIG_MODE)
    }
    assert page.value("DCGM_FI_DEV_MIG_MODE", gpu="1") == 1
    assert page.value("gpu_devices_visible") == 2


def test_partitions_change_while_running(serve: Serve, driver: FakeDriver) -> None:
    """Seven instances become one and a half, none, then a whole GPU; counters of an instance continue."""
    exporter = serve("--interval", "200ms", env=driver.environment)
    before = instances(exporter.until(seen), "gpu_sm_active_seconds_total")["13"]
    driver.partition(1, {0: mig_device(1, "4g.71gb"), 2: mig_device(13, "1g.18gb", **{"Gpm.2": 60.0})})
    page = exporter.until(lambda page: set(instances(page, "DCGM_FI_PROF_SM_ACTIVE")) == {"1", "13"})
    assert set(instances(page, "DCGM_FI_DEV_FB_TOTAL")) == {"1", "13"}
    assert instances(page, "gpu_instance_slices") == {"1": 4, "13": 1}
    assert instances(page, "gpu_sm_active_seconds_total")["13"] >= before > 0
    assert page.values("gpu_up") == [1, 1]
    driver.partition(1, {})
    exporter.until(lambda page: not any("GPU_I_ID" in labels for _, labels, _ in page.samples))
    driver.set("MigMode.current", 0, 1)
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_SM_ACTIVE", gpu="1")), 30)
    assert page.value("DCGM_FI_PROF_SM_ACTIVE", gpu="1") == pytest.approx(0.96)
    assert page.values("DCGM_FI_DEV_FB_TOTAL", gpu="1")


def test_several_compute_instances_share_a_gpu_instance(serve: Serve, driver: FakeDriver) -> None:
    first = mig_device(2, "2g.35gb") | {"Name": "NVIDIA H200 MIG 1c.2g.35gb"}
    second = first | {"ComputeInstanceId": 1, "UUID": "MIG-00000000-0000-0000-0002-000000000099"}
    driver.partition(1, {0: first, 1: second})
    page = serve("--interval", "200ms", env=driver.environment).until(
        lambda page: len(page.values("DCGM_FI_PROF_SM_ACTIVE")) == 2
    )
    assert {labels["GPU_I_PROFILE"] for _, labels, _ in page.samples if "GPU_I_ID" in labels} == {"2g.35gb"}
    info = [labels for name, labels, _ in page.samples if name == "gpu_mig_device_info"]
    assert [(each["GPU_I_ID"], each["compute_instance_id"]) for each in info] == [("2", "0"), ("2", "1")]


def test_instances_without_permission(serve: Serve, driver: FakeDriver) -> None:
    driver.fail("GpmMigSampleGet", 4, gpu=1)
    page = serve("--interval", "200ms", env=driver.environment).until(
        lambda page: bool(page.values("gpu_metric_supported", gpu="1", metric="DCGM_FI_PROF_SM_ACTIVE"))
    )
    assert page.values("gpu_metric_supported", metric="DCGM_FI_PROF_SM_ACTIVE", reason="no_permission") == [0]
    assert len(instances(page, "DCGM_FI_DEV_FB_USED")) == 7
    assert page.values("gpu_up") == [1, 1]


def test_instances_of_a_lost_gpu(serve: Serve, driver: FakeDriver) -> None:
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(seen)
    driver.lose(1)
    exporter.until(lambda page: page.values("gpu_up") == [1, 0] and not instances(page, "DCGM_FI_DEV_FB_USED"))
    driver.restore(1)
    exporter.until(seen)


def test_a_recording_is_of_whole_gpus(driver: FakeDriver, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = run("record", "--out", str(out), "--duration", "0.5", env=driver.environment)
    assert done.returncode == 0
    replayed = run("once", "--source", "replay", "--recording", str(out))
    assert replayed.returncode == 0
    assert "GPU_I_ID" not in replayed.stdout


def test_rows_of_instances_are_rows_that_nvml_has_per_instance() -> None:
    """In nvml.h: GPM activity, memory, and uncorrectable volatile errors outside DRAM."""
    rows = {row.nvml.name for row in METRICS if row.per_instance and isinstance(row.nvml, Call)}
    assert rows == {"MemoryInfo", "MemoryErrorCounter"}
