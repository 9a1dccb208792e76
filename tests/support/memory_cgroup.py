"""A memory cgroup of its own for a process: its limit, its usage with the kernel's socket buffers apart, OOM kills.

It needs root, and a memory cgroup hierarchy that may be written: version 1 or 2, whichever is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.tools import until

MIB = 1 << 20
MOUNTED = Path("/sys/fs/cgroup")


class Usage(NamedTuple):
    """The memory of a cgroup in bytes: without the file cache that the kernel can drop at any time (what `kubectl top`
    shows) and without socket buffers, and the socket buffers.
    """

    memory: int
    sockets: int

    @property
    def total(self) -> int:
        """What counts towards a limit of version 2."""
        return self.memory + self.sockets


def _table(path: Path) -> Mapping[str, int]:
    """Return the rows of a file such as memory.stat."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


class MemoryCgroup:
    """A cgroup, in its folder below the hierarchy of version 1 or 2. A limit of version 1 does not include the socket
    buffers, which are only counted.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.version = 1 if (folder / "memory.usage_in_bytes").exists() else 2
        if self.version == 1:
            (folder / "memory.limit_in_bytes").write_text(str(limit))
            (folder / "memory.kmem.tcp.limit_in_bytes").write_text(str(1 << 40))  # without a limit, nothing is counted
        else:
            (folder / "memory.max").write_text(str(limit))
            with suppress(FileNotFoundError):  # a kernel without swap
                (folder / "memory.swap.max").write_text("0")

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return a command that runs another one in this cgroup, as the same process."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *arguments]

    def usage(self) -> Usage:
        """Return what is used now."""
        statistics = _table(self.folder / "memory.stat")
        if self.version == 1:
            used = self._number("memory.usage_in_bytes") - statistics["total_inactive_file"]
            return Usage(used, self._number("memory.kmem.tcp.usage_in_bytes"))
        sockets = statistics["sock"]
        return Usage(self._number("memory.current") - statistics["inactive_file"] - sockets, sockets)

    def oom_kills(self) -> int:
        """Return how many processes were killed because they were beyond the limit."""
        return _table(self.folder / ("memory.oom_control" if self.version == 1 else "memory.events"))["oom_kill"]

    def _number(self, name: str) -> int:
        return int((self.folder / name).read_text())


def hierarchy(mounted: Path = MOUNTED) -> Path:
    """Return the folder in which memory cgroups can be made. Raises AssertionError with the fix."""
    first = mounted / "memory"
    if (first / "memory.limit_in_bytes").exists() and os.access(first, os.W_OK):
        return first
    subtree = mounted / "cgroup.subtree_control"
    with suppress(OSError):  # not a container's: its own processes are in this cgroup, so that it cannot be divided
        if "memory" not in subtree.read_text().split():
            subtree.write_text("+memory")
        if os.access(mounted, os.W_OK):
            return mounted
    raise AssertionError(
        f"no memory cgroup can be made below {mounted}: fix: run this as root, outside of a container or in a "
        "privileged one"
    )


@contextmanager
def memory_cgroup(name: str, limit: int, mounted: Path = MOUNTED) -> Iterator[MemoryCgroup]:
    """Make a cgroup with this limit in bytes, and remove it when its processes have ended."""
    folder = hierarchy(mounted) / f"gpu-exporter-{name}-{os.getpid()}"
    folder.mkdir()
    try:
        yield MemoryCgroup(folder, limit)
    finally:
        until(lambda: not (folder / "cgroup.procs").read_text(), what=f"the end of the processes in {folder}")
        folder.rmdir()
