"""Memory between two scrapes: what is scraped every 30 s of a GPU whose memory is read every second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.gpu import Gpu, Reading, Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.pipeline.accumulator import Accumulator
from tests.operation.loads import BOARD, RESERVED, TOTAL
from tests.rules.promtool import Case, Expect, Sample, check
from tests.rules.series import Device, Generation, Stretch, rank
from tests.rules.shapes import STEP

assert isinstance(TOTAL, float)
USABLE = TOTAL - RESERVED
ROWS = (m.FB_USED, m.FB_FREE, m.FB_USED_PEAK)
BRIEF, PREDICTED = "GpuMemoryBrieflyFull", "GpuMemoryExhaustionPredicted"
MINUTE, HOUR = 60, 3600
# The share of the memory that is in use at each second.
Use = Callable[[int], float]


def pages(used: Use, seconds: int) -> list[dict[Metric, float]]:
    """Return the values of each scrape."""
    gpu = Gpu(0, "GPU-0")
    series = {row: Series(row, gpu) for row in (m.FB_USED, m.FB_FREE)}
    accumulator, found = Accumulator(15.0), []
    for second in range(seconds):
        mib = used(second) * USABLE
        reading = Reading(float(second), {series[m.FB_USED]: mib, series[m.FB_FREE]: USABLE - mib})
        shown = {each.metric: value for each, value in accumulator.apply(reading)}
        if second % STEP == 0:
            found.append({row: shown[row] for row in ROWS})
    return found


def device(name: str, used: Use, seconds: int, generation: Generation = Generation.GPU_EXPORTER) -> Device:
    """Return a GPU that works all the time."""
    scraped = pages(used, seconds)
    values = {row: [page[row] for page in scraped] for row in ROWS}
    return Device(name, 0, [Stretch(len(scraped), {**BOARD, **p.BALANCED, **values})], generation, rank(name))


def peak(start: int, seconds: int, low: float = 0.4, after: float = 0.0) -> Use:
    """Return a program that needs all memory for some seconds, and ends."""
    return lambda now: low if now < start else 0.998 if now < start + seconds else after


def ever_fired(name: str, alert: str, *expected: Sample) -> Expect:
    """Return whether an alert has ever fired on a node."""
    alerts = f'ALERTS{{alertname="{alert}", alertstate="firing", node="{name}"}}'
    return Expect(f"group by (node) (last_over_time({alerts}[1d]))", expected)


def fired(name: str) -> Sample:
    return {"node": name}, 1.0


def test_an_out_of_memory_of_three_seconds(tmp_path: Path) -> None:
    """It is found, whatever the second in which it begins. dcgm-exporter shows nothing of it."""
    cases = []
    for start in (1, 13, 26):
        fleet, found = list[Device](), list[Expect]()
        for generation, expected in ((Generation.GPU_EXPORTER, True), (Generation.DCGM_4_9, False)):
            name = f"{generation.value}-{start}"
            fleet.append(device(name, peak(10 * MINUTE + start, 3), 14 * MINUTE, generation))
            found.append(ever_fired(name, BRIEF, *([fired(name)] if expected else ())))
            # What scrapes show of the memory in use was never more than 40 %.
            found.append(Expect(f'max_over_time({s.FB_USE.record}{{node="{name}"}}[1d]) > 0.41'))
        found.append(
            Expect(
                f'group by (node) (max_over_time({s.FB_PEAK_USE.record}{{node="{fleet[0].node}"}}[1d]) > 0.99)',
                [fired(fleet[0].node)],
            )
        )
        cases.append(Case(f"start {start}", fleet, found))
    check(tmp_path, cases, interval="30s")


def test_what_is_no_peak(tmp_path: Path) -> None:
    """A server that has nearly all memory and ends, a program that fills it and goes on, and a peak below the limit."""
    loads: dict[str, Use] = {
        "server": lambda now: 0.99 if now < 20 * MINUTE else 0.0,
        "restarted": lambda now: 0.0 if 20 * MINUTE <= now < 22 * MINUTE else 0.99,
        "fills": lambda now: 0.3 if now < 20 * MINUTE + 7 else 0.99,
        "low": lambda now: 0.9 if 20 * MINUTE + 3 <= now < 20 * MINUTE + 6 else 0.3,
    }
    seconds = 40 * MINUTE
    fleet = [device(name, used, seconds) for name, used in loads.items()]
    check(tmp_path, [Case("no peaks", fleet, [ever_fired(name, BRIEF) for name in loads])], interval="30s")


@pytest.mark.parametrize("generation", [Generation.GPU_EXPORTER, Generation.DCGM_4_9], ids=lambda each: each.value)
def test_peaks_that_grow(tmp_path: Path, generation: Generation) -> None:
    """Steps that need more and more, of which scrapes show only what remains between them."""

    def steps(now: int) -> float:
        in_step = 5 <= now % STEP < 8
        return 0.3 + (0.35 + 0.3 * max(0, now - HOUR) / (2 * HOUR) if in_step else 0.0)

    name, seconds = "leak", 3 * HOUR - 10 * MINUTE
    expected = [fired(name)] if generation is Generation.GPU_EXPORTER else []
    found = [ever_fired(name, PREDICTED, *expected)]
    check(tmp_path, [Case(name, [device(name, steps, seconds, generation)], found)], interval="1m")


def test_diagnose_finds_what_its_scrapes_missed() -> None:
    """It scrapes for some seconds after the program has ended."""
    scraped = pages(peak(10 * MINUTE + 2, 3), 11 * MINUTE)[-1:]

    assert matches(scraped) == [BRIEF]
    assert matches(pages(peak(10 * MINUTE + 2, 0), 11 * MINUTE)[-1:]) == []


def matches(scraped: Sequence[dict[Metric, float]]) -> list[str]:
    """Return the modes that are found in scrapes of a GPU with these memory values, a second apart."""
    labels = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA H200", "Hostname": "node"}
    values = {row: value for row, value in {**p.HEALTHY, **scraped[-1]}.items() if isinstance(value, float | int)}
    samples = [ScrapedSample(row.name, labels, float(value)) for row, value in values.items()]
    (found,) = diagnose(seen([Scrape(1000.0 + second, samples) for second in range(8)], {}))
    return [match.mode.name for match in found.matches]
