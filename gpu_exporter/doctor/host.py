"""Doctor's checks of what host evidence needs: the host's processes, scheduler statistics, cgroups, permissions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.procfs import schedstat
from gpu_exporter.model.finding import Finding, FindingLevel

TOPIC = "host"
INIT = 1


def checks(procfs: Path, sysfs: Path) -> list[Finding]:
    """Return the findings about host evidence."""
    return list(_findings(HostFiles(procfs, sysfs), procfs, sysfs))


def _findings(files: HostFiles, procfs: Path, sysfs: Path) -> Iterator[Finding]:
    if not files.exists():
        yield Finding(TOPIC, FindingLevel.WARN, f"host evidence: {procfs} is not a procfs", "check --procfs")
        return
    if _read(files, "2/comm").strip() != b"kthreadd":
        yield Finding(
            TOPIC,
            FindingLevel.WARN,
            f"host evidence: {procfs} has not the host's processes, or hides those of other users",
            "set hostPID (--pid=host), or mount the host's procfs and set --procfs; "
            "with hidepid, join the group of its mount option gid=",
        )
    own = os.getpid() if str(procfs) == "/proc" else INIT
    if schedstat(_read(files, f"{own}/schedstat")) is None:
        what = "host evidence: the kernel has no scheduler statistics, so run queue delay is unknown"
        yield Finding(
            TOPIC, FindingLevel.NOTE, what, "run `sysctl kernel.sched_schedstats=1`, or use a kernel with SCHED_INFO"
        )
    if not _exists(files, f"{own}/task/{own}/children"):
        what = "host evidence: the kernel does not list children, so loader workers are not seen"
        yield Finding(TOPIC, FindingLevel.NOTE, what, "use a kernel with PROC_CHILDREN")
    if not any(_exists_below(files, path) for path in ("/cgroup.controllers", "/cpu", "/cpu,cpuacct", "/unified")):
        what = f"host evidence: no cgroups below {sysfs}/fs/cgroup, so CPU limits are not seen"
        yield Finding(TOPIC, FindingLevel.WARN, what, "mount the host's /sys and set --sysfs")
    if not _may_see_others(files):
        what = "host evidence: bytes read and /dev/shm of other users' processes cannot be read"
        yield Finding(TOPIC, FindingLevel.NOTE, what, "run as the same user, or add the capability SYS_PTRACE")
    yield Finding(TOPIC, FindingLevel.OK, f"host evidence is read from {procfs} and {sysfs}")


def _may_see_others(files: HostFiles) -> bool:
    try:
        files.proc(f"{INIT}/io")
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def _read(files: HostFiles, path: str) -> bytes:
    try:
        return files.proc(path)
    except OSError:
        return b""


def _exists(files: HostFiles, path: str) -> bool:
    try:
        files.proc(path)
    except OSError:
        return False
    return True


def _exists_below(files: HostFiles, path: str) -> bool:
    try:
        files.cgroup(path)
    except IsADirectoryError:
        return True
    except OSError:
        return False
    return True
