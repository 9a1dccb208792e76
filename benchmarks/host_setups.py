"""The cases of `benchmarks.host_causes`: a workload each, and the environment that makes the host its limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# A quarter of a CPU, in microseconds; with periods of 100 ms, as Kubernetes sets them.
QUOTA, PERIOD = 25_000, 100_000
COMPETITORS = 3
SHM_MIB = 256


class Skipped(Exception):
    """A case that this machine cannot run, with the reason."""


# Does something to the running workload, given its PID.
After = Callable[[int], None]
Setup = Callable[[ExitStack], tuple[Sequence[str], After]]


@dataclass(frozen=True)
class Case:
    """A workload in an environment, with the host modes that are true of it.

    `setup` returns the words before the command, and what to do when the workload runs, because PyTorch starts slowly
    where CPU time is short. It raises Skipped.
    """

    name: str
    work: str
    truth: frozenset[str]
    how: str
    setup: Setup


def start(stack: ExitStack, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
    """Start a command that ends with the case, with all its children."""
    environment = {**os.environ, "HOST_CASE": name, "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, env=environment
    )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()
        time.sleep(1)  # the driver lists a process for a moment after its end

    stack.callback(end)
    return child


def workload(name: str) -> list[str]:
    """Return the command of a workload."""
    return [sys.executable, "-m", "benchmarks.host_workloads", name]


def nothing(pid: int) -> None:
    """Do nothing to the running workload."""


def plain(stack: ExitStack) -> tuple[Sequence[str], After]:
    """Change nothing."""
    return (), nothing


def shared_core(stack: ExitStack) -> tuple[Sequence[str], After]:
    """Use one CPU together with busy loops of other processes."""
    cpu = str(max(os.sched_getaffinity(0)))

    def compete(pid: int) -> None:
        for _ in range(COMPETITORS):
            start(stack, ["taskset", "-c", cpu, sys.executable, "-c", "while True: pass"], "competitor")

    return ("taskset", "-c", cpu), compete


def cpu_limit(stack: ExitStack) -> tuple[Sequence[str], After]:
    """Run in a cgroup with a CPU limit, of cgroup v2 or v1."""
    for directory, files in _cgroup_candidates():
        group = directory / "host_causes"
        try:
            group.mkdir(exist_ok=True)
            for name, value in files:
                with (group / name).open("r+") as file:  # a folder that is no cgroup has no such file
                    file.write(value)
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        stack.callback(_remove, group)
        return (), _mover(group / "cgroup.procs")
    raise Skipped("no writable cgroup with the cpu controller")


def _mover(file: Path) -> After:
    def move(pid: int) -> None:
        file.write_text(str(pid))
        if file.parent.name not in Path(f"/proc/{pid}/cgroup").read_text():
            raise Skipped(f"{file} does not move processes")

    return move


def _cgroup_candidates() -> list[tuple[Path, list[tuple[str, str]]]]:
    _delegate()
    v2 = [("cpu.max", f"{QUOTA} {PERIOD}")]
    v1 = [("cpu.cfs_period_us", str(PERIOD)), ("cpu.cfs_quota_us", str(QUOTA))]
    return [
        (CGROUPS, v2),
        (CGROUPS / "cpu", v1),
        (CGROUPS / "cpu,cpuacct", v1),
        *((path, v2) for path in _own_cgroups()),
    ]


def _delegate() -> None:
    """Enable the cpu controller below the root of a v2 hierarchy.

    That fails where processes are in the root. With HOST_CAUSES_MOVE=1 in the environment, they are first moved to a
    cgroup of their own.
    """
    if os.environ.get("HOST_CAUSES_MOVE") == "1" and (CGROUPS / "cgroup.subtree_control").exists():
        rest = CGROUPS / "host_causes_rest"
        with suppress(OSError):
            rest.mkdir(exist_ok=True)
            for pid in (CGROUPS / "cgroup.procs").read_text().split():
                with suppress(OSError):  # a kernel thread, or one that has ended
                    (rest / "cgroup.procs").write_text(pid)
    with suppress(OSError):
        (CGROUPS / "cgroup.subtree_control").write_text("+cpu")


def _own_cgroups() -> list[Path]:
    """Return the cgroup of this process and those above it, in a writable v2 hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::/"):
            own = CGROUPS / line[4:]
            return [own, *(path for path in own.parents if path.is_relative_to(CGROUPS))]
    return []


