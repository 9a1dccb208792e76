"""dcgm-exporter's own metrics: counted as by dcgm-exporter, and only if selected."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.kernel_log_entry import LogEntry, LogPosition, XidLine
from gpu_exporter.model.gpu import Gpu, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Labels, Metric, MetricSet
from gpu_exporter.pipeline.dcgm_counts import NEEDS_DCGM, NO_EVENTS, ClockEvents, DcgmExporterCounts

GPU = Gpu(0, "GPU-0", "00000000:06:00.0")
OTHER = Gpu(1, "GPU-1", "00000000:07:00.0")
MASK = Series(m.CLOCK_EVENTS, GPU)
POWER = Series(m.POWER, GPU)
NAMED = [row for row in m.METRICS if row.set is MetricSet.NAMED]
IDLE, CAP, THERMAL = 1, 4, 0x20


@pytest.mark.parametrize("choice", [MetricSet.DEFAULT, MetricSet.FULL])
def test_no_set_has_them(choice: MetricSet) -> None:
    """They are exposed only if they are named."""
    assert {row.name for row in NAMED} == {
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_EXP_XID_ERRORS_TOTAL",
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_TOTAL",
        "DCGM_EXP_GPU_HEALTH_STATUS",
        "DCGM_EXP_P2P_STATUS",
    }
    assert not set(selected(choice)) & set(NAMED)


@pytest.mark.parametrize(
    ("masks", "now", "counts"),
    [
        ([], 10, None),
        ([(0, CAP)], 0, {"power_cap": 1}),
        ([(0, CAP), (1, CAP | IDLE), (2, 0)], 2, {"gpu_idle": 1, "power_cap": 2}),
        ([(0, CAP), (100, THERMAL)], 299, {"power_cap": 1, "sw_thermal": 1}),
        ([(0, CAP), (100, THERMAL)], 300, {"sw_thermal": 1}),  # the window is open at its far end
        ([(0, CAP), (100, THERMAL)], 400, None),
        ([(0, 0)], 1, {}),  # samples without an event: dcgm-exporter has no row then, either
        ([(0, 0x200 | 0x100)], 1, {"display_clocks": 1}),  # a bit without a name counts for nothing
    ],
)
def test_samples_are_counted_by_event(
    masks: list[tuple[float, int]], now: float, counts: Mapping[str, int] | None
) -> None:
    """Each sample in the window counts once for each bit."""
    events = ClockEvents()
    for at, mask in masks:
        events.take(at, mask)

    assert events.counts(now, 300) == counts


def test_a_window_moves_on() -> None:
    """With one sample per second, five minutes contain 300, and old ones leave as new ones come."""
    events = ClockEvents()
    for second in range(1000):
        events.take(second, CAP if second < 800 else IDLE)
        counts = events.counts(second, 300)

    assert counts == {"power_cap": 100, "gpu_idle": 200}


def test_totals_count_beginnings() -> None:
    """Events in the first sample do not count as begun; events that last do not begin again."""
    events = ClockEvents()
    for at, mask in enumerate([CAP, CAP, 0, CAP | THERMAL, CAP, THERMAL]):
        events.take(at, mask)

    assert events.totals() == {"power_cap": 1, "sw_thermal": 2}


WINDOW = ("window_size_in_ms", "60000")
Found = dict[tuple[str, Labels], float]
POWERED: Found = {(m.POWER.name, ()): 100.0}
MASKED: Found = {(m.CLOCK_EVENTS.name, ()): CAP}
COUNTED: Found = {("DCGM_EXP_CLOCK_EVENTS_COUNT", (("clock_event", "power_cap"), WINDOW)): 1.0}


def exposed(counts: DcgmExporterCounts, mask: float | None) -> Found:
    """Return what a reading with this mask results in."""
    values = {POWER: 100.0}
    if mask is not None:
        values[MASK] = mask
    samples = tuple(Sample(series, value) for series, value in values.items())
    made = counts.samples(GPU, ClockEvents(), Reading(1.0, values), samples)
    return {(series.metric.name, series.labels): value for series, value in made}


@pytest.mark.parametrize(
    ("metrics", "mask", "read", "found"),
    [
        ((m.POWER,), CAP, {m.POWER}, {**POWERED, **MASKED}),
        ((m.POWER, m.EXP_CLOCK_COUNT), CAP, {m.POWER, m.CLOCK_EVENTS}, {**POWERED, **COUNTED}),
        (
            (m.POWER, m.CLOCK_EVENTS, m.EXP_CLOCK_COUNT),
            CAP,
            {m.POWER, m.CLOCK_EVENTS},
            {**POWERED, **MASKED, **COUNTED},
        ),
        (
            (m.POWER, m.EXP_CLOCK_COUNT),
            None,
            {m.POWER, m.CLOCK_EVENTS},
            {**POWERED, ("DCGM_EXP_CLOCK_EVENTS_COUNT", (WINDOW,)): 0},
        ),
        ((m.POWER, m.EXP_CLOCK_TOTAL), CAP, {m.POWER, m.CLOCK_EVENTS}, POWERED),
        ((m.EXP_XID_COUNT, m.EXP_XID_TOTAL), None, set(), POWERED),
    ],
)
def test_only_selected_metrics_are_exposed(
    metrics: tuple[Metric, ...],
    mask: float | None,
    read: set[Metric],
    found: Found,
) -> None:
    """The mask is read if events are counted, and exposed only if it was selected itself."""
    counts = DcgmExporterCounts(metrics, 60.0, xids_reported=True)

    assert set(counts.source_metrics) == read
    assert exposed(counts, mask) == found


def test_a_series_stays_the_same() -> None:
    """It is one object in all ticks, because the renderer caches by identity."""
    counts, events = DcgmExporterCounts((m.EXP_CLOCK_COUNT,), 60.0, xids_reported=True), ClockEvents()
    (first,) = counts.samples(GPU, events, Reading(1.0, {MASK: CAP}), ())
    (second,) = counts.samples(GPU, events, Reading(2.0, {MASK: CAP}), ())

    assert first.series is second.series
    assert (first.value, second.value) == (1, 2)


def test_metrics_without_a_source_are_unsupported() -> None:
    """DCGM's health without DCGM, XIDs without an XID source."""
    without = DcgmExporterCounts((m.EXP_HEALTH, m.EXP_XID_COUNT, m.EXP_CLOCK_COUNT), 60.0, xids_reported=False)
    dcgm = (Sample(Series(m.EXP_HEALTH, GPU, (("health_watch", "PCIE"),)), 0.0),)

    assert without.unsupported((), {}) == {m.EXP_HEALTH: NEEDS_DCGM, m.EXP_XID_COUNT: NO_EVENTS}
    assert without.unsupported((), {m.EXP_HEALTH: "not_recorded"})[m.EXP_HEALTH] == "not_recorded"
    counts = DcgmExporterCounts((m.EXP_HEALTH, m.EXP_XID_COUNT), 60.0, xids_reported=True)
    assert counts.unsupported(dcgm, {}) == {}


