"""Raw files of the host about a process and its workers, as fixtures for tests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

OF_PROCESS = ("stat", "schedstat", "status", "cgroup", "io", "wchan")
OF_MACHINE = ("stat", "swaps", "pressure/cpu", "pressure/io", "pressure/memory", "meminfo")
MOST_THREADS, MOST_WORKERS = 400, 64
CGROUPS = Path("/sys/fs/cgroup")
OF_CGROUP = (
    *("cpu.stat", "cpu.max", "cpu.pressure", "io.pressure", "memory.pressure", "io.max"),
    *("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpuacct.usage"),
)


def take(pid: int) -> dict[str, str]:
    """Return the files by path: bytes as Latin-1, so that any content survives JSON; errors as `!` and their name."""
    paths = [f"/proc/{name}" for name in OF_MACHINE]
    paths += ["/proc/mounts", "/sys/devices/system/node/has_cpu", "/proc/sys/kernel/task_delayacct"]
    for process in (pid, *_descendants(pid)):
        paths += [f"/proc/{process}/{name}" for name in OF_PROCESS]
        for thread in sorted(Path(f"/proc/{process}/task").glob("*"))[:MOST_THREADS]:
            names = ("stat", "schedstat", "children") if process == pid else ("children",)
            paths += [f"{thread}/{name}" for name in names]
    paths += [str(path) for path in _cgroup_files(pid)]
    return {"at": str(time.monotonic()), "pid": str(pid), **{path: _read(path) for path in paths}}


def write(path: Path, taken: Sequence[dict[str, str]]) -> None:
    """Write what was taken at several moments."""
    path.write_text(json.dumps(taken) + "\n")


def _descendants(pid: int) -> list[int]:
    found, waiting = list[int](), [pid]
    while waiting and len(found) < MOST_WORKERS:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            new = [int(word) for word in _read(str(children)).split() if word.isdecimal()]
            found, waiting = found + new, waiting + new
    return found


def _cgroup_files(pid: int) -> Iterator[Path]:
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for base in {CGROUPS, CGROUPS / "unified", CGROUPS / controllers}:
            place = base / path.lstrip("/")
            while place != base.parent and place.is_relative_to(base):
                yield from (place / name for name in OF_CGROUP if (place / name).exists())
                place = place.parent


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("latin-1")
    except OSError as error:
        return f"!{type(error).__name__}"
