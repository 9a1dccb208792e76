"""The processes on a GPU and those below them, such as loader workers, and what their files say at one moment.

Vanished processes are no error.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles

BLOCKED = b"D"
ENDED = frozenset({b"Z", b"X", b"x"})
# The threads of PyTorch that launch the kernels of the backward pass, while the main thread waits for them.
AUTOGRAD = b"pt_autograd"
MOST_THREADS, CANDIDATES = 4096, 3


class ProcessSample(NamedTuple):
    """A process with its CPU seconds (all threads), and those of its main thread: on a CPU, and waiting for one.

    `ran` and `waited` are None on a kernel without scheduler statistics.
    """

    pid: int
    stat: procfs.Stat
    ran: float | None
    waited: float | None

    @property
    def key(self) -> tuple[int, int]:
        """Its identity: PIDs are reused."""
        return self.pid, self.stat.started

    @property
    def is_blocked(self) -> bool:
        """Whether its main thread is in uninterruptible sleep, which nearly always is a wait for storage."""
        return self.stat.state == BLOCKED


class ThreadSample(NamedTuple):
    """A thread: seconds on a CPU, and waiting for one."""

    ran: float
    waited: float


def process(files: HostFiles, pid: int) -> ProcessSample | None:
    """Return a process; None if it has ended or cannot be seen. Raises PermissionError."""
    stat = procfs.stat(files.process(f"{pid}/stat"))
    if stat is None or stat.state in ENDED:
        return None
    scheduled = procfs.schedstat(files.process(f"{pid}/schedstat"))
    return ProcessSample(pid, stat, *(scheduled or (None, None)))


def thread(files: HostFiles, pid: int, tid: int) -> ThreadSample | None:
    """Return a thread; None if it has ended, or on a kernel without scheduler statistics."""
    scheduled = procfs.schedstat(files.process(f"{pid}/task/{tid}/schedstat"))
    return ThreadSample(*scheduled) if scheduled else None


def launching_threads(files: HostFiles, pid: int) -> dict[int, bytes]:
    """Return the threads that may launch kernels, with their names: the main thread, PyTorch's autograd threads, and
    those with the most CPU time so far."""
    names, ran = {pid: b""}, {}
    for tid in _threads(files, pid):
        if stat := procfs.stat(files.process(f"{pid}/task/{tid}/stat")):
            ran[tid] = stat.cpu_seconds
            if tid == pid or stat.name.startswith(AUTOGRAD):
                names[tid] = stat.name
            elif stat.cpu_seconds > 0:
                names.setdefault(tid, stat.name)
    busiest = sorted(ran, key=ran.__getitem__, reverse=True)[:CANDIDATES]
    return {tid: name for tid, name in names.items() if tid in busiest or tid == pid or name.startswith(AUTOGRAD)}


def children(files: HostFiles, pid: int, *, thorough: bool) -> set[int]:
    """Return the children of a process: those of its main thread, which forks in nearly all programs, or `thorough`.

    Raises FileNotFoundError if the kernel does not list children.
    """
    tids = _threads(files, pid) if thorough else (pid,)
    pids: set[int] = set()
    missing = 0
    for tid in tids:
        try:
            pids.update(procfs.children(files.proc(f"{pid}/task/{tid}/children", 1 << 16)))
        except FileNotFoundError:
            missing += 1
        except OSError:
            continue
    if tids and missing == len(tids) and files.process(f"{pid}/stat"):
        raise FileNotFoundError(f"{pid}: the kernel lists no children")
    return pids


def _threads(files: HostFiles, pid: int) -> list[int]:
    try:
        return list(files.threads(pid, MOST_THREADS))
    except OSError:
        return []


# How often all threads are asked for their children, and limits are read again.
SCAN_SECONDS = 10.0
MOST_DESCENDANTS = 1024


@dataclass(slots=True)
class Tree:
    """The descendants of the process `root`, without those that use a GPU themselves and without what these started."""

    root: int
    pids: frozenset[int] = frozenset()
    supported: bool = True
    # Those that only a thorough scan finds: children of other threads, and grandchildren.
    _deep: frozenset[int] = field(default=frozenset())

    def scan(self, files: HostFiles, on_gpus: Container[int], *, thorough: bool) -> None:
        """Look for descendants: children of the main thread only, or `thorough`."""
        try:
            direct = {pid for pid in children(files, self.root, thorough=thorough) if pid not in on_gpus}
        except FileNotFoundError:
            self.supported = False
            return
        self.supported = True
        if thorough:
            self._deep = frozenset(self._descendants(files, direct, on_gpus))
        self.pids = frozenset(direct) | self._deep

    def forget(self, pid: int) -> None:
        """Forget a descendant that has ended."""
        self.pids -= {pid}
        self._deep -= {pid}

    def _descendants(self, files: HostFiles, direct: set[int], on_gpus: Container[int]) -> set[int]:
        seen, waiting = set(direct), list(direct)
        while waiting and len(seen) < MOST_DESCENDANTS:
            try:
                more = children(files, waiting.pop(), thorough=True)
            except FileNotFoundError:  # it has ended
                continue
            new = {pid for pid in more if pid not in seen and pid not in on_gpus}
            seen |= new
            waiting.extend(new)
        return seen
