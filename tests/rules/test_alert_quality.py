"""What weeks of operation found: alerts on normal operation, alerts that end too early, repeat or come too late."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from tests import ROOT
from tests.operation.activities import FILLS, LOADING_MIB
from tests.operation.encode import series
from tests.operation.fleet import HOUR, Fleet, Timeline, steps
from tests.operation.loads import BOARD, IDLE, RESERVED, TOTAL, Values, growing, memory
from tests.rules.needed import write_needed
from tests.rules.promtool import COARSE, Together, check
from tests.rules.series import Generation, Stretch, rank, selector
from tests.rules.shapes import STEP, Integral, notation
from tests.support.tools import is_long

OURS, DCGM = Generation.GPU_EXPORTER, Generation.DCGM_4_9
Alert = tuple[str, str, str]
XIDS = ("GpuXidApplication", "GpuXidFatal", "GpuTelemetryStale")
WORKS: Values = {**BOARD, **p.BALANCED}


@dataclass(frozen=True)
class Story:
    """A fleet, and which alerts fire after so many minutes, as (name, severity, GPU); only `alerts` are looked at."""

    fleet: Fleet
    firing: Mapping[float, Sequence[Alert]]
    alerts: Sequence[str]
    where: str = ""
    name: str = "story"

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        inputs = [{"series": selector(*key), "values": notation(parts)} for key, parts in series(self.fleet).items()]
        named = f', alertname=~"{"|".join(self.alerts)}"{self.where}'
        expression = f'group by (alertname, severity, gpu) (ALERTS{{alertstate="firing"{named}}})'
        tests = [
            {"expr": expression, "eval_time": f"{minutes * 60:.0f}s", "exp_samples": list(map(_sample, alerts))}
            for minutes, alerts in self.firing.items()
        ]
        return {"name": self.name, "interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": tests}


def _sample(alert: Alert) -> Mapping[str, Any]:
    labels = dict(zip(("alertname", "severity", "gpu"), alert, strict=True))
    return {"labels": selector("", [(name, value) for name, value in labels.items() if value]), "value": 1}


def tell(folder: Path, *stories: Story, interval: str = "1m") -> None:
    """Check stories with the rules that their alerts need; several are one test, and have different names."""
    rules = folder / "needed.yaml"
    write_needed(ROOT / "alerts", rules, {name for story in stories for name in story.alerts})
    check(folder, stories if len(stories) == 1 else [Together(stories)], rules=[rules], interval=interval)


def every(minutes: float, until: float, alerts: Sequence[Alert] = ()) -> Mapping[float, Sequence[Alert]]:
    """Expect the same alerts at all times."""
    return {minutes * number: alerts for number in range(1, round(until / minutes) + 1)}


def fleet(hours: float, generation: Generation = OURS, gpus: int = 1) -> tuple[Fleet, list[Timeline]]:
    made = Fleet(round(hours * HOUR))
    return made, made.node("n", gpus, generation)


def always(values: Values) -> Sequence[Stretch]:
    return [Stretch(30 * HOUR, values, owner=rank("job"))]


# --- 1: predictions --------------------------------------------------------------------------------------------------


PREDICTED = "GpuMemoryExhaustionPredicted"


def allocator(generation: Generation) -> Story:
    """An allocator fills the memory ever more slowly for an hour and a half after the start; nothing is predicted."""
    made, (gpu,) = fleet(4, generation)
    place, used = gpu.put(0, [Stretch(steps(30), IDLE, owner={})]), LOADING_MIB
    for minutes, until in FILLS:
        place = gpu.put(
            place, [Stretch(steps(minutes), {**WORKS, **growing(used, until, minutes * 60)}, owner=rank("job"))]
        )
        used = until
    gpu.put(place, [Stretch(4 * HOUR, {**WORKS, **memory(used)}, owner=rank("job"))])
    return Story(made, every(5, 235), (PREDICTED,), name=f"allocator, {generation.value}")


# If a leak fills the memory from a fifth within so many minutes, the alert comes before it is full: by less than the
# first number of minutes, and by at least the second.
LEAKS = {60: (30, 10), 90: (45, 25), 150: (62, 50), 180: (62, 55), 300: (62, 55), 600: (62, 55)}


def leak(minutes: int) -> Story:
    """A leak is predicted an hour before the memory is full; a fast one as soon as a single jump is ruled out."""
    before, (early, late) = 120, LEAKS[minutes]
    made, (gpu,) = fleet((before + minutes) / 60)
    assert isinstance(TOTAL, float)
    full = TOTAL - RESERVED
    used = 0.2 * full
    place = gpu.put(0, [Stretch(steps(before), {**WORKS, **memory(used)}, owner=rank("job"))])
    gpu.put(place, [Stretch(steps(minutes), {**WORKS, **growing(used, full, minutes * 60)}, owner=rank("job"))])
    fires, end = [(PREDICTED, "warning", "0")], before + minutes
    expected: Mapping[float, Sequence[Alert]] = {end - early: [], end - late: fires, end - 1: fires}
    return Story(made, expected, (PREDICTED,), name=f"leak of {minutes} min")


def long_start(minutes: int) -> Story:
    """A program that loads for long is no leak, and one that grows step by step is none either."""
    made, (gpu,) = fleet(5)
    place = gpu.put(0, [Stretch(steps(90), IDLE, owner={})])
    start = [
        Stretch(steps(minutes), {**WORKS, **growing(600.0, 132_000.0, minutes * 60)}, owner=rank("job")),
        Stretch(5 * HOUR, {**WORKS, **memory(132_000.0)}, owner=rank("job")),
    ]
    gpu.put(place, start)
    return Story(made, every(5, 295), (PREDICTED,), name=f"start of {minutes} min")


def larger_batch(low: float, high: float) -> Story:
    """A running program that needs more memory, for a larger batch or an evaluation, is a step, not a trend."""
    made, (gpu,) = fleet(5)
    place = gpu.put(0, [Stretch(2 * HOUR, {**WORKS, **memory(low)}, owner=rank("job"))])
    for used in (high, low, high):
        place = gpu.put(place, [Stretch(HOUR, {**WORKS, **memory(used)}, owner=rank("job"))])
    return Story(made, every(5, 295), (PREDICTED,), name=f"from {low:.0f} to {high:.0f} MiB")


def test_memory_that_fills(tmp_path: Path) -> None:
    stories = (
        *map(allocator, (OURS, DCGM)),
        *map(leak, LEAKS),
        *map(long_start, (10, 20, 30, 45)),
        larger_batch(40_000.0, 110_000.0),
        larger_batch(90_000.0, 130_000.0),
        larger_batch(20_000.0, 138_000.0),
    )
    tell(tmp_path, *stories)


# --- 2: stragglers ---------------------------------------------------------------------------------------------------


def uneven_job(watts: float, severity: str) -> Story:
    made, gpus = fleet(4, gpus=2)
    slow: Values = {**BOARD, **p.SLOW, m.POWER: watts, m.POWER_INSTANT: watts}
    for number, (gpu, values) in enumerate(zip(gpus, (slow, {**BOARD, **p.OF_SLOW}), strict=True)):
        saves: Values = {**BOARD, **(p.HANGING if number else p.IDLE)}
        place = 0
        while place < made.total:
            parts = [
                Stretch(steps(30), values, owner=rank("pipe", number)),
                Stretch(steps(4), saves, owner=rank("pipe", number)),
            ]
            place = gpu.put(place, parts)
    found = [("GpuStragglerSlow", severity, "0")]
    expected: Mapping[float, Sequence[Alert]] = {1: [], 8: [], **{5 * n: found for n in range(3, 48)}}
    return Story(made, expected, ("GpuStragglerSlow",), name=f"{watts:.0f} W")


def test_an_uneven_job_with_checkpoints(tmp_path: Path) -> None:
    """One alert for the whole job, not one after each checkpoint; at the power cap it is only info."""
    tell(tmp_path, uneven_job(560.0, "warning"), uneven_job(690.0, "info"))


# --- 3 and 4: clocks and XIDs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-600.0, -200.0, 600.0])
def test_a_wrong_clock_of_the_node(tmp_path: Path, ahead: float) -> None:
    """No GPU looks stale, and no XID is missed or shown for too long."""
    made, (gpu,) = fleet(1)
    made.clocks["n"] = [(0, ahead)]
    gpu.put(0, always(WORKS))
    made.xid("n", 0, steps(20), 31, steps(30), made.total)
    made.xid("n", 0, steps(40), 79, made.total, made.total)
    application, lost = ("GpuXidApplication", "info", "0"), ("GpuXidFatal", "critical", "0")
    tell(tmp_path, Story(made, {15: [], 23: [application], 35: [], 43: [lost], 59: [lost]}, XIDS))


def test_a_fatal_xid_fires_until_the_repair(tmp_path: Path) -> None:
    """With gpu-exporter's verdict; a reboot of the node ends it."""
    made, (gpu,) = fleet(5)
    gpu.put(0, always(WORKS))
    repaired = made.reboot("n", steps(200), 7.0, planned=False)
    made.xid("n", 0, steps(20), 119, steps(200), repaired)
    fatal = [("GpuXidFatal", "critical", "0")]
    tell(tmp_path, Story(made, {19: [], 23: fatal, 60: fatal, 198: fatal, 215: [], 290: []}, ("GpuXidFatal",)))


