"""Everything that can block, at once: `make soak`; CI runs it briefly.

    python -m tests.soak.trouble [--seconds 60]

Eight fake GPUs hang in a driver call one after another. Meanwhile the log is not read, the state directory hangs, one
address keeps 512 idle connections open, and 20 scrapers at another address scrape once a second each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path

from tests import ROOT
from tests.conftest import Exporter, command, free_port
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until

GPUS, SCRAPERS, IDLE = 8, 20, 512
INTERVAL = 1.0
# The delay until a scrape shows a hang, because the test scrapes in intervals.
ASKING = 0.3
PROMETHEUS = ("127.0.0.2", 0)
REQUEST = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n\r\n"


@dataclass
class Outcome:
    """The result of a run, in seconds. `detection` is the time until `gpu_up` is 0, for each GPU that hangs."""

    scrapes: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    detection: list[float] = field(default_factory=list)
    exit_code: int = -1
    exit: float = 0.0

    @property
    def p99(self) -> float:
        """Return the 99th percentile of successful scrapes."""
        return sorted(self.scrapes)[int(0.99 * len(self.scrapes))]


def scrape(port: int) -> bytes:
    """Return the response to one scrape on a new connection. Raises OSError unless it succeeds."""
    with socket.create_connection(("127.0.0.1", port), 10, source_address=PROMETHEUS) as connection:
        connection.sendall(REQUEST % (b"/metrics", b"close"))
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    if not received.startswith(b"HTTP/1.1 200 "):
        raise OSError(f"answered {received[:40]!r}")
    return received


def keep_scraping(port: int, outcome: Outcome, begin: float, stop: threading.Event) -> None:
    """Scrape from `begin` on, once per interval."""
    due = begin
    while not stop.wait(max(0.0, due - time.monotonic())):
        started = time.monotonic()
        try:
            scrape(port)
            outcome.scrapes.append(time.monotonic() - started)
        except OSError as error:
            outcome.failures.append(f"after {started - begin:.1f} s: {error}")
        due += INTERVAL


def keep_idle(port: int) -> None:
    """Hold idle connections, and replace those that the server closes, at most 50 a second."""
    held: deque[socket.socket] = deque()
    while True:
        connection = socket.create_connection(("127.0.0.1", port), 10)
        with suppress(ConnectionError):
            connection.sendall(REQUEST % (b"/healthz", b"keep-alive"))
        held.append(connection)
        if len(held) > IDLE:
            held.popleft().close()
        time.sleep(0.02 if len(held) == IDLE else 0.0)


@contextmanager
def serving(folder: Path, driver: FakeDriver) -> Iterator[Exporter]:
    """Run the exporter with a full log and a state directory that hangs."""
    state, hang = folder / "state", folder / "hang"
    state.mkdir()
    fakes = os.pathsep.join(
        filter(None, (str(ROOT / "tests/support/fakes/hanging_files"), os.environ.get("PYTHONPATH")))
    )
    environment = {"PYTHONPATH": fakes, "HANGING_FILES": str(state), "HANGING_WHILE": str(hang)}
    reader, writer = os.pipe()
    fcntl(writer, F_SETPIPE_SZ, 4096)
    port = free_port()
    options = ("--address", f"127.0.0.1:{port}", "--state-dir", str(state), "--log-level", "debug")
    with ExitStack() as stack:
        stack.callback(os.close, reader)
        process = subprocess.Popen(
            command("serve", *options),
            env={**os.environ, **driver.environment, **environment},
            text=True,
            stderr=writer,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        exporter = Exporter(process, port, folder / "log")
        until(lambda: up(port) == GPUS, 30, "the first samples of every GPU")
        hang.touch()
        os.set_blocking(writer, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"x")
        os.close(writer)
        yield exporter


def up(port: int) -> int:
    """Return how many GPUs are up; 0 if the exporter does not answer."""
    with suppress(OSError):
        return len(re.findall(rb"^gpu_up\{.*\} 1$", scrape(port), re.MULTILINE))
    return 0


def trouble(folder: Path, seconds: float, gpus: int = GPUS) -> Outcome:
    """Run for about this many seconds; this many GPUs hang, one after another."""
    driver, outcome, stop = FakeDriver(folder / "driver", gpus=GPUS), Outcome(), threading.Event()
    with serving(folder, driver) as exporter, ThreadPoolExecutor(SCRAPERS) as pool:
        idle = multiprocessing.get_context("spawn").Process(target=keep_idle, args=(exporter.port,), daemon=True)
        idle.start()
        begin = time.monotonic()
        for number in range(SCRAPERS):
            pool.submit(keep_scraping, exporter.port, outcome, begin + number * INTERVAL / SCRAPERS, stop)
        try:
            for gpu in range(gpus):
                time.sleep(max(0.0, begin + (gpu + 0.5) * seconds / gpus - time.monotonic()))
                driver.xid(gpu, 79)
                driver.block(gpu)
                blocked = time.monotonic()
                until(lambda: up(exporter.port) == GPUS - 1, 15, f"gpu_up 0 of GPU {gpu}")
                outcome.detection.append(time.monotonic() - blocked)
                if gpu < gpus - 1:
                    driver.unblock(gpu)
                    until(lambda: up(exporter.port) == GPUS, 30, f"gpu_up 1 of GPU {gpu}")
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
        finally:
            stop.set()
            pool.shutdown()
            idle.kill()
            idle.join()
        begin = time.monotonic()
        outcome.exit_code, outcome.exit = exporter.stop(), time.monotonic() - begin
    return outcome


def main() -> int:
    """Run and print the result."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=60)
    with tempfile.TemporaryDirectory() as folder:
        outcome = trouble(Path(folder), options.parse_args().seconds)
    shown = {
        "scrapes": len(outcome.scrapes),
        "failed": outcome.failures[:5],
        "p50_ms": round(1000 * statistics.median(outcome.scrapes), 1),
        "p99_ms": round(1000 * outcome.p99, 1),
        "worst_ms": round(1000 * max(outcome.scrapes), 1),
        "detection_s": [round(each, 1) for each in outcome.detection],
        "exit": [outcome.exit_code, round(outcome.exit, 2)],
    }
    print(json.dumps(shown))
    fine = outcome.p99 < 0.05 and max(outcome.detection) < 3 * INTERVAL + ASKING and outcome.exit < 2
    return 0 if fine and not outcome.failures and outcome.exit_code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
