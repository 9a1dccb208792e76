"""Measures how fast `gpu-exporter top` starts, and what it costs in addition to reading the GPUs.

    python -m benchmarks.top [--starts 5] [--seconds 60]

It starts `top` with 8 simulated GPUs in pseudo-terminals of 120 x 40, and measures the time until the first screen, and
until the table with the first values. Then it reads 8 simulated GPUs for some seconds, and measures the CPU time of
tracking, judging and drawing what was read. Exit code 1 if the median start takes 0.5 s or longer, or the cost is 1 %
of a core or more.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import sys
import termios
import threading
import time

from rich.console import Console

from gpu_exporter.config import Config
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.sources.choice import make_source
from gpu_exporter.top.feeds import SourceFeed
from gpu_exporter.top.lines import UNICODE
from gpu_exporter.top.screen import Screen
from gpu_exporter.top.state import View
from gpu_exporter.top.terminal import Terminal
from gpu_exporter.top.tracker import Tracker

START_BOUND, COST_BOUND = 0.5, 0.01
GPUS = 8
SIZE = (120, 40)
COMMAND = (sys.executable, "-m", "gpu_exporter", "top", "--source", "simulated", "--gpus", str(GPUS))


def started() -> tuple[float, float]:
    """Return the seconds until the first screen, and until the table."""
    begin = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(COMMAND[0], COMMAND, {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    first, written = 0.0, b""
    while b"HEALTH" not in written:
        select.select([terminal], [], [])
        written += os.read(terminal, 1 << 16)
        first = first or (time.perf_counter() - begin if b"Starting" in written else 0.0)
    table = time.perf_counter() - begin
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    os.close(terminal)
    return first, table


class _Measured(Tracker):
    """Adds up the CPU time of its thread."""

    spent = 0.0

    def take(self, scrape: Scrape) -> View:
        begin = time.thread_time()
        view = super().take(scrape)
        self.spent += time.thread_time() - begin
        return view


def cost(seconds: float) -> float:
    """Return the share of a core that tracking and drawing take."""
    tracker, changed = _Measured(20.0), threading.Event()
    feed = SourceFeed(make_source(Config(source="simulated", gpus=GPUS)), tracker)
    feed.start(changed.set)
    screen = Screen(UNICODE, SIZE)
    terminal = Terminal(Console(force_terminal=True, color_system="256"))
    drawing = 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        changed.wait()
        changed.clear()
        begin = time.thread_time()
        for line in screen.lines(feed.view):
            terminal.rendered(line)
        drawing += time.thread_time() - begin
    feed.stop()
    return (tracker.spent + drawing) / seconds


def main() -> int:
    """Measure, and print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args()
    first, table = (statistics.median(times) for times in zip(*(started() for _ in range(chosen.starts)), strict=True))
    share = cost(chosen.seconds)
    print(
        json.dumps(
            {"first_screen_seconds": round(first, 3), "table_seconds": round(table, 3), "cores": round(share, 5)}
        )
    )
    return 0 if first < START_BOUND and share < COST_BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
