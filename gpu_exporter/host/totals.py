"""Totals of one GPU that only rise, made of differences between two polls of its processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.sample import AUTOGRAD, ProcessSample, ThreadSample
from gpu_exporter.model.metric import Metric

# A worker counts as active if it used a CPU, waited for one or was blocked for more than this share of the time.
ACTIVE = 0.05

Key = tuple[int, int]

OF_WORKERS = (m.HOST_WORKERS, m.HOST_WORKERS_ACTIVE, m.HOST_WORKER_CPU, m.HOST_WORKER_WAIT, m.HOST_WORKER_BLOCKED)
OF_SHARED_MEMORY = (m.HOST_SHM_USED, m.HOST_SHM_LIMIT)
# What a poll of the processes of a GPU can yield: `gpu_metric_supported` says why one of them is absent.
OF_PROCESSES = (
    m.HOST_LAUNCH_CPU,
    m.HOST_LAUNCH_WAIT,
    m.HOST_LAUNCH_BLOCKED,
    *OF_WORKERS,
    m.HOST_CPU,
    m.HOST_FAULTS,
    m.HOST_READ,
    m.HOST_SWAP,
    *OF_SHARED_MEMORY,
)


@dataclass(slots=True)
class Totals:
    """The values of one GPU: counters that continue when its processes change, and gauges of the last poll."""

    counters: dict[Metric, float] = field(default_factory=dict)
    gauges: dict[Metric, float] = field(default_factory=dict)

    def add(self, metric: Metric, increase: float) -> None:
        """Add to a counter, which begins at 0."""
        self.counters[metric] = self.counters.get(metric, 0.0) + max(0.0, increase)

    def values(self) -> Mapping[Metric, float]:
        """Return all values."""
        return {**{metric: round(value, 6) for metric, value in self.counters.items()}, **self.gauges}


def add_launching(
    totals: Totals,
    leader: ProcessSample,
    before: ProcessSample,
    threads: Mapping[int, bytes],
    now: Mapping[int, ThreadSample],
    then: Mapping[int, ThreadSample],
    elapsed: float,
) -> None:
    """Add what the launching thread did: it ran, waited for a CPU, or was blocked.

    In PyTorch, the main thread and the autograd thread launch in turn, so both count as one. If another thread is
    busier than both together, it holds the interpreter or does the launching, so it counts instead.
    """
    ran = {tid: now[tid].ran - then[tid].ran for tid in threads if tid in now and tid in then}
    waited = {tid: now[tid].waited - then[tid].waited for tid in ran}
    if leader.ran is not None and before.ran is not None:
        ran[leader.pid] = leader.ran - before.ran
        waited[leader.pid] = (leader.waited or 0.0) - (before.waited or 0.0)
    if not ran:  # no scheduler statistics: the CPU time of the process is the best that there is
        totals.add(m.HOST_LAUNCH_CPU, min(elapsed, leader.stat.cpu_seconds - before.stat.cpu_seconds))
    else:
        in_turn = [tid for tid in ran if tid == leader.pid or threads.get(tid, b"").startswith(AUTOGRAD)]
        busiest = max(ran, key=ran.__getitem__)
        launching = in_turn if sum(ran[tid] for tid in in_turn) >= ran[busiest] else [busiest]
        totals.add(m.HOST_LAUNCH_CPU, min(elapsed, sum(ran[tid] for tid in launching)))
        totals.add(m.HOST_LAUNCH_WAIT, min(elapsed, sum(waited[tid] for tid in launching)))
    totals.add(m.HOST_LAUNCH_BLOCKED, elapsed if leader.is_blocked else 0.0)


def add_workers(
    totals: Totals, workers: Mapping[Key, ProcessSample], before: Mapping[Key, ProcessSample], elapsed: float
) -> None:
    """Add what the workers did. A worker that was not there before has no increase yet."""
    active = 0
    for metric in (m.HOST_WORKER_CPU, m.HOST_WORKER_WAIT, m.HOST_WORKER_BLOCKED):
        totals.add(metric, 0.0)
    for key, worker in workers.items():
        earlier = before.get(key)
        if earlier is None:
            continue
        ran = worker.stat.cpu_seconds - earlier.stat.cpu_seconds
        waited = (worker.waited or 0.0) - (earlier.waited or 0.0)
        blocked = elapsed if worker.is_blocked else 0.0
        active += ran + waited + blocked > ACTIVE * elapsed
        totals.add(m.HOST_WORKER_CPU, ran)
        totals.add(m.HOST_WORKER_WAIT, waited)
        totals.add(m.HOST_WORKER_BLOCKED, blocked)
    totals.gauges[m.HOST_WORKERS] = float(len(workers))
    totals.gauges[m.HOST_WORKERS_ACTIVE] = float(active)


def add_tree(totals: Totals, processes: Mapping[Key, ProcessSample], before: Mapping[Key, ProcessSample]) -> None:
    """Add the CPU time and the major page faults of all processes of the GPU and their descendants."""
    totals.add(m.HOST_CPU, 0.0)
    totals.add(m.HOST_FAULTS, 0.0)
    for key, now in processes.items():
        if earlier := before.get(key):
            totals.add(m.HOST_CPU, now.stat.cpu_seconds - earlier.stat.cpu_seconds)
            totals.add(m.HOST_FAULTS, now.stat.major_faults - earlier.stat.major_faults)
