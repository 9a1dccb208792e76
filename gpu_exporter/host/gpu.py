"""The host evidence of one GPU: its processes from one poll to the next, and the totals made of them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import limits as limit_files
from gpu_exporter.host import procfs, sample
from gpu_exporter.host.cgroup import CpuLimit, Throttling
from gpu_exporter.host.files import HostFiles, why
from gpu_exporter.host.limits import Limits
from gpu_exporter.host.sample import ProcessSample, ThreadSample
from gpu_exporter.host.topology import Topology
from gpu_exporter.host.totals import (
    OF_PROCESSES,
    OF_SHARED_MEMORY,
    OF_WORKERS,
    Key,
    Totals,
    add_launching,
    add_tree,
    add_workers,
)
from gpu_exporter.host.tree import SCAN_SECONDS, Tree
from gpu_exporter.model.metric import Metric

# Of more processes on one GPU, those with the lowest PIDs are read.
MOST_PROCESSES = 512
# A thread never wakes up exactly after a period.
EARLY_SECONDS = 0.5
_PRESSURE = {(dict(row.labels)["scope"], dict(row.labels)["resource"]): row for row in m.HOST_PRESSURE}


@dataclass(frozen=True, slots=True)
class Machine:
    """What is read once for all GPUs: busy seconds by CPU, pressure by resource, and whether there is swap."""

    busy: Mapping[int, float]
    pressure: Mapping[str, float]
    has_swap: bool


@dataclass(slots=True)
class GpuHost:
    """Reads the processes of one GPU. `leader` is the one that launches most of its work."""

    topology: Topology
    totals: Totals = field(default_factory=Totals, init=False)
    missing: dict[Metric, str] = field(default_factory=dict, init=False)
    leader: ProcessSample | None = field(default=None, init=False)
    limits: Limits = field(default_factory=Limits, init=False)
    _trees: dict[int, Tree] = field(default_factory=dict, init=False)
    _before: dict[Key, ProcessSample] = field(default_factory=dict, init=False)
    _threads: dict[int, bytes] = field(default_factory=dict, init=False)
    _thread_samples: dict[int, ThreadSample] = field(default_factory=dict, init=False)
    _throttling: dict[CpuLimit, Throttling] = field(default_factory=dict, init=False)
    _bytes_read: dict[Key, int] = field(default_factory=dict, init=False)
    _pressure: dict[tuple[str, str, str], float] = field(default_factory=dict, init=False)
    _busy: Mapping[int, float] = field(default_factory=dict, init=False)
    _read_at: float | None = field(default=None, init=False)
    _scanned_at: float = field(default=-SCAN_SECONDS, init=False)

    def read(
        self, files: HostFiles, pids: Mapping[int, float], on_gpus: Container[int], machine: Machine, now: float
    ) -> None:
        """Look at the processes `pids` (with the latest time at which each may have started, in seconds since the boot)
        and add what changed since the last poll."""
        self.missing.clear()
        main = dict(self._processes(files, pids))
        if not main:
            self._forget("no_permission" if self.missing else "no_process" if pids else "")
            return
        thorough = now - self._scanned_at >= SCAN_SECONDS
        workers = self._workers(files, main, on_gpus, thorough=thorough)
        elapsed = 0.0 if self._read_at is None else now - self._read_at
        self._choose_leader(files, main, thorough=thorough)
        everything = {**main, **workers}
        threads = self._read_threads(files)
        if elapsed > 0:
            self._add(main, workers, threads, elapsed)
        self._thread_samples = threads
        self._add_machine(files, machine, elapsed)
        if thorough:
            self._scanned_at = now
            self._read_rarely(files, everything, machine)
        self._before, self._read_at = everything, now

    def is_due(self, now: float, period: float) -> bool:
        """Return whether the last poll was about a period ago."""
        return self._read_at is None or now - self._read_at > period - EARLY_SECONDS

    def _processes(self, files: HostFiles, pids: Mapping[int, float]) -> Iterator[tuple[Key, ProcessSample]]:
        for pid in sorted(pids)[:MOST_PROCESSES]:
            try:
                process = sample.process(files, pid)
            except PermissionError:
                self.missing[m.HOST_CPU] = "no_permission"
                continue
            # a process that started after the driver named its PID is another one
            if process and process.stat.started / procfs.TICKS <= pids[pid]:
                yield process.key, process

    def _workers(
        self, files: HostFiles, main: Mapping[Key, ProcessSample], on_gpus: Container[int], *, thorough: bool
    ) -> dict[Key, ProcessSample]:
        roots = {pid for pid, _ in main}
        self._trees = {pid: self._trees.get(pid) or Tree(pid) for pid in roots}
        workers = {}
        for tree in self._trees.values():
            try:
                tree.scan(files, on_gpus, thorough=thorough or not tree.pids)
                found = [(pid, sample.process(files, pid)) for pid in tree.pids]
            except PermissionError:
                found = []
            for pid, worker in found:
                if worker:
                    workers[worker.key] = worker
                else:
                    tree.forget(pid)
        if not any(tree.supported for tree in self._trees.values()):
            self._end(OF_WORKERS, "not_supported")
        return workers

    def _choose_leader(self, files: HostFiles, main: Mapping[Key, ProcessSample], *, thorough: bool) -> None:
        """Choose the process that launches: the one that used most CPU time since the last poll."""

        def used(process: ProcessSample) -> float:
            before = self._before.get(process.key)
            return process.stat.cpu_seconds - (before.stat.cpu_seconds if before else 0.0)

        before = self.leader
        leader = max(main.values(), key=used)
        if before and before.key in main and used(main[before.key]) >= 0.5 * used(leader):
            leader = main[before.key]  # not one, then the other
        changed = before is None or before.key != leader.key
        self.leader = leader
        if changed or thorough:
            self._threads = sample.launching_threads(files, leader.pid)
            self.limits = limit_files.limits(files, leader.pid)
        if changed:
            self._thread_samples = {}
            self._throttling, self._pressure = {}, {}

    def _read_threads(self, files: HostFiles) -> dict[int, ThreadSample]:
        leader = self.leader
        looked = {tid: sample.thread(files, leader.pid, tid) for tid in self._threads} if leader else {}
        return {tid: thread for tid, thread in looked.items() if thread}

    def _add(
        self,
        main: Mapping[Key, ProcessSample],
        workers: Mapping[Key, ProcessSample],
        threads: Mapping[int, ThreadSample],
        elapsed: float,
    ) -> None:
        leader = self.leader
        if leader and (before := self._before.get(leader.key)):
            add_launching(self.totals, leader, before, self._threads, threads, self._thread_samples, elapsed)
            if self.topology.has_remote:
                remote = leader.stat.cpu not in self.topology.local_cpus
                self.totals.add(m.HOST_REMOTE, elapsed if remote else 0.0)
        if m.HOST_WORKERS not in self.missing:
            add_workers(self.totals, workers, self._before, elapsed)
        add_tree(self.totals, {**main, **workers}, self._before)

    def _add_machine(self, files: HostFiles, machine: Machine, elapsed: float) -> None:
        totals, limits = self.totals, self.limits
        throttling = {limit: state for limit in limits.cpu_limits if (state := limit_files.throttling(files, limit))}
        if elapsed > 0:
            self._add_throttling(throttling)
        self._add_busy(machine, throttling, elapsed)
        self._throttling, self._busy = throttling, machine.busy
        readings = {("machine", "", resource): seconds for resource, seconds in machine.pressure.items()}
        if limits.pressure:
            of_cgroup = limit_files.pressures(files, limits.pressure)
            readings.update({("cgroup", limits.pressure, resource): seconds for resource, seconds in of_cgroup})
        for key, seconds in readings.items():
            if key in self._pressure and elapsed > 0:
                totals.add(_PRESSURE[key[0], key[2]], seconds - self._pressure[key])
        self._pressure = readings

    def _add_throttling(self, now: Mapping[CpuLimit, Throttling]) -> None:
        """Add the periods of the limit that throttled most: of several limits, one is enough to stop a process."""
        grown = [
            (state.throttled - before.throttled, state.periods - before.periods)
            for limit, state in now.items()
            if (before := self._throttling.get(limit))
        ]
        if grown:
            throttled, periods = max(grown)
            self.totals.add(m.HOST_PERIODS, periods)
            self.totals.add(m.HOST_THROTTLED, throttled)

    def _add_busy(self, machine: Machine, throttling: Mapping[CpuLimit, Throttling], elapsed: float) -> None:
        """Add for how many CPU seconds the CPUs that the process may use were busy, with its work or that of others."""
        limit = self.limits.tightest
        if limit is not None:
            now, before = throttling.get(limit), self._throttling.get(limit)
            if now and before and now.cpu_seconds is not None and before.cpu_seconds is not None and elapsed > 0:
                self.totals.add(m.HOST_CPUS_BUSY, now.cpu_seconds - before.cpu_seconds)
            self.totals.gauges[m.HOST_CPUS] = limit.cpus
            return
        cpus = [cpu for cpu in self.limits.cpus or machine.busy if cpu in machine.busy]
        if cpus and elapsed > 0:
            self.totals.add(
                m.HOST_CPUS_BUSY, sum(machine.busy[cpu] - self._busy.get(cpu, machine.busy[cpu]) for cpu in cpus)
            )
        if cpus:
            self.totals.gauges[m.HOST_CPUS] = float(len(cpus))

    def _read_rarely(self, files: HostFiles, processes: Mapping[Key, ProcessSample], machine: Machine) -> None:
        """Read what costs more: swap and bytes read of every process, and shared memory."""
        swapped, bytes_read = 0, {}
        for key, process in processes.items():
            try:
                if machine.has_swap and (status := procfs.status(files.proc(f"{process.pid}/status"))):
                    swapped += status.swap_bytes
                if (count := procfs.read_bytes(files.proc(f"{process.pid}/io"))) is not None:
                    bytes_read[key] = count
            except PermissionError as error:
                self.missing[m.HOST_READ] = why(error)
            except OSError:
                continue
        self.totals.gauges[m.HOST_SWAP] = float(swapped)
        if bytes_read:
            before = self._bytes_read
            self.totals.add(m.HOST_READ, sum(count - before.get(key, count) for key, count in bytes_read.items()))
        self._bytes_read = bytes_read
        self._read_shared_memory(files)
        if self.topology.has_remote and self.limits.cpus:
            local = len(self.limits.cpus & self.topology.local_cpus) / len(self.limits.cpus)
            self.totals.gauges[m.HOST_LOCAL_CPUS] = local

    def _read_shared_memory(self, files: HostFiles) -> None:
        gauges, reason = self.totals.gauges, ""
        try:
            usage = files.shared_memory(self.leader.pid) if self.leader else None
        except OSError as error:
            usage, reason = None, why(error)
        if usage:
            gauges[m.HOST_SHM_USED], gauges[m.HOST_SHM_LIMIT] = map(float, usage)
        else:
            self._end(OF_SHARED_MEMORY, reason)

    def values(self) -> Mapping[Metric, float]:
        """Return the values of the last poll; none if there was no process."""
        return self.totals.values() if self.leader else {}

    def _forget(self, reason: str) -> None:
        """Forget the processes, which are gone or hidden. Counters keep their totals."""
        self.leader, self._read_at = None, None
        self._trees, self._before, self._thread_samples = {}, {}, {}
        self._scanned_at = -SCAN_SECONDS
        self.totals.gauges.clear()
        if reason:
            self.missing.update(dict.fromkeys(OF_PROCESSES, reason))

    def _end(self, rows: tuple[Metric, ...], reason: str) -> None:
        """Drop the gauges of these rows: there is nothing to read them from. Counters keep their totals."""
        for row in rows:
            self.totals.gauges.pop(row, None)
            if reason:
                self.missing[row] = reason
