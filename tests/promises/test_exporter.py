"""The exporter serves the GPUs of a driver; a GPU that fails affects no other; a recording is labelled as one."""

from __future__ import annotations

from math import isfinite

from tests.conftest import Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until


def test_serves_the_gpus_of_the_driver(serve: Serve, driver: FakeDriver) -> None:
    """Each series has a number and the labels of dcgm-exporter; SIGTERM ends the exporter."""
    exporter = serve(env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_SM_ACTIVE")))

    assert page.value("DCGM_FI_PROF_SM_ACTIVE", gpu="0", modelName="NVIDIA H200") == 0.96
    assert page.value("gpu_up", gpu="0") == 1
    assert all(isfinite(value) for _, labels, value in page.samples if "gpu" in labels)
    assert exporter.stop() == 0


def test_a_lost_gpu_affects_no_other(serve: Serve, driver: FakeDriver) -> None:
    """It is down with a reason and without values; the other GPU keeps its own, also while a driver call hangs."""
    driver.count(3)
    exporter = serve("--interval", "200ms", env=driver.environment)
    exporter.until(lambda page: len(page.values("DCGM_FI_PROF_SM_ACTIVE")) == 3)
    driver.lose(0)
    driver.block(1)

    page = exporter.until(lambda page: page.values("gpu_up") == [0, 0, 1] and len(page.values("gpu_power_watts")) < 2)
    reasons = {
        labels["gpu"]: labels["reason"] for name, labels, value in page.samples if name == "gpu_down_reason" and value
    }
    assert reasons == {"0": "lost", "1": "stalled"}
    read = page.value("gpu_last_read_timestamp_seconds", gpu="2")
    exporter.until(lambda page: page.value("gpu_last_read_timestamp_seconds", gpu="2") > read)


def test_a_recording_is_labelled_as_replayed(serve: Serve) -> None:
    """Every series of a GPU, and the log, say that these are not the GPUs of this machine."""
    exporter = serve("--source", "replay", "--recording", "h200_workloads")
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_PROF_SM_ACTIVE")))

    of_gpus = [labels for _, labels, _ in page.samples if "gpu" in labels]
    assert len(of_gpus) > 50
    assert {labels.get("source") for labels in of_gpus} == {"replay"}
    until(lambda: "NOT YOUR GPUS" in exporter.log.read_text(), what="the banner")
