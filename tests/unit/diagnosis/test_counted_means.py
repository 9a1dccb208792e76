"""Means of loads that come and go: from counters, where scrapes have them, whatever the gauges show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.conditions.evaluate import value
from gpu_exporter.diagnosis.measurements import BY_NAME
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.metric import Metric, Pace

LABELS = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA A100"}
# What a sample of a moment happens to show, and what is true: busy a quarter of the time.
GAUGES = {m.GPU_UTIL: 96.0, m.MEM_UTIL: 50.0, m.POWER: 533.0, m.POWER_LIMIT: 700.0}
BUSY, MEMORY, WATTS = 0.25, 0.1, 263.7


def counters(second: int) -> Mapping[Metric, float]:
    """Return the counters on a page of this second: each is read at its pace."""
    buffered, slow = (second - second % int(pace.value) for pace in (Pace.BUFFERED, Pace.SLOW))
    return {
        m.GPU_UTIL_SECONDS: 40 + BUSY * buffered,
        m.MEM_UTIL_SECONDS: 4 + MEMORY * buffered,
        m.ENERGY_JOULES: 1e6 + WATTS * slow,
    }


def scrapes(seconds: int, *, counted: bool = True) -> list[Scrape]:
    """Return a scrape for each second of a GPU without profiling counters."""
    return [
        Scrape(
            1000.0 + second,
            [
                ScrapedSample(row.name, LABELS, number)
                for row, number in {**GAUGES, **(counters(second) if counted else {})}.items()
            ],
        )
        for second in range(seconds)
    ]


@pytest.mark.parametrize(
    ("seconds", "counted", "util", "memory", "watts"),
    [
        (60, True, BUSY, MEMORY, WATTS),
        (12, True, BUSY, MEMORY, 533.0),  # energy is read every 15 s
        (60, False, 0.96, 0.5, 533.0),
    ],
)
def test_means(seconds: int, counted: bool, util: float, memory: float, watts: float) -> None:
    """As long as a counter has not been read often enough, the gauge counts."""
    window = seen(scrapes(seconds, counted=counted), {})
    (device,) = window.devices
    found = {signal: value(mean(signal), window, device) for signal in (s.UTIL, s.GR_ACTIVE, s.DRAM_ACTIVE, s.POWER)}

    assert found == pytest.approx({s.UTIL: util, s.GR_ACTIVE: util, s.DRAM_ACTIVE: memory, s.POWER: watts})


@pytest.mark.parametrize("seconds", range(20, 26))
def test_what_viewers_show_never_vanishes(seconds: int) -> None:
    """Between two reads of a counter, its last mean is shown; power is of now."""
    window = seen(scrapes(seconds), {})
    (device,) = window.devices
    found = {name: BY_NAME[name].value(window, device) for name in ("engine_active", "dram_active", "power")}

    assert found == pytest.approx({"engine_active": BUSY, "dram_active": MEMORY, "power": 533.0})


@pytest.mark.parametrize("late", [10, 15])
def test_a_late_read_is_no_idleness(late: int) -> None:
    """A busy GPU whose counters are read a second late once, as by a driver that is busy."""
    pages = [
        {m.GR_ENGINE_SECONDS: float(read - read % int(Pace.STEADY.value)), m.SM_SECONDS: 0.9 * read}
        for read in (second - (second == late) for second in range(20))
    ]
    of_gpu = [
        Scrape(1000.0 + second, [ScrapedSample(row.name, LABELS, number) for row, number in page.items()])
        for second, page in enumerate(pages)
    ]
    window = seen(of_gpu, {})
    (device,) = window.devices
    found = [value(mean(signal), window, device) for signal in (s.GR_ACTIVE, s.SM_ACTIVE)]

    assert found == pytest.approx([1.0, 0.9], abs=0.06)
