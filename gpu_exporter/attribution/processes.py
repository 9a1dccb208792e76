"""The owners of the processes on the GPUs, looked up in procfs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpu_exporter.attribution import files
from gpu_exporter.attribution.cgroup import ProcessOwner, process_owner
from gpu_exporter.attribution.containers import container_name
from gpu_exporter.model.lookup import LookupFailed

LARGEST_FILE = 64 << 10
# The kernel reports the start of a process in these units per second.
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
SLACK_SECONDS = 0.05

Processes = Mapping[int, ProcessOwner]


class ProcessLookup:
    """Looks up the owners of the PIDs in `wanted`.

    Its values are the times when the driver reported them (seconds since boot). A PID is looked up together with the
    start of its process, because the PID may have been reused since.
    """

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        self._owners: dict[tuple[int, int], ProcessOwner] = {}
        self.wanted: Mapping[int, float] = {}

    def ask(self) -> Processes:
        """Return the owners by PID, without PIDs whose owner cannot be determined. Raises LookupFailed."""
        wanted, before = self.wanted, self._owners
        if wanted and not self._procfs.is_dir():
            raise LookupFailed("no_procfs", f"there is no {self._procfs}: check --procfs")
        self._owners = {}
        for pid, named_at in wanted.items():
            started = self._started(pid)
            if started is None or started / TICKS > named_at + SLACK_SECONDS:
                continue
            owner = before.get((pid, started)) or self._owner(pid)
            if owner and ((pid, started) in before or self._started(pid) == started):
                self._owners[pid, started] = owner
        return {pid: owner for (pid, _), owner in self._owners.items()}

    def _started(self, pid: int) -> int | None:
        """Ticks from the boot to the start of a process; None if there is no such process."""
        if (self._procfs / str(pid)).is_symlink():
            return None
        # The name is chosen by the process and may contain blanks and parentheses.
        fields = self._read(f"{pid}/stat").rpartition(")")[2].split()
        return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() and fields[19].isascii() else None

    def _owner(self, pid: int) -> ProcessOwner | None:
        owner = process_owner(self._read(f"{pid}/cgroup"))
        if owner and owner.job and not owner.user:
            try:
                return replace(owner, user=str((self._procfs / str(pid)).stat().st_uid))
            except OSError:
                return None
        # procfs may be mounted elsewhere; the runtime's files are in the root that it belongs to
        return replace(owner, name=container_name(owner, self._procfs.parent)) if owner else None

    def _read(self, path: str) -> str:
        try:
            read = files.read(self._procfs / path, LARGEST_FILE)
        except OSError:
            return ""
        return read[0].decode("utf-8", "replace") if read else ""


def since_boot(read_at: float) -> float:
    """Convert a monotonic time to seconds since the boot, the clock of process starts."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    now = time.monotonic()
    return read_at + (time.clock_gettime(clock) - now if clock is not None else 0.0)