def xids(log: EventLog, chosen: set[Metric], window: float = 300.0) -> dict[tuple[str, int, str], float]:
    """Return the counts by metric, GPU and code."""
    rows = log.as_dcgm_exporter([GPU, OTHER], chosen, window, nvml_up=True)
    assert {labels.get("window_size_in_ms") for metric, _, _, labels in rows if metric is m.EXP_XID_COUNT} <= {
        str(round(window * 1000))
    }
    return {
        (str(metric), gpu.index, labels.get("xid", "")): value for metric, gpu, value, labels in rows if gpu is not None
    }


BOTH = {m.EXP_XID_COUNT, m.EXP_XID_TOTAL}


def test_xids_are_counted_by_code() -> None:
    """In the window and since the start, once if both sources report it; a GPU without XIDs has a 0 without a code."""
    log, now = EventLog(load(None), lambda pci: None), time.time()
    log.add_driver_xids(
        [XidEvent(now, GPU.pci_bus_id, 31), XidEvent(now, GPU.pci_bus_id, 31), XidEvent(now, GPU.pci_bus_id, 43)]
    )
    log.add_kernel_log_entry(LogEntry(LogPosition("boot", 1), now, XidLine(GPU.pci_bus_id, 31)), now)

    assert xids(log, BOTH) == {
        ("DCGM_EXP_XID_ERRORS_COUNT", 0, "31"): 2,
        ("DCGM_EXP_XID_ERRORS_COUNT", 0, "43"): 1,
        ("DCGM_EXP_XID_ERRORS_COUNT", 1, ""): 0,
        ("DCGM_EXP_XID_ERRORS_TOTAL", 0, "31"): 2,
        ("DCGM_EXP_XID_ERRORS_TOTAL", 0, "43"): 1,
    }
    assert xids(log, {m.EXP_XID_TOTAL}).keys() == {("DCGM_EXP_XID_ERRORS_TOTAL", 0, xid) for xid in ("31", "43")}
    assert xids(log, set()) == {}


def test_earlier_xids_are_not_in_the_total() -> None:
    """An older line of the kernel log counts while it is in the window."""
    log, now = EventLog(load(None), lambda pci: None), time.time()
    log.add_kernel_log_entry(LogEntry(LogPosition("boot", 1), now - 100, XidLine(GPU.pci_bus_id, 79)), now - 100)

    assert xids(log, BOTH)["DCGM_EXP_XID_ERRORS_COUNT", 0, "79"] == 1
    assert xids(log, BOTH, 60.0) == {("DCGM_EXP_XID_ERRORS_COUNT", gpu, ""): 0 for gpu in (0, 1)}


def test_no_xid_source_no_count() -> None:
    """No XID source, no zeros."""
    log = EventLog(load(None), lambda pci: None)

    assert log.as_dcgm_exporter([GPU], BOTH, 300.0, nvml_up=False) == []


def test_the_last_xid_has_its_code_and_words() -> None:
    """As in dcgm-exporter's gauge of the last code."""
    log = EventLog(load(None), lambda pci: None)
    log.add_driver_xids([XidEvent(time.time(), GPU.pci_bus_id, 31)])
    found = {
        gpu.index: (value, labels)
        for metric, gpu, value, labels in log.samples([GPU, OTHER], nvml_up=True)
        if metric is m.XID_ERRORS and gpu
    }

    assert found[0] == (31, {"err_code": "31", "err_msg": load(None)[31].meaning})
    assert found[1] == (0, {"err_code": "0", "err_msg": "No Error"})
