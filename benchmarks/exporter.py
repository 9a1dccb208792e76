"""Runs an exporter as a child process and measures its CPU, memory and scrapes. Shared by the benchmarks."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
EVERYTHING = ("--metrics", "full", "--processes")
HIGH_RESOLUTION = (*EVERYTHING, "--high-resolution")


def exporter_command(port: int, *arguments: str) -> list[str]:
    """Return the command that serves gpu-exporter on a port of 127.0.0.1."""
    options = ("serve", "--address", f"127.0.0.1:{port}", "--log-level", "error")
    return [sys.executable, "-m", "gpu_exporter", *options, *arguments]


def free_port() -> int:
    """Return a TCP port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Exporter:
    """A child process that serves /metrics."""

    process: subprocess.Popen[bytes]
    port: int
    path: str = "/metrics"

    def cpu_seconds(self) -> float:
        """Return the user and system time so far."""
        return cpu_seconds(self.process.pid)

    def rss_mib(self) -> float:
        """Return the resident memory."""
        return rss_mib(self.process.pid)

    def page(self) -> str:
        """Scrape once and return the response as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.path}", timeout=10) as answer:
            return str(answer.read(), "utf-8")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process so far."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    env: Mapping[str, str] | None = None,
    path: str = "/metrics",
    timeout: float = 30,
) -> Iterator[Exporter]:
    """Run a command that listens on `port`, once it answers. Raises RuntimeError if it takes `timeout` seconds."""
    process = subprocess.Popen(command, env={**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})})
    try:
        exporter = Exporter(process, port, path)
        deadline = time.monotonic() + timeout
        while True:
            try:
                exporter.page()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not answer on port {port}") from None
                time.sleep(0.1)
        yield exporter
    finally:
        if process.poll() is not None:
            print(f"{command[0]} exited early with code {process.returncode}")
        process.terminate()
        process.wait(timeout)


@dataclass(frozen=True)
class Latency:
    """The duration of scrapes in milliseconds, and the size of a response in bytes."""

    p50: float
    p99: float
    worst: float
    body_bytes: int


def scrape(port: int, scrapers: int, scrapes_each: int, pause: float) -> Latency:
    """Scrape with gzip from parallel scrapers, each with one open connection, as Prometheus does."""

    def one(offset: int) -> tuple[list[float], int]:
        connection, took, size = HTTPConnection("127.0.0.1", port, timeout=30), [], 0
        for turn in range(scrapes_each):
            time.sleep(pause * (1 + (offset * 7 + turn * 3) % 10 / 10))
            begin = time.perf_counter()
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            size = len(connection.getresponse().read())
            took.append((time.perf_counter() - begin) * 1000)
        connection.close()
        return took, size

    with ThreadPoolExecutor(scrapers) as pool:
        results = list(pool.map(one, range(scrapers)))
    took = sorted(time for times, _ in results for time in times)
    return Latency(statistics.median(took), took[int(len(took) * 0.99)], took[-1], results[0][1])
