"""The expressions of docs/histograms.md in a real Prometheus, compared with the true values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from statistics import fmean

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.pipeline.histograms import IDLE_RATIO
from gpu_exporter.sources.recording.columns import mean
from gpu_exporter.sources.recording.format import load, ticks
from tests import ROOT
from tests.conftest import RECORDINGS, Exporter, Page, Serve
from tests.support.fakes.driver import FakeDriver, sawtooth
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

DOCUMENT = ROOT / "docs" / "histograms.md"
EXPRESSIONS = dict(re.findall(r"```promql\n# (\w+)\n(.*?)\n```", DOCUMENT.read_text(), re.DOTALL))
SPEED, INTERVAL, SCRAPE = 3.0, 0.1, 0.25
# Not a multiple of a tick: otherwise all ticks at edges would be half busy, and shift together. Ten times as long as a
# tick: the times of ticks at 20 edges in 20 s then change the result by 0.6 % (one standard deviation), a fifth of the
# tolerance.
LOW, HIGH, HALF = 118.0, 923.0, 1.03

Watch = Callable[[Exporter], Prometheus]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Start a Prometheus that scrapes an exporter four times a second."""
    with ExitStack() as stack:

        def start(exporter: Exporter) -> Prometheus:
            targets = [{"targets": [f"127.0.0.1:{exporter.port}"]}]
            return stack.enter_context(scraping(tmp_path, f"{SCRAPE * 1000:.0f}ms", {"static_configs": targets}))

        yield start


def ask(prometheus: Prometheus, name: str, seconds: float, at: float | None = None) -> float:
    """Return the value of an expression of the document for the one GPU over `seconds`; wait for a power limit."""
    expression = EXPRESSIONS[name].replace("[5m]", f"[{seconds * 1000:.0f}ms]")
    (found,) = until(lambda: prometheus.query(expression, at))
    return found


def test_expressions_over_a_recording(serve: Serve, watch: Watch) -> None:
    """Duty, power and gaps of one loop of the packaged workloads equal those of the recorded ticks."""
    path = RECORDINGS / "h200_workloads.jsonl.gz"
    watts = [tick.samples[m.POWER_INSTANT.key] for tick in ticks(path)]
    recorded = load(path)
    column, loop = recorded.columns[0][m.SM_ACTIVE.key], recorded.duration / SPEED
    exporter = serve(
        *("--source", "replay", "--recording", "h200_workloads", "--speed", f"{SPEED:g}", "--metrics", "full"),
        *("--interval", f"{INTERVAL}s"),
    )
    prometheus = watch(exporter)
    # Prometheus counts from its second scrape on: wait for a whole loop, wherever it began.
    scrapes = "count_over_time(gpu_sm_active_ratio_count[2m])"
    until(lambda: prometheus.query(scrapes) >= [(loop + 1) / SCRAPE], 90, "a whole loop")

    tick = INTERVAL * SPEED  # the exporter's tick is the mean of three of the recording, wherever it begins
    ends = [tick + 0.02 * n for n in range(int((recorded.duration - tick) / 0.02))]
    played = [value for t in ends if (value := mean([*column.held_values(t - tick, t)])) is not None]
    assert ask(prometheus, "under_10_percent", loop) == pytest.approx(fmean(v <= 0.1 for v in played), abs=0.03)
    shares = prometheus.query(
        f"rate(gpu_sm_active_ratio_sum[{loop:.0f}s]) / rate(gpu_sm_active_ratio_count[{loop:.0f}s])"
    )
    integral = prometheus.query(f"rate(gpu_sm_active_seconds_total[{loop:.0f}s])")
    assert shares == [pytest.approx(integral[0], rel=0.01)]
    assert ask(prometheus, "mean_power", loop) == pytest.approx(fmean(watts), rel=0.03)

    def agree() -> bool:
        """Compare with a tolerance: one side counts ticks, the other time, and a busy machine skips ticks."""
        energy = prometheus.query(f"rate(gpu_energy_joules_total[{loop * 1000:.0f}ms])")
        return ask(prometheus, "mean_power", loop) == pytest.approx(energy[0] / SPEED, rel=0.03)

    until(agree, 90, "a loop without skipped ticks")
    assert ask(prometheus, "above_limit", loop) == pytest.approx(fmean(v > 700 for v in watts), abs=0.03)
    gaps = [len(list(run)) * 0.02 / SPEED for idle, run in groupby(played, lambda v: v < IDLE_RATIO) if idle]
    long = [gap for gap in gaps if gap > 1.5]
    assert long, "the recording has no long gap"
    assert ask(prometheus, "long_gaps", loop) == pytest.approx(len(long), abs=0.3)


