"""The processes that use the CPUs of another one. Scans all of /proc: only for a diagnosis that someone waits for."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from gpu_exporter.host import procfs
from gpu_exporter.host.files import HostFiles
from gpu_exporter.io.decoding import printable

SECONDS = 1.0
# A process that uses less than this share of a CPU is no competitor.
LEAST_SHARE, MOST_NEIGHBOURS = 0.05, 3


class Neighbour(NamedTuple):
    """A process that last ran on one of the CPUs, and its use of CPU time as a number of CPUs."""

    pid: int
    name: str
    cpus: float


def neighbours(files: HostFiles, pid: int, seconds: float = SECONDS) -> list[Neighbour]:
    """Return the busiest other processes on the CPUs that a process may use, the busiest first. Takes `seconds`."""
    try:
        status = procfs.status(files.proc(f"{pid}/status"))
    except OSError:
        return []
    before, begin = _stats(files), time.monotonic()
    time.sleep(seconds)
    after, elapsed = _stats(files), time.monotonic() - begin
    found = []
    for other, stat in after.items():
        earlier = before.get(other)
        if earlier is None or other in (pid, os.getpid()) or earlier.started != stat.started:
            continue
        used = (stat.cpu_seconds - earlier.cpu_seconds) / elapsed
        if used >= LEAST_SHARE and (status is None or stat.cpu in status.cpus):
            found.append(Neighbour(other, printable(stat.name.decode("utf-8", "replace"), 64), used))
    return sorted(found, key=lambda neighbour: -neighbour.cpus)[:MOST_NEIGHBOURS]


def _stats(files: HostFiles) -> dict[int, procfs.Stat]:
    stats = {}
    for pid in files.pids():
        try:
            stat = procfs.stat(files.proc(f"{pid}/stat"))
        except OSError:
            continue
        if stat:
            stats[pid] = stat
    return stats
