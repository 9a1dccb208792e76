"""Whether somebody else is profiling or debugging: then the exporter does not."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from gpu_exporter.host.files import HostFiles

# Programs that profile GPUs while they run, by their name in /proc/PID/comm.
PROGRAMS = frozenset({b"nsys", b"ncu"})
SAMPLER = b"py-spy"


def other_profiler(files: HostFiles, pids: Iterable[int]) -> str:
    """Return who profiles the GPUs of this node or debugs one of these processes, in words; empty if nobody does.

    A session that a process has opened in itself, such as one of torch.profiler, cannot be seen from outside.
    """
    targets = list(pids)
    for pid in targets:
        if tracer := _tracer(files.process(f"{pid}/status")):
            return f"process {tracer} debugs process {pid}"
    names = {str(pid).encode() for pid in targets}
    for pid in files.pids():
        with suppress(PermissionError):  # hidden from this user
            name = files.process(f"{pid}/comm").strip()
            if name in PROGRAMS or (name == SAMPLER and names.intersection(_arguments(files, pid))):
                return f"{name.decode()} is running (process {pid})"
    return ""


def _arguments(files: HostFiles, pid: int) -> list[bytes]:
    return files.process(f"{pid}/cmdline").split(b"\0")


def _tracer(status: bytes) -> int:
    """Return the PID of the process that debugs another one, from /proc/PID/status; 0 if there is none."""
    for line in status.splitlines():
        name, _, value = line.partition(b":")
        if name == b"TracerPid" and value.strip().isdigit():
            return int(value)
    return 0