def test_expressions_over_a_sawtooth(serve: Serve, watch: Watch, tmp_path: Path) -> None:
    """A GPU that is busy and idle for a second each: both powers, the limit and the gaps are right."""
    driver = FakeDriver(tmp_path / "driver", 1)
    sawtooth(driver, LOW, HIGH, HALF, HALF, 150)
    exporter = serve("--metrics", "full", "--high-resolution", "true", env=driver.environment)
    prometheus = watch(exporter)
    until(lambda: prometheus.query("gpu_idle_gap_seconds_count") >= [11.0], 60, "the eleventh gap")
    whole = 20 * HALF
    span = f"{whole * 1000:.0f}ms"
    # Ticks that a busy machine skips are counted and make others longer: use a window with few of them.
    calm = (
        f"increase({m.SKIPPED.name}[{span}]) < {0.02 * whole / INTERVAL}"
        f" and count_over_time({m.SKIPPED.name}[{span}]) > {whole / SCRAPE - 3}"
    )

    def found() -> float | None:
        end = time.time() - 2 * SCRAPE  # everything up to then is stored
        return end if prometheus.query(calm, end) else None

    at = until(found, 60, "a window without skipped ticks and scrapes")

    assert ask(prometheus, "under_10_percent", whole, at) == pytest.approx(0.5, abs=0.12)  # ticks that are half busy
    assert ask(prometheus, "over_half", whole, at) == pytest.approx(0.5, abs=0.03)
    mean = prometheus.query(f"rate(gpu_sm_active_ratio_sum[{span}]) / rate(gpu_sm_active_ratio_count[{span}])", at)
    assert mean == [pytest.approx(0.48, abs=0.03)]
    assert ask(prometheus, "low_power", whole, at) == pytest.approx(LOW, abs=50)
    assert ask(prometheus, "high_power", whole, at) == pytest.approx(HIGH, abs=50)
    assert ask(prometheus, "power_swing", whole, at) == pytest.approx(HIGH - LOW, abs=75)
    assert ask(prometheus, "above_limit", whole, at) == pytest.approx(0.5, abs=0.06)
    assert ask(prometheus, "mean_power", whole, at) == pytest.approx((LOW + HIGH) / 2, rel=0.06)
    assert ask(prometheus, "usual_gap", whole, at) == pytest.approx(HALF, abs=0.2)
    assert ask(prometheus, "in_gaps", whole, at) == pytest.approx(0.45, abs=0.12)

    # Samples come once a second, 50 at a time; the read times of the exporter tell the duration.
    first = taken_next(exporter, exporter.page())
    last = taken_next(exporter, first, 250)
    taken = last.value("gpu_board_power_watts_count") - first.value("gpu_board_power_watts_count")
    assert taken == pytest.approx(50 * (last.value(m.READ_AT.name) - first.value(m.READ_AT.name)), abs=15)


def taken_next(exporter: Exporter, page: Page, more: int = 1) -> Page:
    """Return the first page with this many further samples of power."""
    count = page.value("gpu_board_power_watts_count") + more
    return exporter.until(lambda page: page.value("gpu_board_power_watts_count") >= count)


def test_driver_with_a_larger_sample_buffer(serve: Serve, tmp_path: Path) -> None:
    """The driver refuses a buffer that is too small for all of its samples."""
    driver = FakeDriver(tmp_path / "driver", 1)
    driver.set("RoomForSamples", 600)
    page = serve("--metrics", "full", env=driver.environment).until(
        lambda page: page.value("gpu_board_power_watts_count") >= 100
    )
    assert not page.values("gpu_exporter_field_failures_total", metric="gpu_board_power_watts")


def test_histograms_continue_after_a_lost_gpu(serve: Serve, tmp_path: Path) -> None:
    """When the GPU is back, no count has fallen, and its buffer is not counted twice."""
    driver, started = FakeDriver(tmp_path / "driver", 1), time.monotonic()
    exporter = serve("--metrics", "full", "--interval", "200ms", env=driver.environment)
    before = exporter.until(lambda page: any(page.values("gpu_sm_active_ratio_count")))
    driver.lose(0)
    exporter.until(lambda page: page.values("gpu_up") == [0])
    driver.restore(0)
    after = exporter.until(
        lambda page: page.values("gpu_up") == [1] and any(page.values("gpu_sm_active_ratio_count")), 30
    )

    for name in ("gpu_sm_active_ratio_count", "gpu_board_power_watts_count"):
        assert after.value(name) > before.value(name)
    assert after.value("gpu_board_power_watts_sum") == pytest.approx(
        79.715 * after.value("gpu_board_power_watts_count"), rel=1e-6
    )
    lasted = time.monotonic() - started
    assert after.value("gpu_board_power_watts_count") <= 50 * lasted + 121, "more than was ever in the buffer"