def _remove(group: Path) -> None:
    for _ in range(50):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return


def small_shm(stack: ExitStack) -> tuple[Sequence[str], After]:
    """Give the workload a /dev/shm of its own that is nearly full, in a mount namespace of its own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        raise Skipped("needs root and unshare")
    probe = subprocess.run(
        ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode:
        raise Skipped(f"no tmpfs can be mounted here: {probe.stderr.strip()}")
    fill = f"dd if=/dev/zero of=/dev/shm/fill bs=1M count={SHM_MIB * 95 // 100} 2>/dev/null"
    script = f'mount -t tmpfs -o size={SHM_MIB}m tmpfs /dev/shm && {fill}; exec "$@"'
    return ("unshare", "-m", "sh", "-c", script, "sh"), nothing


def far_node(stack: ExitStack) -> tuple[Sequence[str], After]:
    """Run on the CPUs of another NUMA node than the first GPU's."""
    devices = sorted(path for path in Path("/sys/bus/pci/drivers/nvidia").glob("*:*") if (path / "numa_node").exists())
    node = (devices[0] / "numa_node").read_text().strip() if devices else "-1"
    others = [path for path in Path("/sys/devices/system/node").glob("node[0-9]*") if path.name != f"node{node}"]
    lists = [text for path in others if (text := (path / "cpulist").read_text().strip())]
    if node == "-1" or not lists:
        raise Skipped("one NUMA node")
    return ("taskset", "-c", lists[0]), nothing


def storage(stack: ExitStack) -> tuple[Sequence[str], After]:
    """Give the workload a directory on a disk, for files that are read past the page cache."""
    for parent in (os.environ.get("HOST_CAUSES_DISK", ""), os.getcwd(), "/var/tmp", "/tmp", "/root"):
        if not parent or not os.access(parent, os.W_OK):
            continue
        directory = tempfile.mkdtemp(dir=parent)
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        try:
            descriptor = os.open(f"{directory}/probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        except OSError:
            continue
        os.close(descriptor)
        return ("env", f"HOST_DATA={directory}"), nothing
    raise Skipped("no directory that supports O_DIRECT: set HOST_CAUSES_DISK")


def _truth(*modes: str) -> frozenset[str]:
    return frozenset(modes)


CASES = (
    Case("healthy_train", "train", _truth(), "large matrix products, GPU busy", plain),
    Case("healthy_loader", "loader_light", _truth(), "8 workers with little to do, GPU busy", plain),
    Case("healthy_python", "python_hidden", _truth(), "Python beside the GPU's work, GPU busy", plain),
    Case("healthy_holder", "hold", _truth(), "a process that holds the GPU and does nothing", plain),
    Case("busy_python", "python_busy", _truth("GpuLaunchThreadSaturated"), "Python loop between launches", plain),
    Case("tiny_kernels", "tiny", _truth("GpuLaunchThreadSaturated"), "many tiny kernels, launched one by one", plain),
    Case(
        "shared_core", "python_hidden", _truth("GpuHostCpuStarved"), "taskset: one CPU with 3 busy loops", shared_core
    ),
    Case("cpu_max", "python_hidden", _truth("GpuHostThrottled"), "CPU limit of a quarter of a CPU", cpu_limit),
    Case("loader_cpu", "loader_cpu", _truth("GpuLoaderCpuBound"), "a worker per CPU but two, CPU-heavy", plain),
    Case("loader_storage", "loader_storage", _truth("GpuLoaderStorageBound"), "8 workers, small direct reads", storage),
    Case("one_worker", "loader_one", _truth("GpuLoaderTooFewWorkers"), "one CPU-heavy worker", plain),
    Case("full_shm", "train", _truth("GpuSharedMemoryFull"), "a /dev/shm that is 95 % full, GPU busy", small_shm),
    Case("far_node", "python_paced", _truth("GpuRemoteNumaNode"), "CPUs of another NUMA node", far_node),
)
