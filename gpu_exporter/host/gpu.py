"""The host evidence of one GPU: its processes from one poll to the next, and totals of them that only rise.

Also where the GPU is: its NUMA node, and the CPUs next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import limits as limit_files
from gpu_exporter.host import processes, procfs
from gpu_exporter.host.cgroup import CpuLimit, Throttling
from gpu_exporter.host.files import HostFiles, why
from gpu_exporter.host.limits import Limits
from gpu_exporter.host.processes import AUTOGRAD, SCAN_SECONDS, ProcessSample, ThreadSample, Tree
from gpu_exporter.host.procfs import cpu_list
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.pci import pci_bus_id

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
class HostTotals:
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
    totals: HostTotals,
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
    totals: HostTotals, workers: Mapping[Key, ProcessSample], before: Mapping[Key, ProcessSample], elapsed: float
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


def add_tree(totals: HostTotals, processes: Mapping[Key, ProcessSample], before: Mapping[Key, ProcessSample]) -> None:
    """Add the CPU time and the major page faults of all processes of the GPU and their descendants."""
    totals.add(m.HOST_CPU, 0.0)
    totals.add(m.HOST_FAULTS, 0.0)
    for key, now in processes.items():
        if earlier := before.get(key):
            totals.add(m.HOST_CPU, now.stat.cpu_seconds - earlier.stat.cpu_seconds)
            totals.add(m.HOST_FAULTS, now.stat.major_faults - earlier.stat.major_faults)


@dataclass(frozen=True, slots=True)
class Topology:
    """The NUMA nodes of the machine that have CPUs, and the CPUs that are local to a GPU."""

    nodes: int
    local_cpus: frozenset[int]

    @property
    def has_remote(self) -> bool:
        """Whether a process can run on a node other than that of the GPU."""
        return self.nodes > 1 and bool(self.local_cpus)


def topology(pci: str, read: Callable[[str], bytes]) -> Topology:
    """Return the place of the GPU at a PCI address. `read` returns a file below /sys, and raises OSError.

    The kernel lists the local CPUs by the PCIe root port, so they are right on machines with several roots per node. On
    virtual machines the node is often -1, and all CPUs count as local.
    """
    try:
        nodes = len(cpu_list(read("devices/system/node/has_cpu")))
        device = f"bus/pci/devices/{pci_bus_id(pci)[4:].lower()}"  # the kernel writes four digits of the domain
        node = read(f"{device}/numa_node").strip()
        local = cpu_list(read(f"{device}/local_cpulist")) if node.isdigit() else frozenset[int]()
    except OSError:
        return Topology(0, frozenset())
    return Topology(nodes, local)


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
    totals: HostTotals = field(default_factory=HostTotals, init=False)
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
                process = processes.process(files, pid)
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
                found = [(pid, processes.process(files, pid)) for pid in tree.pids]
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
            self._threads = processes.launching_threads(files, leader.pid)
            self.limits = limit_files.limits(files, leader.pid)
        if changed:
            self._thread_samples = {}
            self._throttling, self._pressure = {}, {}

    def _read_threads(self, files: HostFiles) -> dict[int, ThreadSample]:
        leader = self.leader
        looked = {tid: processes.thread(files, leader.pid, tid) for tid in self._threads} if leader else {}
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
