"""The metrics of this process, as `prometheus_client` collects them.

To import that library would load a server and a client of HTTP into each exporter: 1.4 MiB, for small files of procfs.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_exporter.pipeline.renderer import ProcessMetric

PROC = Path("/proc")


class ProcessMetrics:
    """The metrics of this process, collected once per interval and exposed for each of its nodes."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._collected_at = -interval
        self._metrics: Sequence[ProcessMetric] = ()
        self._python = _python()
        try:
            self._booted_at = _booted_at(PROC)
        except OSError:  # no procfs
            self._booted_at = None

    def collect(self) -> Sequence[ProcessMetric]:
        """Return the metrics. Collect them again if they are older than half an interval."""
        now = time.monotonic()
        if now - self._collected_at > self._interval / 2:  # the nodes collect at different times within an interval
            of_process = () if self._booted_at is None else process_metrics(PROC / "self", self._booted_at)
            self._collected_at, self._metrics = now, (*of_process, self._python)
        return self._metrics


def _booted_at(proc: Path) -> float | None:
    lines = (proc / "stat").read_text().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)


def process_metrics(process: Path, booted_at: float) -> Iterator[ProcessMetric]:
    """Yield the metrics of a folder of procfs, as far as it can be read."""
    try:
        stat = (process / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return
    user, system, started = (float(stat[place]) / os.sysconf("SC_CLK_TCK") for place in (11, 12, 19))
    size, resident = float(stat[20]), float(stat[21]) * os.sysconf("SC_PAGE_SIZE")
    yield ProcessMetric("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", size)
    yield ProcessMetric("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident)
    since = "Start time of the process since unix epoch in seconds."
    yield ProcessMetric("process_start_time_seconds", "gauge", since, started + booted_at)
    spent = "Total user and system CPU time spent in seconds."
    yield ProcessMetric("process_cpu_seconds_total", "counter", spent, user + system)
    try:
        limits = (process / "limits").read_text().splitlines()
        most = next((line.split()[3] for line in limits if line.startswith("Max open file")), "")
        opened = float(len(os.listdir(process / "fd")))
    except OSError:
        return
    yield ProcessMetric("process_open_fds", "gauge", "Number of open file descriptors.", opened)
    if most.isdecimal():  # else it is unlimited
        yield ProcessMetric("process_max_fds", "gauge", "Maximum number of open file descriptors.", float(most))


def _python() -> ProcessMetric:
    major, minor, patch = platform.python_version_tuple()
    labels = {"version": platform.python_version(), "implementation": platform.python_implementation()}
    labels |= {"major": major, "minor": minor, "patchlevel": patch}
    return ProcessMetric("python_info", "gauge", "Python platform information", 1.0, labels)
