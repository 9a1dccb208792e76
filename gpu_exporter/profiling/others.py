"""Whether somebody else is profiling or debugging on this node: then the exporter does not."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exporter.host.files import HostFiles

# Programs that profile or debug one job while they run, by their name in /proc/PID/comm.
PROGRAMS = frozenset({b"py-spy", b"nsys", b"ncu", b"cuda-gdb", b"gdb", b"strace"})


def other_profiler(files: HostFiles, pids: Iterable[int]) -> str:
    """Return who profiles or debugs now, in words; empty if nobody does.

    A session that a process has opened in itself, such as one of torch.profiler, cannot be seen from outside.
    """
    for pid in pids:
        if tracer := _tracer(files.process(f"{pid}/status")):
            return f"process {tracer} debugs process {pid}"
    for pid in files.pids():
        name = files.process(f"{pid}/comm").strip()
        if name in PROGRAMS:
            return f"{name.decode()} is running (process {pid})"
    return ""


def _tracer(status: bytes) -> int:
    """Return the PID of the process that debugs another one, from /proc/PID/status; 0 if there is none."""
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        if name == b"TracerPid" and value.strip().isdigit():
            return int(value)
    return 0
