"""The cgroups of a process and their CPU limits, for cgroup v1, v2 and hybrid hierarchies. Parsers and paths: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpu_exporter.host.procfs import is_number

# A cgroup is at most so deep, and a limit of any level above a process counts.
DEEPEST = 32
# The unified hierarchy, at the mount point itself, or below `unified` beside the v1 controllers.
UNIFIED = ""


class Throttling(NamedTuple):
    """Of a cgroup with a CPU limit: the periods so far, those in which it was throttled, and its CPU seconds."""

    periods: int
    throttled: int
    cpu_seconds: float | None = None


class CpuLimit(NamedTuple):
    """A cgroup with a CPU limit: the files with its statistics, and the number of CPUs that it may use."""

    stat: str
    usage: str
    cpus: float


Read = Callable[[str], bytes]


def paths(content: bytes) -> Mapping[str, str]:
    """Parse /proc/<pid>/cgroup: the path of the process in the hierarchy of each controller; `UNIFIED` for v2.

    A path that begins with `/..` lies outside the reader's cgroup namespace.
    """
    by_controller = {}
    for line in content.splitlines():
        number, _, rest = line.partition(b":")
        names, colon, path = rest.partition(b":")
        if not colon or not number.isdigit() or not path.startswith(b"/"):
            continue
        text = path.removesuffix(b" (deleted)").decode("utf-8", "surrogateescape")
        for name in names.split(b","):
            by_controller[name.decode("utf-8", "replace")] = text
    return by_controller


def levels(path: str) -> Iterator[str]:
    """Yield a path and those above it, without the root, which has no limits; none outside the reader's namespace."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        return
    for length in range(min(len(parts), DEEPEST), 0, -1):
        yield "/" + "/".join(parts[:length])


def cpu_limits(by_controller: Mapping[str, str], read: Read) -> Iterator[CpuLimit]:
    """Yield the limits that apply to a process, from its own cgroup upwards.

    `read` returns the content of a file below the mount point of the cgroups; it raises OSError where there is none.
    """
    if (v1 := by_controller.get("cpu")) is not None:
        accounting = by_controller.get("cpuacct", v1)
        for level in levels(v1):
            directory = _v1_directory(level, read)
            if directory and (cpus := _v1_cpus(directory, read)):
                # CPU time is accounted in a hierarchy of its own where the two are not mounted together
                base = directory.removesuffix(level)
                account = f"{base}{level}" if "cpuacct" in base else f"/cpuacct{accounting}"
                yield CpuLimit(f"{directory}/cpu.stat", f"{account}/cpuacct.usage", cpus)
        return
    for level in levels(by_controller.get(UNIFIED, "/")):
        for base in mounts(UNIFIED):
            if cpus := _v2_cpus(_read(read, f"{base}{level}/cpu.max")):
                yield CpuLimit(f"{base}{level}/cpu.stat", "", cpus)
                break


def mounts(controller: str) -> Sequence[str]:
    """Return where a controller may be mounted, below the mount point of all cgroups."""
    if controller == UNIFIED:
        return ("", "/unified")
    return (f"/{controller}", "/cpu,cpuacct", "/cpuacct,cpu") if controller in ("cpu", "cpuacct") else ()


def _v1_directory(level: str, read: Read) -> str:
    for base in mounts("cpu"):
        if _read(read, f"{base}{level}/cpu.cfs_period_us"):
            return f"{base}{level}"
    return ""


def _v1_cpus(directory: str, read: Read) -> float | None:
    quota, period = (_read(read, f"{directory}/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if is_number(quota) and is_number(period) and int(period) else None


def _v2_cpus(content: bytes) -> float | None:
    """Return the CPUs of `cpu.max`; None for `max` and for anything else."""
    quota, _, period = content.strip().partition(b" ")
    return int(quota) / int(period) if is_number(quota) and is_number(period) and int(period) else None


def _read(read: Read, path: str) -> bytes:
    try:
        return read(path)
    except OSError:
        return b""


def throttling(content: bytes, usage: bytes = b"") -> Throttling | None:
    """Parse cpu.stat of v1 or v2. `usage` is cpuacct.usage of v1, in nanoseconds; v2 has the CPU time in cpu.stat."""
    fields = {}
    for line in content.splitlines():
        name, _, value = line.partition(b" ")
        if is_number(value):
            fields[name] = int(value)
    if b"nr_periods" not in fields or b"nr_throttled" not in fields:
        return None
    seconds = None
    if is_number(usage.strip()):
        seconds = int(usage) * 1e-9
    elif b"usage_usec" in fields:
        seconds = fields[b"usage_usec"] * 1e-6
    return Throttling(fields[b"nr_periods"], fields[b"nr_throttled"], seconds)


def pressure_directories(by_controller: Mapping[str, str]) -> Iterator[str]:
    """Yield where the pressure files of the process's own cgroup may be: only v2 has any."""
    own = next(levels(by_controller.get(UNIFIED, "/")), "")
    if own:
        yield from (f"{mount}{own}" for mount in mounts(UNIFIED))