@pytest.mark.parametrize(
    "generation", [*([Generation.DCGM_4_8_2] if is_long() else []), DCGM], ids=lambda each: each.value
)
def test_the_gauge_of_the_last_xid(tmp_path: Path, generation: Generation) -> None:
    """dcgm-exporter's gauge never clears: the alert lasts a day, and neither a gap nor another pod fires it again."""
    made, (gpu,) = fleet(29, generation)
    gpu.put(0, always(WORKS))
    gpu.put(26 * HOUR, [Stretch(3 * HOUR, WORKS, owner=rank("next"))])
    made.xid("n", 0, HOUR, 79, HOUR, made.total)
    made.silence("n", 2 * HOUR, 20)
    made.silence("n", 27 * HOUR, 20)
    fatal = [("GpuXidFatal", "critical", "0")]
    after: Mapping[float, Sequence[Alert]] = {minutes: [] for minutes in range(1515, 29 * 60, 5)}
    first: Mapping[float, Sequence[Alert]] = {59: [], 62: fatal, 119: fatal, 145: fatal, 24 * 60: fatal}
    tell(tmp_path, Story(made, {**first, **after}, ("GpuXidFatal",)), interval=COARSE)


def test_the_count_of_recent_xids(tmp_path: Path) -> None:
    """dcgm-exporter's count of five minutes without its gauge: the alert on a drain code lasts a day, others do not."""
    made, (gpu,) = fleet(26, DCGM)
    gpu.put(0, always(WORKS))
    labels = {"job": DCGM.exporter, "instance": "n:9400", "gpu": "0", "UUID": gpu.device.uuid}
    for xid, begin in (("79", HOUR), ("31", 2 * HOUR)):
        key = m.EXP_XID_COUNT.name, tuple({**labels, "window_size_in_ms": "300000", "xid": xid}.items())
        made.series[key] = [(begin, None), (steps(5), 1.0)]
    fatal, application = ("GpuXidFatal", "critical", "0"), ("GpuXidApplication", "info", "0")
    expected: Mapping[float, Sequence[Alert]] = {
        **{58: [], 62: [fatal], 119: [fatal], 123: [application, fatal], 135: [fatal]},
        **{24 * 60: [fatal], 1530: []},
    }
    tell(tmp_path, Story(made, expected, ("GpuXidApplication", "GpuXidFatal")), interval=COARSE)


