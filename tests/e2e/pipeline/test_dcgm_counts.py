"""dcgm-exporter's own metrics, computed from the driver's values, with the real bindings and the real loop."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import Page
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT

# Collects for some ticks while the test changes the driver; prints the last page.
READS = """
import sys, time
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.pipeline.pages import Variant
from gpu_exporter.pipeline.renderer import Renderer
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.sources.choice import local_gpus
from gpu_exporter.catalogue.xids import load

named = [row for row in METRICS if row.set is MetricSet.NAMED]
ticks = []
events = EventLog(load(None), lambda pci: None)
settings = CollectionSettings(0.2, xid_count_window=60.0)
loop = Collector(local_gpus(), [m.POWER, *named], ticks.append, settings, context=Context(events))
loop.start()
while len(ticks) < 5:  # with the power cap alone
    time.sleep(0.05)
print("started", flush=True)
sys.stdin.readline()
done = len(ticks) + 5
while len(ticks) < done:
    time.sleep(0.05)
print(Renderer("node-1").render(ticks[-1]).body(Variant(False, False)).decode())
loop.stop()
"""


def test_computed_from_the_drivers_values(driver: FakeDriver) -> None:
    """Clock events and XIDs are counted, each pair of GPUs has its NVLink state, and DCGM's health needs DCGM."""
    driver.count(2)
    driver.set("P2PStatus.2.1", 5, gpu=0)
    driver.set("CurrentClocksEventReasons", 4)
    process = subprocess.Popen(
        [sys.executable, "-c", READS],
        env={**os.environ, **driver.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "started\n"
    driver.xid(1, 31, 31)
    driver.set("CurrentClocksEventReasons", 4 | 0x40, gpu=0)
    text, _ = process.communicate("go on\n", timeout=LIMIT)
    page = Page(text)

    (capped,) = page.values("DCGM_EXP_CLOCK_EVENTS_COUNT", gpu="0", clock_event="power_cap", window_size_in_ms="300000")
    (hot,) = page.values("DCGM_EXP_CLOCK_EVENTS_COUNT", gpu="0", clock_event="hw_thermal")
    assert capped >= hot + 1 > 1
    assert page.values("DCGM_EXP_CLOCK_EVENTS_COUNT", gpu="1", clock_event="hw_thermal") == []
    assert page.value("DCGM_EXP_CLOCK_EVENTS_TOTAL_total", gpu="0", clock_event="hw_thermal") == 1
    assert page.values("DCGM_EXP_CLOCK_EVENTS_TOTAL_total", clock_event="power_cap") == []
    assert page.values("DCGM_FI_DEV_CLOCKS_EVENT_REASONS") == []  # read, but not selected

    assert page.value("DCGM_EXP_XID_ERRORS_COUNT", gpu="0") == 0
    assert page.value("DCGM_EXP_XID_ERRORS_COUNT", gpu="1", xid="31", window_size_in_ms="60000") == 2
    assert page.value("DCGM_EXP_XID_ERRORS_TOTAL_total", gpu="1", xid="31") == 2
    assert page.value("DCGM_FI_DEV_XID_ERRORS", gpu="1", err_code="31") == 31

    assert page.value("DCGM_EXP_P2P_STATUS", gpu="0", peer_gpu="1", link_status="NotSupported") == 5
    assert page.value("DCGM_EXP_P2P_STATUS", gpu="1", peer_gpu="0", link_status="OK") == 0

    unsupported = {"metric": "DCGM_EXP_GPU_HEALTH_STATUS", "reason": "needs_dcgm"}
    assert page.values("gpu_metric_supported", **unsupported) == [0, 0]
