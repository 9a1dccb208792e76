"""Runs an exporter as a child process and measures its CPU, memory and scrapes. Shared by the benchmarks."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from typing import IO, NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
HOST = "127.0.0.1"
# As Prometheus 3 sends them by default.
SCRAPE_HEADERS = {
    "User-Agent": "Prometheus/3.5.0",
    "Accept": (
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
        "application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    ),
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}
# Until the processes of all scrapers have started.
START_SECONDS = 2.0
# How long one series of scrapes takes at most.
MOST_SECONDS = 12.0
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
    """A child process that serves /metrics, and those that were started beside it, such as DCGM's host engine."""

    process: subprocess.Popen[bytes]
    port: int
    path: str = "/metrics"
    beside: Sequence[subprocess.Popen[bytes]] = ()
    began: float = field(default_factory=time.monotonic)

    @property
    def pids(self) -> Sequence[int]:
        """The processes that were started."""
        return [each.pid for each in (self.process, *self.beside)]

    def cpu_seconds(self) -> float:
        """Return the user and system time so far, of everything that was started."""
        return cpu_seconds(*self.pids)

    def rss_mib(self) -> float:
        """Return the resident memory now, of everything that was started."""
        return rss_mib(*self.pids)

    def wakeups(self) -> int:
        """Return how often the threads so far waited and were woken up, of everything that was started."""
        return wakeups(*self.pids)

    def page(self) -> str:
        """Scrape once and return the response as text."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.path}", timeout=10) as answer:
            return str(answer.read(), "utf-8")


class ProcessTime(NamedTuple):
    """What /proc says of a process: CPU ticks of its own, and of its children that ended and that it waited for."""

    parent: int
    session: int
    own: int
    ended: int


def process_time(pid: int) -> ProcessTime | None:
    """Return the times of a process, or None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessTime(int(stat[1]), int(stat[3]), int(stat[11]) + int(stat[12]), int(stat[13]) + int(stat[14]))


def process_tree(*roots: int) -> dict[int, ProcessTime]:
    """Return the processes that live now: the roots, their descendants, and what else is in the roots' sessions.

    A daemon has another parent, but `running` starts each program in a session of its own.
    """
    pids = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    every = {pid: found for pid in pids if (found := process_time(pid))}
    tree = {pid: found for pid, found in every.items() if pid in roots or found.session in roots}
    while more := {pid: found for pid, found in every.items() if pid not in tree and found.parent in tree}:
        tree.update(more)
    return tree


def cpu_seconds(*roots: int) -> float:
    """Return the user and system time so far of processes and their descendants, those that ended included.

    A child that ends is counted by its parent. To count it once, the processes are read until none ends meanwhile.
    """
    while True:
        before, now = process_tree(*roots), process_tree(*roots)
        if before.keys() <= now.keys() and all(now[pid].ended == each.ended for pid, each in before.items()):
            return sum(each.own + each.ended for each in now.values()) / TICKS


def rss_mib(*roots: int) -> float:
    """Return the resident memory of processes and their descendants. Memory that they share counts for each."""
    found = 0
    for pid in process_tree(*roots):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended
            _, found_it, rest = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")
            found += int(rest.split()[0]) if found_it else 0  # a zombie has none
    return found / 1024


def wakeups(*roots: int) -> int:
    """Return how often the threads of processes and their descendants gave up the CPU to wait, so far."""
    found = 0
    for pid in process_tree(*roots):
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended
                found += thread_wakeups(status.parent)
    return found


def thread_wakeups(task: Path) -> int:
    """Return how often a thread, a folder of /proc/PID/task, gave up the CPU to wait, so far."""
    return int((task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    env: Mapping[str, str] | None = None,
    path: str = "/metrics",
    timeout: float = 30,
    beside: Mapping[int, Sequence[str]] | None = None,
) -> Iterator[Exporter]:
    """Run a command that listens on `port`, once it answers, and commands `beside` it, by the ports that they have.

    Raises RuntimeError if it ends or takes `timeout` seconds, with the last line that it wrote to stderr.
    """
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **(env or {})}
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        others = []
        for its_port, each in (beside or {}).items():
            others.append(stack.enter_context(_process(each, environment, log, timeout)))
            _wait(others[-1], its_port, partial(_connect, its_port), timeout, log)
        process = stack.enter_context(_process(command, environment, log, timeout))
        exporter = Exporter(process, port, path, others)
        _wait(process, port, exporter.page, timeout, log)
        yield exporter


def _connect(port: int) -> None:
    socket.create_connection((HOST, port), 1).close()


def _wait(
    process: subprocess.Popen[bytes], port: int, ask: Callable[[], object], timeout: float, log: IO[bytes]
) -> None:
    """Wait until a process answers."""
    end = time.monotonic() + timeout
    while True:
        try:
            ask()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                log.seek(0)
                last = (log.read().decode(errors="replace").splitlines() or [""])[-1]
                ended = "" if process.returncode is None else f", exit code {process.returncode}"
                raise RuntimeError(f"does not answer on port {port}{ended}: {last}") from None
            time.sleep(0.1)


@contextmanager
def _process(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], timeout: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a session of its own, which ends with the block. Its stderr goes to `log`."""
    try:
        process = subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)
    except OSError as error:
        raise RuntimeError(str(error)) from None
    try:
        yield process
        if process.poll() is not None:
            print(f"{command[0]} exited early with code {process.returncode}")
    finally:
        process.terminate()
        try:
            process.wait(timeout)
        finally:
            for pid in process_tree(process.pid):  # what it left behind
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Latency:
    """The duration of scrapes in milliseconds, the size of a response in bytes, and how many scrapes there were."""

    p50: float
    p99: float
    worst: float
    body_bytes: int
    scrapes: int


class Scraper:
    """Scrapes as Prometheus does: with its headers, over a connection that the exporter may leave open."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=30)

    def __call__(self) -> int:
        """Scrape once; return the size of the response in bytes."""
        self._connection.request("GET", "/metrics", headers=SCRAPE_HEADERS)
        return len(self._connection.getresponse().read())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _durations(port: int, scrapes_each: int, pause: float, begin: float, offset: int) -> tuple[list[float], int]:
    """Scrape again and again from a time (monotonic seconds) on; return the milliseconds of each, and the size.

    The first scrape is not counted: it opens the connection, and most of it is Python's first request as a client.
    Fewer scrapes must do of an exporter that takes long, which runs a program for each.
    """
    took: list[float] = []
    with closing(Scraper(port)) as scrape_once:
        size = scrape_once()
        time.sleep(max(0.0, begin - time.monotonic()))
        for turn in range(scrapes_each):
            if time.monotonic() > begin + MOST_SECONDS:
                break
            time.sleep(pause * (1 + (offset * 7 + turn * 3) % 10 / 10))
            start = time.perf_counter()
            size = scrape_once()
            took.append((time.perf_counter() - start) * 1000)
    return took, size


def scrape(port: int, scrapers: int, scrapes_each: int, pause: float) -> Latency:
    """Scrape with gzip from parallel scrapers, each with one open connection, as Prometheus does.

    Each is a process: threads would wait for each other's GIL, which would count as the exporter's time.
    """
    begin = time.monotonic() + START_SECONDS
    with ProcessPoolExecutor(scrapers, get_context("spawn")) as pool:
        results = list(pool.map(partial(_durations, port, scrapes_each, pause, begin), range(scrapers)))
    took = sorted(time for times, _ in results for time in times)
    return Latency(statistics.median(took), took[int(len(took) * 0.99)], took[-1], results[0][1], len(took))