def test_the_same_code_after_a_repair(tmp_path: Path) -> None:
    """It fires again within a day of the first one."""
    made, (gpu,) = fleet(26, DCGM)
    gpu.put(0, always(WORKS))
    made.xid("n", 0, HOUR, 79, HOUR, 3 * HOUR)
    made.xid("n", 0, 24 * HOUR + steps(90), 79, 24 * HOUR, made.total)
    fatal = [("GpuXidFatal", "critical", "0")]
    tell(tmp_path, Story(made, {62: fatal, 195: [], 1529: [], 1533: fatal}, ("GpuXidFatal",)), interval=COARSE)


# --- 5: normal operation ---------------------------------------------------------------------------------------------


def test_a_server_without_requests_is_not_host_bound(tmp_path: Path) -> None:
    made, (idle, busy) = fleet(3, gpus=2)
    quiet: Values = {**BOARD, **p.TINY_KERNELS, m.GR_ENGINE_ACTIVE: 0.05, m.GPU_UTIL: 5.0}
    for number, gpu in enumerate((idle, busy)):
        gpu.put(0, [Stretch(made.total, quiet, owner=rank("chat", number))])
        labels = {"job": "vllm", "namespace": "research", "pod": f"chat-worker-{number}"}
        made.series["vllm:num_requests_running", tuple(labels.items())] = [(made.total, 12.0 * number)]
    found = [("GpuHostBound", "info", "1"), ("GpuWaitsForRequests", "info", "0")]
    tell(tmp_path, Story(made, {100: found, 175: found}, ("GpuHostBound", "GpuWaitsForRequests")))


