"""Raw reads of small kernel files. On the hot path: no buffering, no decoding, no objects per read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

# `status` and `cpu.stat` have less; /proc/stat of a large machine is read with a larger bound.
MOST_BYTES = 16 << 10
MACHINE_BYTES = 1 << 20
# Where a cgroup outside the reader's cgroup namespace is looked for.
MOST_LEVELS, MOST_DIRECTORIES = 4, 1000


class HostFiles:
    """Files of the host below `procfs` and `sysfs`, which may be the host's, mounted elsewhere."""

    def __init__(self, procfs: Path, sysfs: Path) -> None:
        self.procfs = procfs
        self._proc, self._sys = str(procfs), str(sysfs)

    def proc(self, path: str, most: int = MOST_BYTES) -> bytes:
        """Return the first bytes of a file below /proc. Raises OSError: ProcessLookupError if the process is gone."""
        return _read(f"{self._proc}/{path}", most)

    def process(self, path: str) -> bytes:
        """Return a file of a process, below /proc; nothing if the process is gone. Raises PermissionError."""
        try:
            return self.proc(path)
        except PermissionError:
            raise
        except OSError:
            return b""

    def cgroup(self, path: str) -> bytes:
        """Return a file below the mount point of the cgroups; `path` begins with a slash. Raises OSError."""
        return _read(f"{self._sys}/fs/cgroup{path}", MOST_BYTES)

    def locate(self, mounts: Iterable[str], tail: str) -> str:
        """Return the path of the cgroup that ends in `tail`, below one of these mount points; empty if there is none.

        It is at most so deep because the names of pods and jobs, which are unique, are in the tail.
        """
        for mount in mounts:
            level = [""]
            for _ in range(MOST_LEVELS):
                for above in level:
                    if os.path.isdir(f"{self._sys}/fs/cgroup{mount}{above}{tail}"):
                        return f"{above}{tail}"
                level = [path for above in level for path in self._subdirectories(mount, above)][:MOST_DIRECTORIES]
        return ""

    def _subdirectories(self, mount: str, above: str) -> list[str]:
        try:
            with os.scandir(f"{self._sys}/fs/cgroup{mount}{above}") as entries:
                return [f"{above}/{entry.name}" for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def sys(self, path: str) -> bytes:
        """Return a file below /sys. Raises OSError."""
        return _read(f"{self._sys}/{path}", MOST_BYTES)

    def sys_names(self, path: str) -> list[str]:
        """Return the names in a directory below /sys, in order. Raises OSError."""
        return sorted(os.listdir(f"{self._sys}/{path}"))

    def sys_target(self, path: str) -> str:
        """Return where a path below /sys leads, relative to /sys; a loop of links leads nowhere. Never raises."""
        return os.path.realpath(f"{self._sys}/{path}").removeprefix(os.path.realpath(self._sys)).strip("/")

    def sys_path(self, path: str) -> str:
        """Return the full path of a file below /sys, for messages."""
        return f"{self._sys}/{path}"

    def threads(self, pid: int, most: int) -> Iterable[int]:
        """Return the thread ids of a process, at most `most`. Raises OSError."""
        with os.scandir(f"{self._proc}/{pid}/task") as entries:
            names = (entry.name for entry, _ in zip(entries, range(most), strict=False))
            return [int(name) for name in names if name.isdecimal()]

    def pids(self) -> list[int]:
        """Return the ids of all processes; none if there is no procfs."""
        try:
            return [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        except OSError:
            return []

    def shared_memory(self, pid: int) -> tuple[int, int] | None:
        """Return used and total bytes of /dev/shm as a process sees it; None if it has no limit. Raises OSError."""
        usage = os.statvfs(f"{self._proc}/{pid}/root/dev/shm")
        total, free = usage.f_blocks * usage.f_frsize, usage.f_bfree * usage.f_frsize
        return (total - free, total) if total else None

    def exists(self) -> bool:
        """Return whether this is a procfs."""
        return os.path.isfile(f"{self._proc}/stat")


def _read(path: str, most: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        content = os.read(descriptor, most)
        if len(content) == most or most <= MOST_BYTES:
            return content
        while part := os.read(descriptor, most - len(content)):
            content += part
        return content
    finally:
        os.close(descriptor)


def why(error: OSError) -> str:
    """Return the reason for a missing value, as in `gpu_metric_supported`."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no_permission"
    return "not_supported" if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENOTDIR) else "unknown"
