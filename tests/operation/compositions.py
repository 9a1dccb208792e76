"""Periods of operation: which nodes there are, what runs on them, which maintenance and which incidents there are.

`usual` is the composition with which the rules were tuned. `other` has another mix of jobs and other recordings, and
was written before; no rule was tuned with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes import profiles as p
from tests.operation.activities import Job, bursts, notebook, queue, serve, train
from tests.operation.fleet import DAY, HOUR, Fleet, Timeline, steps
from tests.operation.incidents import BY_NAME, Site, fatal, incidents, inject
from tests.operation.loads import BOARD, load, memory
from tests.rules.series import Device, Generation, Stretch
from tests.rules.shapes import Integral

OURS, OLD, DCGM = Generation.GPU_EXPORTER, Generation.DCGM_4_8_2, Generation.DCGM_4_9
COMMUNICATES, LOADS = ("GpuCommunicationBound",), ("GpuHostBound", "GpuDataLoadingBound", "GpuPowerOscillation")
UNEVEN = ("GpuStragglerSlow", *COMMUNICATES, "GpuNvlinkImbalance")

USUAL_JOBS = (
    Job("balanced", [("pair", "ddp_balanced", 0), ("pair", "ddp_balanced", 1)]),
    Job("large batch", [("single", "train_big_batch", 0)], every=60.0),
    Job("communicating", [("pair", "nccl_all_reduce_1g", 0), ("pair", "nccl_all_reduce_1g", 1)], COMMUNICATES),
)
USUAL_PIPELINES = (
    Job(
        "uneven pipeline",
        [("pair", "ddp_straggler_slow_gpu", 0), ("pair", "ddp_straggler_slow_gpu", 1)],
        UNEVEN,
        35.0,
        4.0,
    ),
    Job("even pipeline", [("pairs", "pipeline", 0), ("pairs", "pipeline", 1)], (*COMMUNICATES, *LOADS), 30.0, 3.0),
    Job("starved by its input", [("pair", "ddp_all_data_bound", 0), ("pair", "ddp_all_data_bound", 1)], LOADS),
)
OTHER_JOBS = (
    Job("balanced", [("four", "balanced", gpu) for gpu in range(4)], every=25.0, saves=2.0),
    Job("starved by its input", [("four", "all_data_bound", gpu) for gpu in range(4)], LOADS, 90.0, 6.0),
    Job("communicating", [("four", "all_reduce", gpu) for gpu in range(4)], COMMUNICATES, every=120.0),
    Job("convolutions", [("more", "conv_train", 0)], ("GpuMemoryBound",), every=15.0, saves=1.0),
    Job("small batches", [("more", "small_batch_train", 0)], LOADS, every=50.0),
)
OTHER_PIPELINES = (
    Job(
        "uneven pipeline",
        [("pairs", "pipeline_uneven", 0), ("pairs", "pipeline_uneven", 1)],
        (*UNEVEN, *LOADS),
        20.0,
        3.0,
    ),
    Job("uneven by more work", [("pairs", "slow_gpu", 0), ("pairs", "slow_gpu", 1)], UNEVEN, 45.0, 5.0),
    Job("balanced pair", [("pairs", "balanced", 0), ("pairs", "balanced", 1)], every=30.0, saves=4.0),
)
SERVES = ("GpuUnderfilled", "GpuMemoryBound")


def usual(days: int, seed: int) -> Fleet:
    """Return training on two kinds of exporters, pipelines, serving by day, notebooks, MIG and a node of the cloud."""
    rng, fleet = random.Random(f"usual {seed}"), Fleet(days * DAY)
    train_a, train_b = fleet.node("train-a", 4, OURS, full=True), fleet.node("train-b", 2, DCGM)
    pipes, lab = fleet.node("pipes", 2, OURS), fleet.node("lab", 2, OURS)
    serve_a, serve_b = fleet.node("serve-a", 1, OURS), fleet.node("serve-b", 1, OLD)
    cloud = fleet.node("cloud", 1, DCGM)
    queue(fleet, train_a, USUAL_JOBS, rng, "llm")
    queue(fleet, train_b, USUAL_JOBS, rng, "vit")
    queue(fleet, pipes, USUAL_PIPELINES, rng, "pipe", hours=9.0)
    _serving(fleet, serve_a, "decode_graph_big", rng)
    _serving(fleet, serve_b, "decode_graph", rng)
    _notebooks(fleet, lab, rng)
    _mig(fleet, "lab", 2)
    _autoscaled(fleet, cloud, USUAL_JOBS[:2], rng)
    sites = [Site("train-a", train_a, jobs=True), Site("train-b", train_b, jobs=True), Site("lab", lab)]
    _incidents(fleet, sites, rng)
    _maintenance(fleet, rng, ["pipes", "serve-a", "serve-b", "lab"])
    _clocks(fleet, rng, "train-a", "lab", "serve-a")
    return fleet


def other(days: int, seed: int) -> Fleet:
    """Return a fleet of other jobs and recordings, most of it with dcgm-exporter."""
    rng, fleet = random.Random(f"other {seed}"), Fleet(days * DAY)
    blue, green = fleet.node("blue", 2, DCGM), fleet.node("green", 4, OURS)
    red, white = fleet.node("red", 2, OLD), fleet.node("white", 2, OURS, full=True)
    grey, black = fleet.node("grey", 1, OURS), fleet.node("black", 2, DCGM)
    queue(fleet, blue, OTHER_JOBS, rng, "blue", hours=6.0)
    queue(fleet, green, OTHER_JOBS, rng, "green", hours=20.0)
    queue(fleet, red, OTHER_PIPELINES, rng, "red", hours=12.0)
    queue(fleet, white, OTHER_PIPELINES, rng, "white", hours=5.0)
    _serving(fleet, grey, "decode_eager", rng)
    _notebooks(fleet, black, rng)
    sites = [Site("green", green, jobs=True), Site("blue", blue, jobs=True), Site("black", black)]
    _incidents(fleet, sites, rng)
    _maintenance(fleet, rng, ["red", "white", "grey", "black"])
    _clocks(fleet, rng, "green", "white", "grey")
    return fleet


COMPOSITIONS: Mapping[str, Callable[[int, int], Fleet]] = {"usual": usual, "other": other}


def _serving(fleet: Fleet, gpus: Sequence[Timeline], model: str, rng: random.Random) -> None:
    for number, gpu in enumerate(gpus):
        pod = f"chat-7d9f8c6b5d-x2x4{'bcdf'[number]}"
        owner = {"namespace": "serving", "pod": pod, "container": "main"}
        serve(fleet, gpu, owner, load("more", model), rng, peak=0.9 - 0.3 * number, explains=SERVES)


def _notebooks(fleet: Fleet, gpus: Sequence[Timeline], rng: random.Random) -> None:
    for day in range(fleet.total // DAY):
        for number, gpu in enumerate(gpus):
            if day % 7 < 5 and rng.random() < 0.8:
                notebook(fleet, gpu, ("alice", "bob", "carol")[number], day, rng, forgotten=rng.random() < 0.15)
            elif rng.random() < 0.5:
                start = day * DAY + round(rng.uniform(8, 12) * HOUR)
                bursts(fleet, gpu, start, start + round(rng.uniform(3, 10) * HOUR), "sweep", rng)


def _mig(fleet: Fleet, node: str, gpu: int) -> None:
    """Add a GPU with two MIG instances that two people use all the time."""
    whole = {
        row: value for row, value in {**BOARD, **p.BALANCED}.items() if not row.per_instance and row is not m.GPU_UTIL
    }
    parts = [Device(node, gpu, (), OURS, full=False)]
    parts += [Device(node, gpu, (), OURS, instance=str(number), full=False) for number in (1, 2)]
    for device, job in zip(parts, ("", "alpha", "beta"), strict=True):
        timeline = Timeline(device, fleet.total)
        values = {**load("single", "train_big_batch"), **memory(30_000.0)}
        own = {row: value for row, value in values.items() if row.per_instance}
        owner = {"namespace": "research", "pod": f"{job}-0", "container": "main"} if job else {}
        timeline.put(0, [Stretch(fleet.total, own if job else whole, owner=owner)])
        fleet.timelines.append(timeline)


def _autoscaled(fleet: Fleet, gpus: Sequence[Timeline], jobs: Sequence[Job], rng: random.Random) -> None:
    """Run jobs by day on a node that an autoscaler adds in the morning and removes in the evening."""
    node = gpus[0].device.node
    for day in range(fleet.total // DAY):
        start, end = day * DAY + round(rng.uniform(7, 9) * HOUR), day * DAY + round(rng.uniform(18, 22) * HOUR)
        train(
            fleet,
            gpus,
            start + steps(5),
            end - steps(4),
            f"elastic{'abcdefghijklmnop'[day % 16]}",
            rng.choice(jobs),
            rng,
        )
        fleet.silence(node, day * DAY, (start - day * DAY) / 2, "absent")
        fleet.silence(node, end, (DAY * (day + 1) - end) / 2, "absent")


def _maintenance(fleet: Fleet, rng: random.Random, nodes: Sequence[str]) -> None:
    """Reboot each of these nodes once a week, let scrapes fail now and then, and stop Prometheus."""
    for node in nodes:
        for week in range(0, fleet.total, 7 * DAY):
            start = week + round(rng.uniform(1, 6.5) * DAY)
            if start < fleet.total - HOUR and not _has_incident(fleet, node, start):
                fleet.reboot(node, start, rng.uniform(6, 12))
    for node in fleet.nodes:
        for _ in range(fleet.total // DAY):
            fleet_gap = rng.randrange(fleet.total - HOUR)
            if not fleet.of(node)[0].at(fleet_gap).fault:
                fleet.silence(node, fleet_gap, rng.uniform(0.5, 3.5))
    for week in range(0, fleet.total, 7 * DAY // 2):
        start = week + rng.randrange(3 * DAY)
        if start < fleet.total - HOUR:
            fleet.stopped.append((start, start + steps(5)))
    for gpu in fleet.timelines:  # one replay of a transmission, every few days
        if gpu.device.instance or rng.random() < 0.4:
            continue
        at = rng.randrange(fleet.total)
        gpu.change(
            at, at + 1, lambda each: replace(each, values={**each.values, m.NVLINK_REPLAY: Integral((1 / 30, 1.0))})
        )


def _has_incident(fleet: Fleet, node: str, at: int) -> bool:
    """Return whether a node has an incident, or is about to have one: nobody reboots it for maintenance then."""
    return any(
        truth.must and truth.node == node and truth.start - HOUR <= at <= truth.end + HOUR for truth in fleet.truths
    )


def _incidents(fleet: Fleet, sites: Sequence[Site], rng: random.Random) -> None:
    """Inject every failure mode, fatal XIDs with what they do to a GPU, and a hang while Prometheus is stopped."""
    slots = incidents(fleet, sites, MODES, rng)
    for name, code in (
        ("GpuLost", 79),
        ("GpuEccUncorrectable", 48),
        ("GpuTelemetryStale", 119),
        ("GpuEccUncorrectable", 95),
    ):
        fits = [site for site in sites if slots[site.node] and (name != "GpuTelemetryStale" or site.node in OURS_FIRST)]
        site = rng.choice(fits or list(sites))
        if slots[site.node]:
            fatal(fleet, site, name, code, slots[site.node].pop(), rng)
    for site in sites[:2]:
        if slots[site.node]:
            start = slots[site.node].pop()
            inject(fleet, site, BY_NAME["GpuCollectiveStall"], start, rng, gap=True)
            fleet.stopped.append((start + steps(11), start + steps(16)))
    fleet.stopped.sort()


OURS_FIRST = ("train-a", "green")


def _clocks(fleet: Fleet, rng: random.Random, late: str, steps_back: str, ahead: str) -> None:
    """Let the clock of one node be ten minutes late, of another one be corrected twice, of a third one drift ahead."""
    fleet.clocks[late] = [(0, -200.0), (fleet.total // 2, -600.0)]
    first, second = sorted(rng.sample(range(HOUR, fleet.total), 2))
    fleet.clocks[steps_back] = [(first, 90.0), (second, 0.0)]
    fleet.clocks[ahead] = [(0, 45.0)]


@dataclass(frozen=True)
class Period:
    """A composition, its length in days and its seed."""

    name: str
    days: int
    seed: int

    def fleet(self) -> Fleet:
        """Compose it."""
        return COMPOSITIONS[self.name](self.days, self.seed)
