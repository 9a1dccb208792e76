"""The simulation: reproducible by its seed, with consistent values and scripted faults."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import NON_GPU_ENTITIES, selected
from gpu_exporter.model.errors import GpuExporterError, GpuLost, SourceLost
from gpu_exporter.model.gpu import Reading
from gpu_exporter.model.metric import Kind, Metric, MetricSet, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.source import Device
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.sources.simulated.device import NOT_SIMULATED
from gpu_exporter.sources.simulated.faults import ScriptedFault, parse
from gpu_exporter.sources.simulated.schedule import BIAS, PERIOD_SECONDS, WANDER, JobSchedule
from gpu_exporter.sources.simulated.source import FleetSettings, SimulatedSource, fleet
from gpu_exporter.sources.simulated.workload import statistics, workloads
from tests.conftest import RECORDINGS
from tests.support.tools import LIMIT, until
from tests.support.virtual_time import Clock

EVERYTHING = [row for row in selected(MetricSet.FULL) if row.entity not in NON_GPU_ENTITIES]
PATHS = sorted(RECORDINGS.glob("*.jsonl.gz"))
KNOWN = workloads(PATHS)
PHASES = [level for path in PATHS for level in statistics(path)[1].values()]
RECORDED = {
    key: (min(levels[key].low for levels in PHASES), max(levels[key].high for levels in PHASES)) for key in KNOWN.rows
}
RECORDED[m.PCIE_TX.key] = RECORDED[m.PCIE_RX.key]  # saving is like loading, in the other direction
TIMES = st.floats(0, 3 * PERIOD_SECONDS)
SEEDS = st.integers(0, 99)


class Fleet:
    """A fleet whose time the test sets. A read that waits advances it."""

    def __init__(self, nodes: int = 1, gpus: int = 2, seed: int = 1, faults: str = "") -> None:
        self.now = 100.0
        self.nodes = fleet(FleetSettings(nodes, gpus, seed, faults), KNOWN, lambda: self.now, self.wait)
        self.waited: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def at(self, t: float) -> None:
        """Set the time since the start."""
        self.now = 100.0 + t

    def attach(self, node: int = 0, gpu: int = 0) -> Device:
        return list(self.nodes.values())[node].attach(gpu, EVERYTHING)

    @property
    def source(self) -> SimulatedSource:
        return self.nodes["node-000"]


def values(reading: Reading) -> Mapping[Metric, float]:
    """Return the values by metric."""
    return {series.metric: value for series, value in reading.values.items()}


def values_at(fleet: Fleet, device: Device, t: float) -> Mapping[Metric, float]:
    """Return every value at a time, profiling ones as the mean of the second before."""
    fleet.at(max(0, t - 1))
    device.read(frozenset({Pace.FAST}))
    fleet.at(max(0, t - 1) + 1)
    return values(device.read(frozenset(Pace)))


@pytest.mark.slow
@given(SEEDS, TIMES)
def test_the_same_seed_is_the_same_fleet(seed: int, t: float) -> None:
    """The values at a time do not depend on earlier reads, but on the seed."""
    first, again = Fleet(3, seed=seed), Fleet(3, seed=seed)
    device, fresh = first.attach(2, 1), again.attach(2, 1)
    values_at(first, device, t / 2)
    values_at(first, device, t + 77)
    assert values_at(first, device, t) == values_at(again, fresh, t)
    assert device.gpu == fresh.gpu
    other = Fleet(3, seed=seed + 1)
    assert other.attach(2, 1).gpu.uuid != device.gpu.uuid


def test_seeds_differ() -> None:
    """Another seed has other jobs."""
    seen = {
        tuple(values_at(fleet, fleet.attach(), t)[m.POWER] for t in range(0, 600, 60))
        for fleet in (Fleet(seed=seed) for seed in range(9))
    }
    assert len(seen) == 9


@given(SEEDS, TIMES, st.integers(0, 2), st.integers(0, 1))
def test_values_are_plausible(seed: int, t: float, node: int, gpu: int) -> None:
    """Every supported metric has a value in its range and in that of the recordings; others have a reason."""
    fleet = Fleet(3, seed=seed)
    device = fleet.attach(node, gpu)
    found = values_at(fleet, device, t)
    for metric, value in found.items():
        assert metric.low <= value <= metric.high, f"{metric} is {value}"
        if metric.kind is Kind.GAUGE and metric.key in KNOWN.rows:
            low, high = RECORDED[metric.key]
            assert low - 1e-6 <= value <= high + 1e-6, f"{metric} is {value}, recorded were {low} to {high}"
    reading = device.read(frozenset(Pace))
    assert reading.failed == {}
    buffered = {series.metric: taken for series, taken in reading.buffered.items()}
    assert [value for _, value in buffered.pop(m.POWER_SAMPLES)] == [found[m.POWER_INSTANT]]
    assert set(found) | set(reading.unsupported) == set(EVERYTHING) - {m.POWER_SAMPLES}
    assert set(found) & set(reading.unsupported) == set()
    assert set(reading.unsupported.values()) == {NOT_SIMULATED}
    assert found[m.FB_USED] + found[m.FB_FREE] + found[m.FB_RESERVED] == pytest.approx(found[m.FB_TOTAL], abs=2)
    assert found[m.SM_ACTIVE] <= found[m.GR_ENGINE_ACTIVE] + 1e-3
    assert found[m.ENERGY_JOULES] == pytest.approx(found[m.ENERGY] / 1000)


@pytest.mark.slow
@given(SEEDS, TIMES)
def test_energy_is_the_integral_of_power(seed: int, t: float) -> None:
    """In a second, the counter grows by the mean power of that second, at any time."""
    fleet = Fleet(seed=seed)
    device = fleet.attach()
    found = [values_at(fleet, device, t + second) for second in range(1, 200)]
    joules = (found[-1][m.ENERGY] - found[0][m.ENERGY]) / 1000
    assert joules == pytest.approx(sum(each[m.POWER] for each in found[1:]), rel=1e-5)
    busy = found[-1][m.GPU_UTIL_SECONDS] - found[0][m.GPU_UTIL_SECONDS]
    assert busy == pytest.approx(sum(each[m.GPU_UTIL] for each in found[1:]) / 100, abs=1)  # the gauge is whole


@given(SEEDS, TIMES, st.lists(st.floats(0.1, 300), min_size=2, max_size=6))
def test_means_add_up(seed: int, t: float, steps: list[float]) -> None:
    """The mean over a time equals that of its parts, and counters never fall."""
    fleet = Fleet(seed=seed)
    parts, whole = fleet.attach(), fleet.attach()
    fleet.at(t)
    before = values(parts.read(frozenset(Pace)))
    whole.read(frozenset(Pace))
    area = 0.0
    for step in steps:
        fleet.now += step
        reading = parts.read(frozenset(Pace))
        found = values(reading)
        assert reading.span == pytest.approx(step)
        area += found[m.SM_ACTIVE] * step
        assert all(found[each] >= before[each] for each in before if each.kind is Kind.COUNTER)
        before = found
    mean = values(whole.read(frozenset(Pace)))[m.SM_ACTIVE]
    assert mean == pytest.approx(area / sum(steps), abs=2e-6)


def test_profiling_values_need_two_reads() -> None:
    """As with GPM, the first read has no mean."""
    fleet = Fleet()
    device = fleet.attach()
    reading = device.read(frozenset(Pace))
    assert reading.span is None
    assert m.SM_ACTIVE not in values(reading)
    fleet.now += 1
    assert m.SM_ACTIVE in values(device.read(frozenset({Pace.FAST})))


def test_only_due_metrics_are_read() -> None:
    """Each pace has its own metrics, but for energy, whose real counter rises with the power between its reads."""
    fleet = Fleet()
    device = fleet.attach()
    device.read(frozenset(Pace))
    fleet.now += 1
    fast = values(device.read(frozenset({Pace.FAST})))
    assert {metric for metric in fast if metric.pace is not Pace.FAST} == {m.ENERGY, m.ENERGY_JOULES}


@pytest.mark.parametrize("seed", range(5))
def test_temperature_follows_slowly(seed: int) -> None:
    """It does not jump with the power; it is warm in training and cool when idle."""
    fleet = Fleet(seed=seed)
    device = fleet.attach()
    found = [values_at(fleet, device, t) for t in range(1000)]
    steps = [later[m.GPU_TEMP] - sooner[m.GPU_TEMP] for sooner, later in pairwise(found)]
    assert max(map(abs, steps)) <= 4
    assert max(abs(later[m.POWER] - sooner[m.POWER]) for sooner, later in pairwise(found)) > 100
    assert max(each[m.GPU_TEMP] for each in found) > min(each[m.GPU_TEMP] for each in found) + 10


def test_ranks_of_a_job_are_alike() -> None:
    """GPUs of nodes that run the same job differ a little."""
    fleet = Fleet(40, 2, seed=3)
    sources = list(fleet.nodes.values())
    first, second = next((a, b) for a, b in pairwise(sources) if a.node.schedule is b.node.schedule)
    devices = [source.attach(gpu, EVERYTHING) for source in (first, second) for gpu in (0, 1)]
    trained = 0
    for t in range(600):
        train = first.node.schedule.part_at(t)
        if train.segment.activity is not KNOWN.together.train or train.begin < 1:
            continue
        trained += 1
        ranks = [values_at(fleet, device, t)[m.SM_ACTIVE] for device in devices]
        swing = KNOWN.together.train.swing[KNOWN.rows[m.SM_ACTIVE.key]]
        assert 0 < max(ranks) - min(ranks) <= 2 * (WANDER + BIAS) * swing + 1e-6
    assert trained > 100


def test_phases_of_a_job() -> None:
    """Copy, warm-up, training, checkpoint, end. Memory is in use meanwhile; NVLink is busy in training."""
    schedule = JobSchedule("seed", KNOWN, nodes=2, gpus=8)
    parts = list(schedule.parts(0, PERIOD_SECONDS))
    names = [part.segment.activity.name for part in parts]
    assert set(names) == {"idle", "load", "warm up", "ddp_balanced", "save", "hold"}
    follows = {"idle": {"load"}, "load": {"warm up"}, "warm up": {"ddp_balanced"}, "ddp_balanced": {"save"}}
    follows |= {"save": {"hold"}, "hold": {"ddp_balanced", "idle"}}
    for sooner, later in pairwise(names):
        assert later in follows[sooner]
    job, rows = KNOWN.together, KNOWN.rows
    assert job.save.mid[rows[m.PCIE_TX.key]] == job.load.mid[rows[m.PCIE_RX.key]] > 1e10
    for activity in (job.load, job.warm_up, job.train, job.save, job.hold):
        assert activity.mid[rows[m.FB_USED.key]] == job.train.mid[rows[m.FB_USED.key]]
        assert (activity.mid[rows[m.NVLINK_TX.key]] > 1e9) == (activity is job.train)
    assert sum(part.end - part.begin for part in parts) == pytest.approx(PERIOD_SECONDS)


def test_a_gpu_alone_has_no_link() -> None:
    """Nodes of one GPU never run jobs that use NVLink."""
    schedule = JobSchedule("seed", KNOWN, nodes=4, gpus=1)
    assert "ddp_balanced" not in {part.segment.activity.name for part in schedule.parts(0, PERIOD_SECONDS)}


@pytest.mark.slow
def test_names_are_unique_and_stable() -> None:
    """Node names sort by number; UUIDs are unique and the same in each run."""
    fleet = Fleet(1001, 2)
    assert next(iter(fleet.nodes)) == "node-0000"
    assert [*fleet.nodes][-1] == "node-1000"
    uuids = [fleet.attach(node, gpu).gpu.uuid for node in range(100) for gpu in (0, 1)]
    assert len(set(uuids)) == 200
    assert Fleet().attach().gpu.uuid == Fleet().attach().gpu.uuid


# --- faults ------------------------------------------------------------------------------------------------------

NODES = [f"node-{number:03}" for number in range(10)]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", []),
        (" ; \n", []),
        ("lost node-003/1 at 60s for 30s", [ScriptedFault("lost", "node-003", "1", 60, 90)]),
        ("wedged node-003/01 at 0 for 500ms", [ScriptedFault("wedged", "node-003", "1", 0, 0.5)]),
        ("slow node-005/* at 0s for 1m", [ScriptedFault("slow", "node-005", "*", 0, 60)]),
        ("lost node-005 at 1m for 1h;", [ScriptedFault("lost", "node-005", "*", 60, 3660)]),
        ("reload  node-007 at 90s\tfor 10s", [ScriptedFault("reload", "node-007", "*", 90, 100)]),
        ("lost */7 at 1 for 2", [ScriptedFault("lost", "*", "7", 1, 3)]),
        (
            "lost node-001/0 at 1 for 2; slow * at 3 for 4\nreload * at 5 for 6",
            [
                ScriptedFault("lost", "node-001", "0", 1, 3),
                ScriptedFault("slow", "*", "*", 3, 7),
                ScriptedFault("reload", "*", "*", 5, 11),
            ],
        ),
    ],
)
def test_scripts(text: str, faults: list[ScriptedFault]) -> None:
    """All forms that users write."""
    assert list(parse(text, NODES, 8)) == faults


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("los node-003/1 at 60s for 30s", "'los' is not one of lost, wedged, slow, reload; did you mean lost?"),
        ("lost", "write KIND NODE/GPU at TIME for TIME, such as 'lost node-003/1 at 60s for 30s'"),
        ("lost node-003/1", "write KIND NODE/GPU at TIME for TIME"),
        ("lost node-003/1 for 3s at 4s", "write KIND NODE/GPU at TIME for TIME"),
        ("lost node-003/ at 3s for 4s", "write KIND NODE/GPU at TIME for TIME"),
        ("lost node-003/1 at soon for 4s", "'soon' is not a duration"),
        ("lost node-003/1 at 1s for ever", "'ever' is not a duration"),
        ("lost node-003/1 at 1s for 0s", "'0s' is not a duration"),
        ("lost node-003/1 at -1s for 1s", "'-1s' is not a duration"),
        ("lost node-3/1 at 1s for 1s", "there is no node-3; use node-000 to node-009, or * for all"),
        ("lost node-003/8 at 1s for 1s", "node-003 has no GPU 8; use 0 to 7, or * for all"),
        ("lost node-003/x at 1s for 1s", "node-003 has no GPU x"),
        ("lost node-003/-1 at 1s for 1s", "node-003 has no GPU -1"),
        ("reload node-003 at 0s for 1s", "begin later, for example at 10s"),
        ("reload node-003/1 at 1s for 1s", "of the whole node is reloaded; write node-003 without /1"),
    ],
)
def test_bad_script_is_one_line(text: str, why: str) -> None:
    """The error names the bad part and the fix."""
    for whole in (text, f"slow * at 1 for 2; {text}"):
        with pytest.raises(GpuExporterError) as raised:
            parse(whole, NODES, 8)
        assert str(raised.value).startswith(f"--faults: {text!r}: ")
        assert why in str(raised.value)
        assert "\n" not in str(raised.value)


@given(st.text())
def test_any_script(text: str) -> None:
    """It is accepted, or refused with an error for the user."""
    with suppress(GpuExporterError):
        parse(text, NODES, 8)


def test_a_lost_gpu_comes_back() -> None:
    """During the fault, only this GPU can be neither read nor attached."""
    fleet = Fleet(faults="lost node-000/1 at 10 for 5")
    lost, other = fleet.attach(gpu=1), fleet.attach(gpu=0)
    fleet.at(9.9)
    lost.read(frozenset(Pace))
    fleet.at(10)
    other.read(frozenset(Pace))
    with pytest.raises(GpuLost, match="--faults"):
        lost.read(frozenset(Pace))
    with pytest.raises(GpuLost):
        fleet.attach(gpu=1)
    fleet.at(15)
    fleet.attach(gpu=1).read(frozenset(Pace))
    assert fleet.waited == []


def test_a_wedged_read_returns_when_the_fault_ends() -> None:
    """Adjacent faults are one; the read then returns the mean over all of it."""
    fleet = Fleet(faults="wedged node-000/0 at 10 for 5; wedged node-000/* at 12 for 8")
    fleet.at(9)
    device = fleet.attach()
    device.read(frozenset(Pace))
    fleet.at(11)
    reading = device.read(frozenset(Pace))
    assert sum(fleet.waited) == pytest.approx(9)
    assert reading.span == pytest.approx(11)


def test_some_reads_are_slow() -> None:
    """The seed decides which, and none is after the end."""
    waits = []
    for _ in range(2):
        fleet = Fleet(faults="slow node-000 at 0 for 100")
        device = fleet.attach()
        for t in range(200):
            fleet.at(t)
            device.read(frozenset({Pace.FAST}))
        waits.append(len(fleet.waited))
    assert waits[0] == waits[1]
    assert 10 < waits[0] < 60


def test_a_reload_restarts_energy() -> None:
    """Meanwhile no GPU of the node can be read; energy counters of other nodes continue."""
    fleet = Fleet(2, faults="reload node-000 at 100 for 10")
    device, other = fleet.attach(), fleet.attach(1)
    assert values_at(fleet, device, 99)[m.ENERGY] > 10_000_000
    fleet.at(105)
    for ask in (fleet.source.open, fleet.source.count, fleet.attach, lambda: device.read(frozenset(Pace))):
        with pytest.raises(SourceLost, match="--faults"):
            ask()
    other.read(frozenset(Pace))
    fleet.at(111)
    fleet.source.open()
    device = fleet.attach()
    again = values(device.read(frozenset(Pace)))
    assert again[m.ENERGY] / 1000 == pytest.approx(again[m.POWER], abs=1)
    assert values_at(fleet, other, 111)[m.ENERGY] > 10_000_000


# --- statistics --------------------------------------------------------------------------------------------------


def recording(path: Path, ticks: list[tuple[float, str, float]]) -> Path:
    """Return a recording of one GPU: (time, phase, power)."""
    header = {"format": "gpu-exporter-recording", "version": 1, "interval_seconds": 1, "gpus": [{"gpu": 0}]}
    lines = [{"t": t, "gpu": 0, "phase": phase, "samples": {m.POWER.key: power}} for t, phase, power in ticks]
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    return path


def test_statistics_leave_ramps_out(tmp_path: Path) -> None:
    """The first two seconds of a phase are mixed with the previous one."""
    ticks = [
        (0.0, "a", 1.0),
        (1.0, "a", 50.0),
        (2.0, "a", 100.0),
        (3.0, "a", 100.0),
        (4.0, "a", 106.0),
        (5.0, "b", 9.0),
    ]
    _, phases = statistics(recording(tmp_path / "r.jsonl", ticks))
    level = phases["a"][m.POWER.key]
    assert (level.mean, level.low, level.high, level.mode) == (102.0, 100.0, 106.0, 100.0)
    assert "b" not in phases


def test_recordings_without_the_phases_are_refused(tmp_path: Path) -> None:
    """No values are invented."""
    path = recording(tmp_path / "r.jsonl", [(t, "idle", 100.0) for t in range(5)])
    with pytest.raises(GpuExporterError, match="no packaged recording has the phase pcie_h2d_pinned"):
        workloads([path])


@pytest.mark.parametrize(
    ("faults", "waits"),
    [
        ("", set()),
        ("lost node-000/0 at 1s for 1s; reload node-000 at 9s for 1s", set()),
        ("wedged node-000/0 at 1s for 1s", {("node-000", 0)}),
        ("slow node-001/* at 1s for 1s", {("node-001", 0), ("node-001", 1)}),
        ("wedged */1 at 1s for 1s", {("node-000", 1), ("node-001", 1)}),
    ],
)
def test_threads_only_for_blocking_reads(faults: str, waits: set[tuple[str, int]]) -> None:
    """The clock thread itself does reads that compute; others have a thread."""
    nodes = fleet(FleetSettings(2, 2, faults=faults), KNOWN)
    found = {(name, gpu) for name, node in nodes.items() for gpu in range(2) if not node.instant(gpu)}
    assert found == waits


@pytest.mark.slow
def test_a_node_that_computes_has_two_threads() -> None:
    """The clock thread reads its GPUs, also after a lost GPU and a reload."""
    faults = "lost node-000/0 at 1s for 1s; reload node-000 at 3s for 1s"
    clock = Clock()
    begin = clock.monotonic()
    source = fleet(FleetSettings(1, 2, faults=faults), KNOWN, clock.monotonic)["node-000"]
    seen: list[tuple[str, ...]] = []
    threads = set(threading.enumerate())
    published_at = 0.0

    def publish(shot: Snapshot) -> None:
        nonlocal published_at
        published_at = time.monotonic()
        seen.append(tuple(each.reason for each in shot.gpus))

    collector = Collector(source, EVERYTHING, publish, CollectionSettings(0.05))
    collector.start()
    assert {thread.name for thread in set(threading.enumerate()) - threads} == {"connect", "clock"}
    for at, reasons in ((1, ("lost", "")), (2, ("", "")), (3, ("source_lost", "source_lost")), (4, ("", ""))):
        clock.pass_until(begin + at)
        until(lambda now=reasons: seen and seen[-1] == now, 60, f"{reasons} at {at} s")  # type: ignore[misc]
    with source.gil_lock:
        until(lambda: published_at < time.monotonic() - 0.3, 15, "a clock that waits")
        before = len(seen)
    until(lambda: len(seen) > before, 15, "a clock that goes on")
    assert collector.stop(LIMIT)
