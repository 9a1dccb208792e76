"""A fault of one GPU, library or device does not spread to others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Page, Serve, command
from tests.e2e.cli.test_interrupt import has_open
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT, until

NVLINK_CRC = "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"


def test_a_wedge_and_a_hiccup_of_the_library(serve: Serve, tmp_path: Path) -> None:
    """If the library is lost for a moment while one GPU hangs, the other GPUs come back."""
    driver = FakeDriver(tmp_path / "driver", gpus=3)
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: page.values("gpu_up") == [1, 1, 1])
    driver.block(0)
    exporter.until(lambda page: page.value("gpu_up", gpu="0") == 0)
    driver.fail("UtilizationRates", 1, gpu=1)
    exporter.until(lambda page: page.value("gpu_exporter_source_up") == 0 or page.value("gpu_up", gpu="2") == 0)
    driver.unset("UtilizationRates", 1)
    exporter.until(lambda page: page.values("gpu_up") == [0, 1, 1])


def test_a_gpu_that_answers_nothing_is_down(serve: Serve, tmp_path: Path) -> None:
    """If every call fails with an unknown error, the GPU is not up."""
    driver = FakeDriver(tmp_path / "driver", gpus=2)
    exporter = serve("--interval", "200ms", env=driver.environment)
    before = exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_SM_ACTIVE", gpu="1")))
    keys = {line.split()[1].split(".")[0] for line in (tmp_path / "driver/control").read_text().splitlines()}
    with driver.batch():
        for key in keys - {"UUID", "Name", "PciBusId", "Count", "Driver", "Nvml", "Cuda", "Loaded", "Lock", "Init"}:
            driver.fail(key, 999, gpu=1)
        driver.fail("GpmSampleGet", 999, gpu=1)
    exporter.until(lambda page: page.value("gpu_up", gpu="1") == 0 and page.value("gpu_up", gpu="0") == 1)
    assert before.value("gpu_devices_visible") == 2


def test_a_link_sum_does_not_fall(serve: Serve, driver: FakeDriver) -> None:
    """When one of 18 links stops answering, the sum of errors keeps its value."""
    with driver.batch():
        for link in range(18):
            driver.set(f"FieldValues.163.{link}", 100)
    first = serve(env=driver.environment).until(lambda page: bool(total(page)))
    assert total(first) == [1800]
    driver.fail("FieldValues.163.5", 999)
    second = serve(env=driver.environment).until(lambda page: page.values("gpu_up") == [1])
    assert total(second) == []


def total(page: Page) -> list[float]:
    """Return the classic counter, to which prometheus_client's text parser adds _total."""
    return page.values(f"{NVLINK_CRC}_total") + page.values(NVLINK_CRC)


def test_missing_libcuda(serve: Serve, driver: FakeDriver) -> None:
    """In a container without libcuda, only the label with the CUDA version is missing."""
    driver.fail("Cuda", 12)
    page = serve(env=driver.environment).until(lambda page: page.values("gpu_up") == [1])
    info = next(labels for name, labels, _ in page.samples if name == "gpu_info")
    assert "cuda_version" not in info
    assert info["driver_version"] == "580.159.04"


@pytest.mark.parametrize("hang", ["init", "shutdown", "record"])
def test_sigterm_during_any_hang(driver: FakeDriver, tmp_path: Path, hang: str) -> None:
    """The process ends while the call still hangs."""
    out, device_file = tmp_path / "out.jsonl", tmp_path / "nvidiactl"
    device_file.touch()
    waiting = driver.waiting()
    driver.set("DeviceFile", str(device_file))
    if hang != "record":
        driver.delay(hang.title(), 3600)
    record = ("record", "--interval", "100ms", "--duration", "1h", "--out", str(out))
    arguments = command(*record) if hang == "record" else command("serve", "--address", "127.0.0.1:0")
    process = subprocess.Popen(arguments, env={**os.environ, **driver.environment})
    try:
        if hang == "record":
            until(lambda: out.exists() and out.read_text().count("\n") > 5, what="a recording")
            driver.block(0)
        until(waiting if hang != "shutdown" else lambda: has_open(process.pid, device_file), what="the driver")
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT)
    finally:
        process.kill()
    assert waiting()
    if hang == "record":
        assert [json.loads(line) for line in out.read_text().splitlines()]
