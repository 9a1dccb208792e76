"""What a process may use: its CPUs, the CPU limit of its cgroup, its share of memory. Read rarely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_exporter.host import cgroup, procfs
from gpu_exporter.host.files import HostFiles

RESOURCES = ("cpu", "io", "memory")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a process: the CPUs it may run on, and the cgroups above it that limit its CPU time.

    `pressure` is the directory of the pressure files of its cgroup; empty if there are none.
    """

    cpus: frozenset[int] = frozenset()
    uid: int | None = None
    cpu_limits: tuple[cgroup.CpuLimit, ...] = ()
    pressure: str = ""

    @property
    def tightest(self) -> cgroup.CpuLimit | None:
        """The limit that allows the fewest CPUs; None if the affinity allows fewer, or if there is no limit."""
        limit = min(self.cpu_limits, key=lambda limit: limit.cpus, default=None)
        return limit if limit and (not self.cpus or limit.cpus < len(self.cpus)) else None


def limits(files: HostFiles, pid: int) -> Limits:
    """Return the limits of a process. What cannot be read is missing. Raises PermissionError for hidden processes."""
    status = procfs.status(files.process(f"{pid}/status"))
    cgroups = _rooted_paths(files, cgroup.paths(files.process(f"{pid}/cgroup")))
    pressure = next((path for path in cgroup.pressure_directories(cgroups) if _has_pressure(files, path)), "")
    return Limits(
        status.cpus if status else frozenset(),
        status.uid if status else None,
        tuple(cgroup.cpu_limits(cgroups, files.cgroup)),
        pressure,
    )


def _rooted_paths(files: HostFiles, cgroups: Mapping[str, str]) -> Mapping[str, str]:
    """Return the cgroups with paths from the root. In a cgroup namespace, the kernel shows those of others as `/..`."""
    located = {}
    for controller, path in cgroups.items():
        tail = path
        while tail.startswith("/.."):
            tail = tail.removeprefix("/..")
        located[controller] = path if tail == path else files.locate(cgroup.mounts(controller), tail) if tail else "/"
    return located


def throttling(files: HostFiles, limit: cgroup.CpuLimit) -> cgroup.Throttling | None:
    """Return the throttling of a cgroup; None if it is gone."""
    try:
        return cgroup.throttling(files.cgroup(limit.stat), files.cgroup(limit.usage) if limit.usage else b"")
    except OSError:
        return None


def pressures(files: HostFiles, directory: str) -> Iterator[tuple[str, float]]:
    """Yield each resource with its seconds of pressure: of the cgroup of a directory, or of the machine without one."""
    for resource in RESOURCES:
        try:
            content = (
                files.cgroup(f"{directory}/{resource}.pressure") if directory else files.proc(f"pressure/{resource}")
            )
        except OSError:
            continue
        if (seconds := procfs.pressure(content)) is not None:
            yield resource, seconds


def _has_pressure(files: HostFiles, directory: str) -> bool:
    try:
        return bool(files.cgroup(f"{directory}/cpu.pressure"))
    except OSError:
        return False
