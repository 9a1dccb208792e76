"""Injected failure modes: each is found on its GPU, by consistent values, and no other is."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp, Scope, Wave
from gpu_exporter.catalogue.metrics import histograms, selected
from gpu_exporter.catalogue.signals import POWER_SWING, SM_IDLE
from gpu_exporter.catalogue.xids import load
from gpu_exporter.conditions.evaluate import holds
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.window import Scrapes, Window, seen
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.xid_counts import Now
from gpu_exporter.model.errors import GpuExporterError, SourceLost
from gpu_exporter.model.metric import Metric, MetricSet, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Health
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.sources.simulated import inject as inject_module
from gpu_exporter.sources.simulated.faults import SEEN_SECONDS
from gpu_exporter.sources.simulated.inject import injections, mean, value_at
from gpu_exporter.sources.simulated.source import FleetSettings, fleet
from gpu_exporter.sources.simulated.workload import workloads
from tests.conftest import RECORDINGS
from tests.soak.ticks import CLOCKS, Clock
from tests.support.incidents import in_incident_of

KNOWN = workloads(sorted(RECORDINGS.glob("*.jsonl.gz")))
NODE, GPU, GPUS = "node-000", 1, 3
NODES = [f"node-{number:03}" for number in range(4)]
BY_NAME = {mode.name: mode for mode in MODES}
# Simulated minutes, and seconds between two collections. Windows of hours and leaks need hours.
SHORT, LONG = (12, 30.0), (140, 60.0)
SPECIAL = {
    "GpuAllocatedIdle": LONG,
    "GpuMemoryHoarded": LONG,
    "GpuMemoryExhaustionPredicted": (75, 60.0),
    # Whether values are old, or the GPU was ever read, depends on the interval.
    "GpuLost": (12, 15.0),
    "GpuTelemetryStale": (12, 15.0),
}
# Detected only by other exporters or Prometheus.
OUTSIDE = {"GpuExporterDown", "GpuSourceDown", *(mode.name for mode in MODES if mode.requires)}

CORRECT = "fix: correct its Inject or its limit in gpu_exporter/catalogue/failure_modes/*.py"


class Stuck(threading.Event):
    """A driver call that returns with an error at the end of the test."""

    def __call__(self, seconds: float) -> None:
        self.wait()
        raise SourceLost("the test has ended")


@contextmanager
def watched(
    inject: str, interval: float, publish: Callable[[Snapshot], None] = lambda snapshot: None
) -> Iterator[tuple[Clock, Collector]]:
    """Return a node that is collected as by `serve`, in a time that the test sets."""
    clock, stuck = Clock(), Stuck()
    with patch.multiple(inject_module, time=clock):
        for module in CLOCKS:
            patch.object(module, "time", clock).start()
        try:
            source = fleet(FleetSettings(1, GPUS, inject=inject), KNOWN, clock.monotonic, stuck)[NODE]
            events = EventLog(load(), lambda pci: None, lambda: Now(clock.time(), clock.monotonic()))
            full = (*selected(MetricSet.FULL, host=True), *histograms(MetricSet.FULL))
            collector = Collector(source, full, publish, CollectionSettings(interval), context=Context(events))
            assert collector.connect(60)
            yield clock, collector
            stuck.set()
            assert collector.stop(60)
        finally:
            patch.stopall()


def pages(inject: str, minutes: int, interval: float) -> list[Snapshot]:
    """Return the snapshots published in this many minutes."""
    made: list[Snapshot] = []
    with watched(inject, interval, made.append) as (clock, collector):
        for _ in range(int(minutes * 60 / interval)):
            clock.pass_by(interval)
            collector.tick()
    return made


def signals(snapshots: Sequence[Snapshot]) -> Window:
    """Return the signals of snapshots."""
    return seen([Scrapes().of(snapshot) for snapshot in snapshots], {})


def modes_by_gpu(evidence: Window) -> dict[str, set[str]]:
    """Return the names of the failure modes that are true at the end by GPU, with those of a fleet."""
    names: dict[str, set[str]] = {
        each.identity.gpu: {match.mode.name for match in each.matches} for each in diagnose(evidence)
    }
    for mode in MODES:
        for part, identity in evidence.devices.items() if mode.scope is Scope.FLEET and mode.condition else ():
            if mode.condition and holds(mode.condition, evidence, part):
                names[identity.gpu].add(mode.name)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.name not in OUTSIDE], ids=lambda mode: mode.name)
def test_each_mode_is_found_where_it_is_injected(mode: FailureMode) -> None:
    """On its GPU, with only modes of the same incident; its peers have at most modes of the whole job."""
    evidence = signals(pages(f"{mode.name}:{GPU}", *SPECIAL.get(mode.name, SHORT)))
    causes = {each.incident.mode.name for each in of_diagnoses(diagnose(evidence))}
    assert len(causes) <= 1, (
        f"what {mode.name} injects is more than one incident, {causes}; {CORRECT}, or its `explains`"
    )
    names = modes_by_gpu(evidence)
    assert mode.name in names[str(GPU)], f"{mode.name} does not fire on what it injects; {CORRECT}"
    others = sorted(names[str(GPU)] - in_incident_of(mode))
    assert not others, f"what {mode.name} injects makes {others} fire too; {CORRECT}, or add them to `explains`"
    of_job = in_incident_of(mode) if mode.scope is Scope.JOB else set()
    for gpu in {"0", "1", "2"} - {str(GPU)}:
        assert names[gpu] <= of_job, f"what {mode.name} injects makes a peer of its GPU fire; {CORRECT}"


def values(samples: Snapshot) -> dict[Metric, float]:
    """What was read of the injected GPU."""
    return {
        series.metric: value
        for series, value in samples.samples
        if series.gpu and series.gpu.index == GPU and not series.labels and not series.part
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if not mode.inject.fault and not mode.requires], ids=lambda mode: mode.name
)
def test_values_are_consistent(mode: FailureMode) -> None:
    """Values are possible, memory adds up, integrals and energy grow with the gauges, no counter falls."""
    made = pages(f"{mode.name}:{GPU}", 2, 5.0)
    first, last = made[6], made[-1]
    early, late, seconds = values(first), values(last), last.at - first.at
    for metric, value in late.items():
        assert metric.low <= value <= metric.high, metric
        gauge = metric.integral_of
        if gauge and gauge in late:
            assert value - early[metric] == pytest.approx(late[gauge] * seconds, rel=0.01, abs=1e-3), metric
        if metric.name.endswith("_total"):
            assert value >= early[metric], metric
    assert late[m.FB_USED] + late[m.FB_FREE] + late[m.FB_RESERVED] == pytest.approx(late[m.FB_TOTAL], abs=0.01)
    assert late[m.FB_USED_RATIO] == pytest.approx(late[m.FB_USED] / (late[m.FB_TOTAL] - late[m.FB_RESERVED]), abs=1e-3)
    assert late[m.ENERGY_JOULES] - early[m.ENERGY_JOULES] == pytest.approx(late[m.POWER] * seconds, rel=0.2)
    for row in m.CLOCK_EVENT_ACTIVE:
        assert row.bit is not None
        assert late[row] == int(late[m.CLOCK_EVENTS]) >> row.bit & 1
    for row, injected_value in mode.inject.values.items():
        if not isinstance(injected_value, Ramp | Wave):
            assert late[row] == pytest.approx(injected_value, rel=1e-6), row
    assert not set(mode.inject.absent) & set(late)
    assert not any(series.metric is m.REJECTED for series, _ in last.samples)


def test_injected_gpus_have_a_verdict() -> None:
    """A faulty GPU is unhealthy, its peers are healthy."""
    made = pages(f"GpuRowRemapFailed:{GPU}", 1, 1.0)[-1]
    assert {verdict.gpu.index: verdict.health for verdict in made.verdicts} == {
        0: Health.HEALTHY,
        GPU: Health.UNHEALTHY,
        2: Health.HEALTHY,
    }
    (problem,) = made.verdicts[GPU].problems
    assert problem.reason == "row_remap_failure"


@pytest.mark.slow
def test_injected_modes_in_histograms() -> None:
    """A swing between two powers only on its GPU; a GPU that copies has idle gaps, its peers have none."""
    for name, signal, here, elsewhere in (
        ("GpuPowerOscillation", POWER_SWING, (690 - 118) / 2, 20.0),
        ("GpuPcieBound", SM_IDLE, 1.0, 0.0),
    ):
        shown = seen([Scrapes().of(page) for page in pages(f"{name}:{GPU}", 6, 5.0)], {})
        found = {known.gpu: shown.points(part, signal)[-1][1] for part, known in shown.devices.items()}
        assert found[str(GPU)] == pytest.approx(here, abs=25)
        assert found["0"] == pytest.approx(elsewhere)


@pytest.mark.slow
def test_xids_repeat() -> None:
    """One per minute, counted like real ones; those that require a drain start at 0 everywhere."""
    made = pages(f"GpuXidFatal:{GPU}", 5, 1.0)
    counted = {
        (series.gpu.index, dict(series.labels)["xid"]): value
        for series, value in made[-1].samples
        if series.metric is m.XID_EVENTS and series.gpu
    }
    assert counted[GPU, "79"] == 5
    assert {key: count for key, count in counted.items() if count} == {(GPU, "79"): 5}
    assert (0, "79") in counted


def test_a_fault_begins_after_the_first_reads() -> None:
    """Until then, the GPU is up with its identity; afterwards it is lost."""
    made = pages(f"GpuLost:{GPU}", 2, 1.0)
    up = [next(status.up for status in each.gpus if status.gpu.index == GPU) for each in made[2:]]
    assert up == [True] * up.count(True) + [False] * up.count(False)
    assert up.count(True) == pytest.approx(SEEN_SECONDS, abs=3)


def test_a_driver_is_unloaded_after_the_first_reads() -> None:
    """On the node of the injection only, whichever GPU it names."""
    now = 0.0
    sources = fleet(FleetSettings(2, GPUS, inject=f"GpuSourceDown:node-001/{GPU}"), KNOWN, lambda: now)
    now = SEEN_SECONDS - 1
    for source in sources.values():
        source.open()
    now = SEEN_SECONDS + 1
    sources[NODE].open()
    with pytest.raises(SourceLost, match="--inject"):
        sources["node-001"].open()


def test_a_gpu_that_is_alone_has_a_job_of_its_own() -> None:
    """The other GPUs remain one job, and a mode of a job has its peers."""
    source = fleet(FleetSettings(1, GPUS, inject=f"GpuFakeLoad:{GPU},GpuStragglerSlow:2"), KNOWN)[NODE]
    gpus = [source.attach(index, selected(MetricSet.DEFAULT)).gpu for index in range(GPUS)]
    jobs = [owner.workload for gpu in gpus for owner in source.owners(gpu)]
    assert jobs == ["injected-node-000", f"injected-node-000-gpu-{GPU}", "injected-node-000"]


def test_modes_add_up_on_a_gpu() -> None:
    """A straggler with thermal throttling is both; its peers are those of a straggler."""
    names = modes_by_gpu(signals(pages(f"GpuStragglerSlow:{GPU}, GpuThermalThrottling:{GPU}", *SHORT)))
    assert names[str(GPU)] == {"GpuStragglerSlow", "GpuThermalThrottling", "GpuThermalMarginLow"}
    assert names["0"] == names["2"] == set()


def test_a_leak_ends_with_its_job_and_begins_again() -> None:
    """Memory that grows never exceeds the total, in any simulated time."""
    seconds = 0.0
    source = fleet(FleetSettings(1, 1, inject="GpuMemoryExhaustionPredicted"), KNOWN, lambda: seconds)[NODE]
    device = source.attach(0, selected(MetricSet.DEFAULT))
    free = []
    for minute in range(1440):
        seconds = minute * 60.0
        reading = device.read(frozenset(Pace))
        free.append(next(value for series, value in reading.values.items() if series.metric is m.FB_FREE))
    assert min(free) < 1000
    assert all(0 <= value <= 62000 for value in free)
    assert 10 < sum(later > earlier for earlier, later in pairwise(free)) < 40


def test_other_nodes_do_not_change() -> None:
    """An injection is a job of its own: values and description of other nodes stay the same."""
    now = 0.0
    with_it, without = (
        fleet(FleetSettings(3, 2, inject=text), KNOWN, lambda: now) for text in ("GpuMemoryBound:node-001", "")
    )
    for name in ("node-000", "node-002"):
        devices = [nodes[name].attach(1, selected(MetricSet.FULL)) for nodes in (with_it, without)]
        for each in (3.0, 4.0, 50.0):
            now = each
            one, other = (device.read(frozenset(Pace)) for device in devices)
            assert {s.metric: v for s, v in one.values.items()} == {s.metric: v for s, v in other.values.items()}
            assert one.unsupported == other.unsupported
        assert with_it[name].owners(devices[0].gpu) == without[name].owners(devices[0].gpu)
    (mine,) = with_it["node-001"].owners(devices[0].gpu)
    assert mine.workload not in {
        nodes[name].owners(devices[0].gpu)[0].workload for nodes in (without,) for name in nodes
    }


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("GpuMemoryBound", {("node-000", 0)}),
        ("GpuMemoryBound:2", {("node-000", 2)}),
        ("GpuMemoryBound:node-003", {("node-003", 0)}),
        ("GpuMemoryBound:node-001/2", {("node-001", 2)}),
        ("GpuMemoryBound:1,GpuFakeLoad:node-001/2", {("node-000", 1), ("node-001", 2)}),
        (" GpuMemoryBound:1 ;\nGpuFakeLoad:2\n", {("node-000", 1), ("node-000", 2)}),
        ("", set()),
    ],
)
def test_places(text: str, hit: set[tuple[str, int]]) -> None:
    """A failure mode without a place is on the first GPU of the first node."""
    found = {node: injection.gpus for node, injection in injections(text, NODES, GPUS).items()}
    assert {(node, gpu) for node, gpus in found.items() for gpu, each in gpus.items() if each.names} == hit
    assert all(len(gpus) == GPUS for gpus in found.values())


@pytest.mark.parametrize(
    ("text", "gpus", "why"),
    [
        ("GpuMemoryBond", 3, "there is no failure mode 'GpuMemoryBond'; did you mean GpuMemoryBound?"),
        ("nonsense", 3, "there is no failure mode 'nonsense'; docs/failure-modes.md lists them"),
        ("GpuMemoryBound:3", 3, "node-000 has no GPU 3; use 0 to 2"),
        ("GpuMemoryBound:node-001/x", 3, "node-001 has no GPU x; use 0 to 2"),
        ("GpuMemoryBound:node-009", 3, "there is no node-009; use node-000 to node-003"),
        ("GpuMemoryBound:node-009/1", 3, "there is no node-009; use node-000 to node-003"),
        ("GpuMemoryBound:*", 3, "there is no *; use node-000 to node-003"),
        ("GpuMemoryBound:1", 1, "node-000 has only GPU 0"),
        ("GpuAllocationFragmented", 3, "it needs metrics of kube-state-metrics, which are not simulated"),
        ("GpuStragglerSlow", 1, "it needs a job of several ranks; use --gpus 2 or more"),
    ],
)
def test_bad_injections(text: str, gpus: int, why: str) -> None:
    """The error is one line with the bad part and the fix."""
    with pytest.raises(GpuExporterError) as raised:
        injections(text, NODES, gpus)
    assert str(raised.value) == f"--inject {text}: {why}"


@given(st.text(alphabet="GpuLostMemoryBound:/, ;*0123node-", max_size=40))
def test_any_text(text: str) -> None:
    """It is accepted, or refused with one line."""
    with suppress(GpuExporterError):
        injections(text, NODES, GPUS)


@pytest.mark.slow
@given(
    st.builds(Ramp, st.floats(-10, 10), st.floats(-5, 5)) | st.builds(Wave, *[st.floats(0.1, 9)] * 3) | st.floats(0, 9),
    st.floats(0, 100),
    st.floats(0.1, 50),
)
def test_a_mean_is_that_of_its_instants(value: float | Ramp | Wave, begin: float, seconds: float) -> None:
    """It equals that of many instants, with hundreds in each half of a wave, against aliasing."""
    steps = max(4000, round(300 * seconds / value.seconds)) if isinstance(value, Wave) else 4000
    instants = [value_at(value, begin + seconds * (step + 0.5) / steps) for step in range(steps)]
    assert mean(value, begin, begin + seconds) == pytest.approx(math.fsum(instants) / steps, rel=0.02, abs=0.05)


@pytest.mark.parametrize("wave", [Wave(0.1, 0.9, 0.5), Wave(0.9, 0.1, 0.5)])
@pytest.mark.parametrize("begin", [0.0, 1e5])
def test_a_mean_lies_within_the_values_of_its_wave(wave: Wave, begin: float) -> None:
    """However long the GPU has been simulated."""
    means = [mean(wave, begin + n / 10, begin + (n + 1) / 10) for n in range(1000)]
    assert (min(means), max(means)) == (0.1, 0.9)


def test_a_swing_is_seen_at_every_pace() -> None:
    """No period of reading, however round, reads only one side of it."""
    wave = Wave(0, 1, 0.5)
    for period in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60):
        seen_high = sum(value_at(wave, step * period) for step in range(200)) / 200
        assert 0.35 < seen_high < 0.65, period


@pytest.mark.parametrize(
    ("mode", "metrics", "option"),
    [
        ("GpuSpareRowsLow", selected(MetricSet.FULL), "--metrics full"),
        ("GpuSharedMemoryFull", selected(MetricSet.DEFAULT, host=True), "--host-evidence"),
    ],
)
def test_warning_of_a_set_that_is_too_small(
    caplog: pytest.LogCaptureFixture, mode: str, metrics: Sequence[Metric], option: str
) -> None:
    source = fleet(FleetSettings(1, 1, inject=mode), KNOWN)[NODE]
    source.attach(0, metrics)
    assert caplog.messages == []
    source.attach(0, selected(MetricSet.DEFAULT))
    assert caplog.messages == [f"--inject {mode}: its values need {option}"]


NIC_FAULTS = [("GpuNicDown", ["down"]), ("GpuNicSlowLink", ["slow"]), ("GpuNicErrors", [])]


@pytest.mark.parametrize(("mode", "faults"), NIC_FAULTS)
def test_network_ports_need_no_option(caplog: pytest.LogCaptureFixture, mode: str, faults: Sequence[str]) -> None:
    """As on a node with network cards, they are read and named by default."""
    source = fleet(FleetSettings(1, 2, inject=f"{mode}:1"), KNOWN)[NODE]
    values = [source.attach(gpu, selected(MetricSet.DEFAULT)).read(frozenset(Pace)).values for gpu in (0, 1)]
    of_ports = [[series for series in of_gpu if series.metric.set is MetricSet.NIC] for of_gpu in values]
    assert [series.metric for series in of_ports[0]] == []
    assert {series.metric for series in of_ports[1]} >= {*BY_NAME[mode].inject.values, m.NIC_INFO}
    named = [dict(series.labels) for series in of_ports[1] if series.metric is m.NIC_FAULT]
    assert named == [{"device": "mlx5_1", "port": "1", "fault": fault} for fault in faults]
    assert caplog.messages == []
