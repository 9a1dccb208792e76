"""The processes on the GPUs, looked up in procfs: whose each is."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpu_exporter.attribution import files
from gpu_exporter.attribution.cgroup import Whose, whose
from gpu_exporter.attribution.containers import container_name
from gpu_exporter.model.lookup import LookupFailed

LARGEST_FILE = 64 << 10
# The kernel tells when a process was started in hundredths of a second.
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
SLACK_SECONDS = 0.05

Processes = Mapping[int, Whose]


class ProcessLookup:
    """Looks up those PIDs that `wanted` has, each with when the driver named it (seconds since boot).

    A PID counts together with the start of its process: who has it now may not be who the driver meant.
    """

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._known: dict[tuple[int, int], Whose] = {}
        self.wanted: Mapping[int, float] = {}

    def ask(self) -> Processes:
        """Whose the wanted ones are, as far as it can be told. Raises LookupFailed."""
        wanted, known = self.wanted, self._known
        if wanted and not self._procfs.is_dir():
            raise LookupFailed("no_procfs", f"there is no {self._procfs}: check --procfs")
        self._known = {}
        for pid, named_at in wanted.items():
            started = self._started(pid)
            if started is None or started / TICKS > named_at + SLACK_SECONDS:
                continue
            owner = known.get((pid, started)) or self._whose(pid)
            if owner and ((pid, started) in known or self._started(pid) == started):
                self._known[pid, started] = owner
        return {pid: owner for (pid, _), owner in self._known.items()}

    def _started(self, pid: int) -> int | None:
        """Ticks from the boot to its start; None if there is no such process."""
        if (self._procfs / str(pid)).is_symlink():
            return None
        # The name is whatever the process likes, also with blanks and parentheses.
        fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() and fields[19].isascii() else None

    def _whose(self, pid: int) -> Whose | None:
        owner = whose(self._read(f"{pid}/cgroup"))
        if owner and owner.job and not owner.user:
            try:
                return replace(owner, user=str((self._procfs / str(pid)).stat().st_uid))
            except OSError:
                return None
        # /proc belongs to the root that the runtime's files are below, wherever that is mounted here
        return replace(owner, name=container_name(owner, self._procfs.parent)) if owner else None

    def _read(self, path: str) -> str:
        try:
            read = files.read(self._procfs / path, LARGEST_FILE)
        except OSError:
            return ""
        return read[0].decode("utf-8", "replace") if read else ""


def since_boot(read_at: float) -> float:
    """A monotonic time as seconds since the boot, which the kernel counts starts of processes by."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    now = time.monotonic()
    return read_at + (time.clock_gettime(clock) - now if clock is not None else 0.0)
