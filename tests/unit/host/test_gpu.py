"""The evidence of one GPU: what its processes did between two polls, whatever happens to them meanwhile."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host import limits, procfs
from gpu_exporter.host.gpu import MOST_PROCESSES, GpuHost, Machine, topology
from gpu_exporter.model.metric import Metric
from tests.support.fakes.procfs import FakeHost, Task

MAIN, PCI = 100, "00000000:1B:00.0"
PRESSURE = {(dict(row.labels)["scope"], dict(row.labels)["resource"]): row for row in m.HOST_PRESSURE}


class Watched:
    """A GPU whose host is looked at once a second."""

    def __init__(self, root: Path, *, numa: bool = False) -> None:
        self.host = FakeHost(root)
        if numa:
            self.host.put("sys/devices/system/node/has_cpu", "0-1\n")
            self.host.gpu_on_node("0000:1b:00.0", 1, "8-15")
        self.pids: dict[int, float] = {MAIN: math.inf}
        self.now = 0.0
        self.gpu = GpuHost(topology(PCI, self.host.files.sys))

    def poll(self, seconds: float = 1.0, on_gpus: set[int] | None = None) -> Mapping[Metric, float]:
        """Look again after some seconds; return the values."""
        self.now += seconds
        self.host.write()
        files = self.host.files
        machine = Machine(
            procfs.busy_seconds(files.proc("stat")),
            dict(limits.pressures(files, "")),
            files.proc("swaps").count(b"\n") > 1,
        )
        self.gpu.read(files, self.pids, on_gpus or set(self.pids), machine, self.now)
        return self.gpu.values()

    def after(self, change: Callable[[], None], seconds: float = 1.0) -> Mapping[Metric, float]:
        """Return how the values differ after a change."""
        before = self.poll()
        change()
        return {metric: value - before.get(metric, 0.0) for metric, value in self.poll(seconds).items()}


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_the_launching_thread_runs_and_waits(watched: Watched) -> None:
    """CPU time and run queue delay of the main thread."""
    main = watched.host.add(Task(MAIN))

    grown = watched.after(lambda: main.run(0.7, 0.2))

    assert grown[m.HOST_LAUNCH_CPU] == pytest.approx(0.7)
    assert grown[m.HOST_LAUNCH_WAIT] == pytest.approx(0.2)
    assert grown[m.HOST_LAUNCH_BLOCKED] == 0


def test_main_and_autograd_thread_launch_in_turn(watched: Watched) -> None:
    """Each runs half of the time, and together they leave no time: one launching thread is saturated."""
    autograd, other = Task(101, b"pt_autograd_0"), Task(102, b"pin_memory")
    main = watched.host.add(Task(MAIN, threads={101: autograd, 102: other}))

    def work() -> None:
        main.run(0.45)
        autograd.run(0.5)
        other.run(0.1)

    assert watched.after(work)[m.HOST_LAUNCH_CPU] == pytest.approx(0.95)


def test_a_busier_thread_counts_instead(watched: Watched) -> None:
    """A thread that holds the interpreter all the time, while the main thread waits for it."""
    other = Task(102, b"Thread-1", cpu=5.0, ran=5.0)
    main = watched.host.add(Task(MAIN, threads={102: other}))

    def work() -> None:
        main.run(0.05)
        other.run(0.97, 0.02)

    grown = watched.after(work)

    assert grown[m.HOST_LAUNCH_CPU] == pytest.approx(0.97)
    assert grown[m.HOST_LAUNCH_WAIT] == pytest.approx(0.02)


def test_without_scheduler_statistics_the_process_counts(watched: Watched) -> None:
    """CPU time is known from `stat`; run queue delay is not known, so it has no value."""
    main = watched.host.add(Task(MAIN))

    def work() -> None:
        main.cpu += 0.6

    watched.host.write = lambda: _without_schedstat(watched.host)  # type: ignore[method-assign]
    grown = watched.after(work)

    assert grown[m.HOST_LAUNCH_CPU] == pytest.approx(0.6)
    assert m.HOST_LAUNCH_WAIT not in grown


def _without_schedstat(host: FakeHost) -> None:
    FakeHost.write(host)
    for path in host.proc.rglob("schedstat"):
        path.unlink()


def test_workers_run_wait_and_are_blocked(watched: Watched) -> None:
    """Children of the main thread and of other threads, and their children; an idle one does not count as active."""
    host = watched.host
    busy, blocked, deep, idle = (host.add(Task(pid)) for pid in (201, 202, 203, 204))
    loader = Task(101, b"loader", children=(202,))
    host.add(Task(MAIN, children=(201, 204), threads={101: loader}))
    busy.children = (203,)

    def work() -> None:
        busy.run(0.9, 0.1)
        deep.run(0.5)
        blocked.state = "D"
        idle.run(0.01)

    grown = watched.after(work)

    assert grown[m.HOST_WORKER_CPU] == pytest.approx(1.41)
    assert grown[m.HOST_WORKER_WAIT] == pytest.approx(0.1)
    assert grown[m.HOST_WORKER_BLOCKED] == pytest.approx(1.0)
    assert watched.gpu.values()[m.HOST_WORKERS] == 4
    assert watched.gpu.values()[m.HOST_WORKERS_ACTIVE] == 3


def test_a_rank_is_no_worker_of_its_parent(watched: Watched) -> None:
    """A process that uses a GPU itself, and its workers, belong to its own GPU."""
    host = watched.host
    host.add(Task(MAIN, children=(300,)))
    rank, worker = host.add(Task(300, children=(301,))), host.add(Task(301))

    def work() -> None:
        rank.run(1.0)
        worker.run(1.0)

    watched.poll(on_gpus={MAIN, 300})
    work()
    values = watched.poll(on_gpus={MAIN, 300})

    assert values[m.HOST_WORKERS] == 0
    assert values[m.HOST_CPU] == 0


def test_a_kernel_that_lists_no_children(watched: Watched) -> None:
    """Metrics of workers are absent, with the reason."""
    watched.host.add(Task(MAIN))
    watched.host.write()
    (watched.host.proc / f"{MAIN}/task/{MAIN}/children").unlink()
    watched.host.write = lambda: None  # type: ignore[method-assign]

    assert m.HOST_WORKERS not in watched.poll()
    assert m.HOST_WORKERS not in watched.poll()
    assert watched.gpu.missing[m.HOST_WORKER_CPU] == "not_supported"


def test_processes_that_vanish(watched: Watched) -> None:
    """Counters continue; without any process there is no value."""
    host = watched.host
    main, worker = host.add(Task(MAIN, children=(201,))), host.add(Task(201))
    watched.poll()
    main.run(0.5)
    worker.run(0.5)
    first = watched.poll()
    host.end(201)
    main.run(0.5)
    second = watched.poll()
    host.end(MAIN)
    third = watched.poll()
    watched.pids = {}
    fourth = watched.poll()

    assert first[m.HOST_CPU] == pytest.approx(1.0)
    assert second[m.HOST_CPU] == pytest.approx(1.5)
    assert (third, fourth) == ({}, {})
    host.add(Task(MAIN, started=900))
    watched.pids = {MAIN: math.inf}
    watched.poll()
    assert watched.poll()[m.HOST_CPU] == pytest.approx(1.5)


def test_a_reused_pid_is_another_process(watched: Watched) -> None:
    """Its CPU time is no increase of the time of the first; one that started after the driver named it is left out."""
    watched.host.add(Task(MAIN, cpu=5.0, ran=5.0))
    watched.poll()
    watched.poll()
    watched.host.end(MAIN)
    watched.host.add(Task(MAIN, started=500, cpu=9.0, ran=9.0))
    watched.poll()

    assert watched.poll()[m.HOST_LAUNCH_CPU] == 0

    watched.pids = {MAIN: 499 / procfs.TICKS}
    assert watched.poll() == {}


def test_throttling_of_any_level(watched: Watched) -> None:
    """The limit that stops the process counts, and the CPUs that the tightest allows."""
    main = watched.host.add(Task(MAIN, cgroup="0::/pod/container\n"))
    watched.host.limit("/pod", 2.0, periods=100, throttled=0, used=1.0)
    watched.host.limit("/pod/container", 0.5, periods=100, throttled=10, used=1.0)

    def work() -> None:
        main.run(0.5)
        watched.host.limit("/pod", 2.0, periods=110, throttled=0, used=1.5)
        watched.host.limit("/pod/container", 0.5, periods=110, throttled=19, used=1.5)

    grown = watched.after(work)

    assert (grown[m.HOST_PERIODS], grown[m.HOST_THROTTLED]) == (10, 9)
    assert watched.gpu.values()[m.HOST_CPUS] == 0.5
    assert grown[m.HOST_CPUS_BUSY] == pytest.approx(0.5)


@pytest.mark.parametrize("seen", ["/../../pod/container", "/../../../slice/pod/container", "/slice/pod/container"])
def test_a_cgroup_outside_the_namespace(watched: Watched, seen: str) -> None:
    """A reader in a container sees cgroups of other containers relative to its own."""
    main = watched.host.add(Task(MAIN, cgroup=f"0::{seen}\n"))
    watched.host.limit("/other/pod2/container", 1.0)
    watched.host.limit("/slice/pod/container", 0.5, periods=100)

    def work() -> None:
        main.run(0.5)
        watched.host.limit("/slice/pod/container", 0.5, periods=110, throttled=9)

    assert watched.after(work)[m.HOST_THROTTLED] == 9


def test_busy_cpus_of_the_affinity(watched: Watched) -> None:
    """Only those that the process may use count, whoever uses them."""
    watched.host.add(Task(MAIN, affinity="2-3"))

    def work() -> None:
        watched.host.busy[3] += 0.8
        watched.host.busy[5] += 1.0

    grown = watched.after(work)

    assert grown[m.HOST_CPUS_BUSY] == pytest.approx(0.8)
    assert watched.gpu.values()[m.HOST_CPUS] == 2


def test_pressure_of_cgroup_and_machine(watched: Watched) -> None:
    """In seconds, from files in microseconds."""
    watched.host.add(Task(MAIN, cgroup="0::/job\n"))
    place = "sys/fs/cgroup/job/cpu.pressure"
    line = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    watched.host.put(place, line.format(1_000_000))

    def work() -> None:
        watched.host.put(place, line.format(1_300_000))
        watched.host.pressure["io"] += 0.4

    grown = watched.after(work)

    assert grown[PRESSURE["cgroup", "cpu"]] == pytest.approx(0.3)
    assert grown[PRESSURE["machine", "io"]] == pytest.approx(0.4)
    assert PRESSURE["cgroup", "io"] not in grown


def test_another_numa_node(tmp_path: Path) -> None:
    """The CPU that it last ran on is not one of the GPU's, and a quarter of its affinity is."""
    watched = Watched(tmp_path, numa=True)
    main = watched.host.add(Task(MAIN, affinity="4-11", on_cpu=5))

    grown = watched.after(lambda: main.run(0.5), 2.0)

    assert grown[m.HOST_REMOTE] == pytest.approx(2.0)
    assert watched.gpu.values()[m.HOST_LOCAL_CPUS] == 0.5
    main.on_cpu = 9
    assert watched.poll()[m.HOST_REMOTE] == pytest.approx(3.0 - 1.0)