def test_bursts_are_one_oscillation(tmp_path: Path) -> None:
    """Of a job that works in bursts of minutes with pauses: one alert, which does not come and go."""
    made, (gpu,) = fleet(6, DCGM)
    place = 0
    for works, rests in [(3, 3), (2, 9), (4, 4), (1, 2)] * 12:
        parts = [
            Stretch(steps(works), {**BOARD, **p.GEMM}, owner=rank("job")),
            Stretch(steps(rests), IDLE, owner=rank("job")),
        ]
        place = gpu.put(place, parts)
    found = [("GpuPowerOscillation", "info", "0")]
    tell(tmp_path, Story(made, {20: [], **{60 + 5 * n: found for n in range(55)}}, ("GpuPowerOscillation",)))


def test_one_nvlink_replay_is_harmless(tmp_path: Path) -> None:
    made, (once, often) = fleet(2, gpus=2)
    once.put(0, always(WORKS))
    once.put(steps(30), [Stretch(1, {**WORKS, m.NVLINK_REPLAY: Integral((1 / STEP, 1.0))}, owner=rank("job"))])
    often.put(0, always(WORKS))
    often.put(steps(30), [Stretch(steps(60), {**WORKS, m.NVLINK_REPLAY: Integral((0.05, 1.0))}, owner=rank("job"))])
    tell(tmp_path, Story(made, {29: [], 45: [("GpuNvlinkErrors", "warning", "1")]}, ("GpuNvlinkErrors",)))


def test_planned_reboots(tmp_path: Path) -> None:
    """A cordoned node that reboots is no ticket, however long it takes; a short reboot is none either."""
    made, gpus = Fleet(3 * HOUR), []
    for name in ("planned", "short", "crashed"):
        gpus += made.node(name, 1, OURS)
    for gpu in gpus:
        gpu.put(0, always(WORKS))
    made.reboot("planned", steps(30), 25.0)
    made.reboot("short", steps(30), 8.0, planned=False)
    made.reboot("crashed", steps(30), 25.0, planned=False)
    down = ("GpuExporterDown",)
    tell(tmp_path, Story(made, every(1, 100), down, ', node!="crashed"'))
    tell(tmp_path, Story(made, {54: [("GpuExporterDown", "warning", "")]}, down))


# --- 6: gaps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [OURS, DCGM], ids=lambda each: each.value)
def test_a_gap_does_not_restart_the_hold(tmp_path: Path, generation: Generation) -> None:
    """A job hangs after 30 minutes; from minute 42 on, nothing is scraped for six minutes."""
    made, gpus = fleet(1.5, generation, gpus=2)
    for number, (gpu, hangs) in enumerate(zip(gpus, (p.ABSENT, p.HANGING), strict=True)):
        gpu.put(0, [Stretch(steps(30), WORKS, owner=rank("job", number))])
        gpu.put(steps(30), [Stretch(made.total, {**BOARD, **hangs}, owner=rank("job", number))])
    made.silence("n", steps(42), 6)
    found = [("GpuCollectiveStall", "warning", str(gpu)) for gpu in range(2)]
    tell(tmp_path, Story(made, {41: [], 56: found, 85: found}, ("GpuCollectiveStall",)))


def test_a_counted_hold_survives_missing_scrapes(tmp_path: Path) -> None:
    """Of which one in ten fails: the alert comes, and does not flap. An `Integral` would stand still meanwhile."""
    made, (gpu,) = fleet(5, DCGM)
    gpu.put(0, [Stretch(5 * HOUR, {**BOARD, **p.ONE_THREAD}, owner=rank("job"))])
    missing = random.Random(1)
    for step in range(5 * HOUR):
        if missing.random() < 0.1:
            made.silence("n", step, STEP / 60)
    found = [("GpuFakeLoad", "warning", "0")]
    tell(tmp_path, Story(made, {10: [], **{60 + 2 * n: found for n in range(115)}}, ("GpuFakeLoad",)))
