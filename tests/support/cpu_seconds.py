"""Writes the CPU seconds of each test, and of all processes that it starts, into a file, for who makes tests faster.

    CPU_SECONDS=/tmp/cpu.tsv pytest -p tests.support.cpu_seconds …

A line has the CPU seconds, the seconds, and the test. A test that is the first to use a fixture pays for it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/PID/stat after the name: the parent; user and system time of the process, and of its children that ended.
PARENT, TIMES = 1, slice(11, 15)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of all that it started, directly or not."""
    seconds: dict[int, float] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            words = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            children[int(words[PARENT])].append(pid)
            seconds[pid] = sum(map(int, words[TIMES])) / TICKS
    total, left = 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        total += seconds.get(pid, 0.0)
        left += children[pid]
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test with its fixtures."""
    used, begin = cpu_seconds(), time.monotonic()
    try:
        return (yield)
    finally:
        line = f"{cpu_seconds() - used:.2f}\t{time.monotonic() - begin:.1f}\t{item.nodeid}\n"
        with open(os.environ["CPU_SECONDS"], "a") as file:
            file.write(line)