def test_one_numa_node_has_no_remote_time(watched: Watched) -> None:
    """Also if the kernel does not know the node of the GPU."""
    watched.host.add(Task(MAIN))

    assert m.HOST_REMOTE not in {**watched.poll(), **watched.poll()}


def test_swap_reads_and_major_faults(watched: Watched) -> None:
    """Of the process and its workers. Swap is read only on machines that have any."""
    host = watched.host
    main, worker = host.add(Task(MAIN, children=(201,), swap_kib=3)), host.add(Task(201, swap_kib=5))
    assert watched.poll()[m.HOST_SWAP] == 0
    host.put("proc/swaps", "Filename Type Size Used Priority\n/dev/dm-0 partition 1 1 -2\n")

    def work() -> None:
        main.faults, worker.faults = 7, 30
        worker.read = 5000

    work()
    values = watched.poll(20.0)

    assert values[m.HOST_SWAP] == 8 << 10
    assert values[m.HOST_FAULTS] == 37
    assert values[m.HOST_READ] == 5000


def test_shared_memory(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the process sees it; without the permission to look there, absent with the reason."""
    watched.host.add(Task(MAIN))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=100, f_bfree=25, f_frsize=4096))
    values = watched.poll()
    assert (values[m.HOST_SHM_USED], values[m.HOST_SHM_LIMIT]) == (75 * 4096, 100 * 4096)

    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "statvfs", refuse)
    assert m.HOST_SHM_USED not in watched.poll(20.0)
    assert watched.gpu.missing[m.HOST_SHM_USED] == "no_permission"


def test_hidden_processes(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `hidepid`, files of other users cannot be opened, or their processes do not exist."""
    watched.host.add(Task(MAIN))
    opened = os.open

    def refuse(path: str, *arguments: int) -> int:
        if f"/proc/{MAIN}/" in str(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    assert watched.poll() == {}
    assert watched.gpu.missing[m.HOST_LAUNCH_CPU] == "no_permission"
    monkeypatch.undo()
    watched.host.end(MAIN)
    assert watched.poll() == {}
    assert watched.gpu.missing[m.HOST_LAUNCH_CPU] == "no_process"


@pytest.mark.slow
@pytest.mark.parametrize(("count", "read"), [(500, 500), (MOST_PROCESSES + 100, MOST_PROCESSES)])
def test_many_processes_on_one_gpu(watched: Watched, count: int, read: int) -> None:
    """Up to a limit, so that a poll takes a bounded time."""
    watched.pids = dict.fromkeys(range(1000, 1000 + count), math.inf)
    for pid in watched.pids:
        watched.host.tasks[pid] = Task(pid)

    def work() -> None:
        for task in watched.host.tasks.values():
            task.run(0.01)

    assert watched.after(work)[m.HOST_CPU] == pytest.approx(read * 0.01)


def test_files_are_only_read(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a procfs or sysfs that is mounted read-only suffices."""
    main = watched.host.add(Task(MAIN))
    opened, modes = os.open, set[int]()

    def note(path: str, flags: int, *arguments: int) -> int:
        modes.add(flags & (os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        return opened(path, flags, *arguments)

    monkeypatch.setattr(os, "open", note)
    assert watched.after(lambda: main.run(0.5))[m.HOST_LAUNCH_CPU] == 0.5
    assert modes == {os.O_RDONLY}


def test_two_processes_take_turns_as_the_leader_only_if_one_is_much_busier(watched: Watched) -> None:
    """The totals of one launching thread are not mixed from two at each poll."""
    first, second = watched.host.add(Task(MAIN)), watched.host.add(Task(150))
    watched.pids[150] = math.inf
    watched.poll()
    first.run(0.5)
    watched.poll()
    for _ in range(3):
        first.run(0.4)
        second.run(0.5)
        watched.poll()
        leader = watched.gpu.leader
        assert leader is not None
        assert leader.pid == MAIN
    second.run(1.0)
    watched.poll()
    leader = watched.gpu.leader
    assert leader is not None
    assert leader.pid == 150
