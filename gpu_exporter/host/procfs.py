"""Parsers of files below /proc. Pure: bytes in, values out; None for content that is not what the kernel writes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import NamedTuple

# CPU times in `stat` are in ticks of this many a second.
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
NANO = 1e-9
MOST_CPUS = 1 << 16
# The kernel has no longer numbers, and Python refuses to convert those of more than 4300 digits.
MOST_DIGITS = 20
_SOME = re.compile(rb"some avg10=[0-9.]+ avg60=[0-9.]+ avg300=[0-9.]+ total=([0-9]{1,18})", re.ASCII)


class Stat(NamedTuple):
    """A process or thread: its name (any bytes), state, parent, major faults, CPU time in seconds, ticks from the boot
    to its start, and the CPU it last ran on."""

    name: bytes
    state: bytes
    parent: int
    major_faults: int
    cpu_seconds: float
    started: int
    cpu: int


class Schedstat(NamedTuple):
    """Of one thread: seconds on a CPU, and seconds runnable but waiting for one."""

    ran: float
    waited: float


class Status(NamedTuple):
    """The owner of a process, the CPUs it may use (`Cpus_allowed_list`), and its bytes in swap."""

    uid: int
    cpus: frozenset[int]
    swap_bytes: int


def is_number(text: bytes) -> bool:
    """Return whether a text is a number, as the kernel writes it."""
    return text.isdigit() and len(text) <= MOST_DIGITS


def stat(content: bytes) -> Stat | None:
    """Parse /proc/<pid>/stat. The process chooses its name, which may contain blanks, parentheses and newlines."""
    head, closing, tail = content.rpartition(b")")
    fields = tail.split()
    if not closing or len(fields) < 37 or not all(is_number(fields[place]) for place in (1, 9, 11, 12, 19, 36)):
        return None
    return Stat(
        head.partition(b"(")[2],
        fields[0],
        int(fields[1]),
        int(fields[9]),
        (int(fields[11]) + int(fields[12])) / TICKS,
        int(fields[19]),
        int(fields[36]),
    )


def schedstat(content: bytes) -> Schedstat | None:
    """Parse /proc/<pid>/schedstat, which is about the main thread, or that of a thread.

    Without CONFIG_SCHED_INFO there is no such file, or it has only zeros.
    """
    fields = content.split()
    if len(fields) != 3 or not all(map(is_number, fields)):
        return None
    ran, waited, slices = map(int, fields)
    return Schedstat(ran * NANO, waited * NANO) if slices or ran else None


def read_bytes(content: bytes) -> int | None:
    """Return the bytes that a process had the storage read, from /proc/<pid>/io."""
    for line in content.splitlines():
        name, _, value = line.partition(b":")
        if name == b"read_bytes" and is_number(value.strip()):
            return int(value)
    return None


def status(content: bytes) -> Status | None:
    """Parse /proc/<pid>/status."""
    fields = dict(line.split(b":", 1) for line in content.splitlines() if b":" in line)
    (uid, *_), (swap, *_) = (fields.get(name, b"").split() or [b"0"] for name in (b"Uid", b"VmSwap"))
    if b"Uid" not in fields or not is_number(uid) or not is_number(swap):
        return None
    return Status(int(uid), cpu_list(fields.get(b"Cpus_allowed_list", b"")), int(swap) << 10)


def cpu_list(content: bytes) -> frozenset[int]:
    """Parse a list of CPUs such as `0-3,8`. Empty if it is none."""
    cpus: set[int] = set()
    for part in content.strip().split(b","):
        first, _, last = part.partition(b"-")
        if not is_number(first) or not is_number(last or first) or int(last or first) >= MOST_CPUS:
            return frozenset()
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def children(content: bytes) -> tuple[int, ...]:
    """Parse /proc/<pid>/task/<tid>/children."""
    return tuple(int(field) for field in content.split() if is_number(field))


def busy_seconds(content: bytes) -> Mapping[int, float]:
    """Return the seconds for which each CPU was busy since the boot, from /proc/stat.

    Idle time and time waiting for storage are not busy; guest time is part of user time.
    """
    by_cpu = {}
    for line in content.splitlines():
        fields = line.split()
        if not fields or not fields[0].startswith(b"cpu"):
            break  # the lines of CPUs come first
        number = fields[0][3:]
        if is_number(number) and len(fields) >= 9 and all(map(is_number, fields[1:9])):
            user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[1:9])
            by_cpu[int(number)] = (user + nice + system + irq + softirq + steal) / TICKS
    return by_cpu


def pressure(content: bytes) -> float | None:
    """Return the seconds in which some task waited for the resource, from a file of pressure stall information."""
    match = _SOME.search(content)
    return int(match[1]) * 1e-6 if match else None


def since_boot(read_at: float) -> float:
    """Convert a monotonic time to seconds since the boot, the clock of process starts."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    now = time.monotonic()
    return read_at + (time.clock_gettime(clock) - now if clock is not None else 0.0)
