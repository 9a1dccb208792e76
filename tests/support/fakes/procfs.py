"""A procfs and a sysfs made of files, in which processes run, wait and end as a test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.procfs import TICKS

NANO = 1_000_000_000


@dataclass
class Task:
    """A process or thread as the kernel shows it; times in seconds."""

    pid: int
    name: bytes = b"python"
    state: str = "S"
    parent: int = 1
    started: int = 100
    cpu: float = 0.0
    ran: float = 0.0
    waited: float = 0.0
    faults: int = 0
    on_cpu: int = 0
    affinity: str = "0-15"
    uid: int = 1000
    swap_kib: int = 0
    read: int = 0
    cgroup: str = "0::/job\n"
    children: tuple[int, ...] = ()
    threads: dict[int, Task] = field(default_factory=dict)

    def run(self, cpu: float = 0.0, waited: float = 0.0) -> None:
        """Use a CPU for some seconds on the main thread, and wait for one."""
        self.cpu, self.ran, self.waited = self.cpu + cpu, self.ran + cpu, self.waited + waited


class FakeHost:
    """Files below `root`: `proc` and `sys`. `write` brings them up to date."""

    def __init__(self, root: Path, cpus: int = 16) -> None:
        self.proc, self.sys = root / "proc", root / "sys"
        self.files = HostFiles(self.proc, self.sys)
        self.tasks: dict[int, Task] = {}
        self.busy = [0.0] * cpus
        self.pressure = {"cpu": 0.0, "io": 0.0, "memory": 0.0}
        self.put("proc/swaps", "Filename Type Size Used Priority\n")
        self.put("sys/devices/system/node/has_cpu", "0\n")
        self.write()

    def put(self, path: str, content: str | bytes) -> None:
        """Write a file below the root."""
        file = self.proc.parent / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def add(self, task: Task) -> Task:
        """Add a process."""
        self.tasks[task.pid] = task
        self.write()
        return task

    def end(self, pid: int) -> None:
        """End a process."""
        del self.tasks[pid]
        rmtree(self.proc / str(pid))

    def gpu_on_node(self, pci: str, node: int, cpus: str) -> None:
        """Put the GPU at a PCI address, as the kernel writes it, on a NUMA node with these CPUs."""
        self.put(f"sys/bus/pci/devices/{pci}/numa_node", f"{node}\n")
        self.put(f"sys/bus/pci/devices/{pci}/local_cpulist", f"{cpus}\n")

    def limit(self, group: str, cpus: float | None, periods: int = 0, throttled: int = 0, used: float = 0.0) -> None:
        """Set the CPU limit and the statistics of a cgroup of version 2."""
        quota = "max" if cpus is None else str(int(cpus * 100_000))
        self.put(f"sys/fs/cgroup{group}/cpu.max", f"{quota} 100000\n")
        content = f"usage_usec {int(used * 1e6)}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5\n"
        self.put(f"sys/fs/cgroup{group}/cpu.stat", content)

    def write(self) -> None:
        """Bring all files up to date."""
        lines = ["cpu  0 0 0 0 0 0 0 0 0 0"]
        lines += [f"cpu{n} {int(busy * TICKS)} 0 0 9 9 0 0 0 0 0" for n, busy in enumerate(self.busy)]
        self.put("proc/stat", "\n".join(lines) + "\nintr 5\n")
        for resource, seconds in self.pressure.items():
            self.put(f"proc/pressure/{resource}", _pressure(seconds))
        for task in self.tasks.values():
            self._write(f"proc/{task.pid}", task)
            for thread in (task, *task.threads.values()):
                place = f"proc/{task.pid}/task/{thread.pid}"
                self._write(place, thread)
                self.put(f"{place}/children", " ".join(map(str, thread.children)) + " ")

    def _write(self, place: str, task: Task) -> None:
        total = task.cpu + sum(thread.cpu for thread in task.threads.values())
        after = ["0"] * 50
        after[0:2] = [task.state, str(task.parent)]
        after[9], after[11], after[19], after[36] = (
            str(task.faults),
            str(round(total * TICKS)),
            str(task.started),
            str(task.on_cpu),
        )
        self.put(f"{place}/stat", b"%d (%s) " % (task.pid, task.name) + " ".join(after).encode() + b"\n")
        self.put(f"{place}/schedstat", f"{round(task.ran * NANO)} {round(task.waited * NANO)} 7\n")
        status = (
            f"Name:\tx\nUid:\t{task.uid}\t0\t0\t0\nVmSwap:\t{task.swap_kib} kB\nCpus_allowed_list:\t{task.affinity}\n"
        )
        self.put(f"{place}/status", status)
        self.put(f"{place}/cgroup", task.cgroup)
        self.put(f"{place}/io", f"rchar: 1\nread_bytes: {task.read}\n")
        self.put(f"{place}/cmdline", "python\0train.py\0")
        (self.proc.parent / place / "root/dev/shm").mkdir(parents=True, exist_ok=True)


def _pressure(seconds: float) -> str:
    averages = "avg10=0.00 avg60=0.00 avg300=0.00"
    return f"some {averages} total={int(seconds * 1e6)}\nfull {averages} total=0\n"
