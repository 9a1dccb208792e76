"""Pods and XIDs of simulated GPUs: as attribution and drivers report those of real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from unittest.mock import patch

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.catalogue.xids import XidKind, load
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.report import exit_code
from gpu_exporter.diagnosis.window import Scrapes, seen
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.xid_counts import Now
from gpu_exporter.model.gpu import Owner
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.owners.assignment import LookupAnswers, owners
from gpu_exporter.owners.devices import Allocated, Listing, devices
from gpu_exporter.owners.pods import PodDetails
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import Context
from gpu_exporter.sources.simulated.device import CODES, FIRST_SECONDS, PERIOD_SECONDS, upcoming_xids
from gpu_exporter.sources.simulated.schedule import JobSchedule
from gpu_exporter.sources.simulated.source import FleetSettings, SimulatedSource, fleet
from gpu_exporter.sources.simulated.workload import workloads
from tests.conftest import RECORDINGS
from tests.soak.ticks import CLOCKS, Clock

KNOWN = workloads(sorted(RECORDINGS.glob("*.jsonl.gz")))
IDLE_GPU, FREE_GPU = 6, 7


@contextmanager
def collected(clock: Clock, source: SimulatedSource, made: list[Snapshot]) -> Iterator[Collector]:
    """Collect a node in the time of a clock, with its XIDs, as `serve` does."""
    events = EventLog(load(), lambda pci: None, lambda: Now(clock.time(), clock.monotonic()))
    collector = Collector(source, selected(MetricSet.DEFAULT), made.append, context=Context(events))
    assert collector.connect(60)
    yield collector
    assert collector.stop(60)


def watched(seconds: int, inject: str = "", seed: int = 1) -> list[Snapshot]:
    """Return the snapshots of the default node, one per second."""
    clock, made = Clock(), list[Snapshot]()
    for module in CLOCKS:
        patch.object(module, "time", clock).start()
    try:
        source = fleet(FleetSettings(seed=seed, inject=inject), KNOWN, clock.monotonic)["node-000"]
        with collected(clock, source, made) as collector:
            for _ in range(seconds):
                clock.pass_by(1.0)
                collector.tick()
    finally:
        patch.stopall()
    return made


def owner_of(source: SimulatedSource, index: int) -> Owner | None:
    return next(iter(source.owners(source.attach(index, ()).gpu)), None)


def test_pods_are_shown_as_attribution_shows_them() -> None:
    """Classic families and gpu_pod_info have the labels that kubelet and the API server would give them."""
    made = watched(3)[-1]
    gpus = [status.gpu for status in made.gpus]
    rows = [series for series, _ in made.samples if series.metric is m.POD_INFO]
    by_gpu = {series.gpu: dict(series.labels) for series in rows}
    allocated = [
        Allocated(labels["namespace"], labels["pod"], labels["container"], "nvidia.com/gpu", gpu.uuid)
        for gpu, labels in by_gpu.items()
        if gpu
    ]
    pods = {
        f"{labels['namespace']}/{labels['pod']}": PodDetails(
            (labels["pod_uid"],), workload=labels["workload"], rank=labels["rank"]
        )
        for labels in by_gpu.values()
    }
    answers = LookupAnswers(devices(gpus, {}), Listing(tuple(allocated)), pods)
    expected, expected_rows = owners(answers)
    assert made.owner_labels == expected
    assert {(row.gpu, row.labels) for row in expected_rows} == {(series.gpu, series.labels) for series in rows}
    assert len(rows) == FREE_GPU


def test_a_shared_node() -> None:
    """Pods of one job with two GPUs each, a notebook that does not use its GPU, and a free GPU."""
    now = 0.0
    source = fleet(FleetSettings(), KNOWN, lambda: now)["node-000"]
    pods = [owner_of(source, index) for index in range(8)]
    assert [pod and (pod.pod, pod.workload, pod.rank) for pod in pods] == [
        *[("train-000-0", "train-000", "0")] * 2,
        *[("train-000-1", "train-000", "1")] * 2,
        *[("train-000-2", "train-000", "2")] * 2,
        ("notebook-000-0", "notebook-000", "0"),
        None,
    ]
    assert {pod.namespace for pod in pods if pod} == {"simulated"}
    attached = [source.attach(index, selected(MetricSet.DEFAULT)) for index in range(8)]
    highest, memory = dict.fromkeys(range(8), 0.0), dict[int, set[float]]()
    for now in range(0, 7200, 20):  # noqa: B007 - read by the source
        for index, device in enumerate(attached):
            values = {series.metric: value for series, value in device.read(frozenset(Pace)).values.items()}
            highest[index] = max(highest[index], values.get(m.SM_ACTIVE, 0))
            memory.setdefault(index, set()).add(values[m.FB_USED])
            total = values[m.FB_USED] + values[m.FB_FREE] + values[m.FB_RESERVED]
            assert total == pytest.approx(values[m.FB_TOTAL], abs=2)
    assert [highest[index] > 0.5 for index in range(8)] == [True] * 6 + [False] * 2
    assert highest[IDLE_GPU] == highest[FREE_GPU] == 0
    assert (len(memory[IDLE_GPU]), memory[FREE_GPU]) == (1, {0.0})


@pytest.mark.parametrize("gpus", [1, 2, 7])
def test_a_small_node_has_one_pod(gpus: int) -> None:
    source = fleet(FleetSettings(1, gpus), KNOWN)["node-000"]
    assert {pod and pod.pod for pod in (owner_of(source, index) for index in range(gpus))} == {"train-000-0"}


def test_a_job_of_several_nodes() -> None:
    """Each node is a rank, whose pod has all of its GPUs."""
    nodes = fleet(FleetSettings(40, 8, seed=3), KNOWN)
    first, second = next((a, b) for a, b in pairwise(nodes.values()) if a.node.schedule is b.node.schedule)
    pods = [{owner_of(source, index) for index in range(8)} for source in (first, second)]
    (one,), (other,) = pods
    assert one
    assert other
    assert one.workload == other.workload
    assert (one.rank, other.rank) == ("0", "1")


def test_an_injected_node_is_one_job() -> None:
    """Other pods would be compared with none of its ranks, and other XIDs would hide the injected ones."""
    made = watched(90, inject="GpuMemoryBound:1")
    pods = {dict(series.labels)["pod"] for series, _ in made[-1].samples if series.metric is m.POD_INFO}
    assert pods == {"injected-node-000-0"}
    assert not any(value for series, value in made[-1].samples if series.metric is m.XID_EVENTS)


# --- XIDs -------------------------------------------------------------------------------------------------------------


def test_an_xid_soon_after_the_start() -> None:
    """One GPU has one, of a program; the other GPUs have counters from 0, as real ones have."""
    made = watched(120)
    quiet = made[int(FIRST_SECONDS) - 2]
    counted = [
        {series: value for series, value in page.samples if series.metric is m.XID_EVENTS} for page in (quiet, made[-1])
    ]
    assert set(counted[0].values()) == {0}
    (xid,) = [series for series, value in counted[1].items() if value]
    assert counted[1][xid] == 1
    assert xid.gpu
    assert xid.gpu.index == 0
    assert dict(xid.labels)["kind"] == XidKind.APPLICATION.value
    assert {series.gpu.index for series in counted[0] if series.gpu} == set(range(8))


@pytest.mark.slow
def test_the_default_node_has_no_finding_that_pages() -> None:
    """While `diagnose` watches, nothing of pods or XIDs is found; afterwards, the XID is an information."""
    made = watched(120)
    for pages in (made[1:21], made):
        found = diagnose(seen([Scrapes().of(page) for page in pages], {}))
        severities = {match.mode.severity.value for each in found for match in each.matches}
        assert "critical" not in severities
        names = {match.mode.name for each in found for match in each.matches}
        assert ("GpuXidApplication" in names) is (pages is made)
        assert exit_code(found) in (0, 1)


def test_xids_are_rare_and_come_while_a_job_runs() -> None:
    """About one in twelve hours, at the same times for the same seed; after a restart of the driver none repeats."""
    schedule = JobSchedule("seed", KNOWN, nodes=1, gpus=8)
    days = list(islice(upcoming_xids("a", schedule, 0.0, early=False), 100))
    assert days[-1].at == pytest.approx(100 * PERIOD_SECONDS, rel=0.02)
    assert days == list(islice(upcoming_xids("a", schedule, 0.0, early=False), 100))
    assert days != list(islice(upcoming_xids("b", schedule, 0.0, early=False), 100))
    assert {xid.code for xid in days} == set(CODES)
    assert all(schedule.part_at(xid.at + 1e-3).segment.activity is not KNOWN.idle for xid in days)
    assert next(upcoming_xids("a", schedule, days[3].at, early=False)) == days[4]
    assert next(upcoming_xids("a", schedule, 0.0, early=True)).at < FIRST_SECONDS + 61


def test_gpus_without_a_job_have_no_xids() -> None:
    now = 0.0
    source = fleet(FleetSettings(), KNOWN, lambda: now)["node-000"]
    devices_of_node = [source.attach(index, ()) for index in range(8)]
    assert all(device.xids_since is not None for device in devices_of_node)
    codes: dict[int, list[int]] = {}
    for now in (29.0, 100.0, 10 * PERIOD_SECONDS):  # noqa: B007 - read by the source
        for index, device in enumerate(devices_of_node):
            codes.setdefault(index, []).append(len(device.events()))
    assert codes[0][:2] == [0, 1]
    assert [sum(codes[index]) > 5 for index in range(8)] == [True] * 6 + [False] * 2
    assert codes[FREE_GPU] == codes[IDLE_GPU] == [0, 0, 0]


def test_codes_are_those_of_programs() -> None:
    """None requires a drain, and two codes are within the limit on series per GPU."""
    xids = load()
    assert {xids[code].kind for code in CODES} == {XidKind.APPLICATION}
    assert not any(xids[code].drain for code in CODES)
    assert len(set(CODES)) == 2
