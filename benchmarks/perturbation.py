"""How much slower does a GPU's work get by being watched? Needs PyTorch with CUDA.

    python -m benchmarks.perturbation [NAME …] [--seconds 200] [--without-peer] [--stand-in]

NAME is a workload: gemm (bf16 products of 8192 x 8192), training (a transformer's step), all_reduce (NCCL over all
GPUs; left out where there is one), launches (tiny kernels, one after another). The same work is done again and again,
without a rest. A piece of it beside an exporter is compared with the mean of the pieces just before and after, which
nothing watches: the drift of clocks and what else the machine does last longer. Exporters have everything on, at 1 s
and at 100 ms, and are scraped once a second; nvitop-exporter is one, too, where it is installed. Pieces that nothing
watches are also compared with each other: that is the noise.

All exporters run from the beginning, and are stopped (SIGSTOP) when it is not their turn, so that no start is measured.
A turn comes once an interval, and what came due meanwhile is done in it: of who looks once a second, a piece of a fifth
of a second holds the work of a whole one, and a fifth of its difference is the slowdown. That takes an exporter that
sleeps between two looks to cost nothing. Pieces at 100 ms are as long as the interval, so that nothing is divided
there, the noise neither. The first piece of a turn is left out, where an exporter that was stopped for long catches up:
in less than 200 s there are few of the reads that come every 15 s. The bound is Student's, of 95 % on one side.

`--stand-in` tries it without a GPU: hashing on the CPU beside exporters of the tests' driver. Exit code 1 if the bound
of the slowdown at 1 s is not below 0.5 % (gemm, training) or 1.5 % (launches).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from benchmarks.exporter import EVERYTHING, Exporter, free_port, ours, running
from benchmarks.harness import begin, gpus, options
from benchmarks.paired import slowdown
from benchmarks.peers import NVITOP

BOUNDS = {"gemm": 0.005, "training": 0.005, "launches": 0.015}
GPU_WORKLOADS = ("gemm", "training", "all_reduce", "launches")
NOISE = "noise"
# How often all conditions have their turn.
ROUNDS = 4
SCRAPE_SECONDS = 1.0
WARM_SECONDS = 5.0
# Of work between two comparisons.
REST_SECONDS = 0.02
# By condition: seconds of the same work without and with it.
Times = Mapping[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Pace:
    """How often an exporter looks, and how long the pieces are in which it does; seconds."""

    interval: float = 1.0
    piece: float = 0.2

    @property
    def cycle(self) -> float:
        """From one turn to the next, in which there are three pieces."""
        return max(self.interval, 3 * self.piece)


SECOND = Pace()
PACES = {"100 ms": Pace(0.1, 0.1)}


class Work:
    """One workload in processes of its own, one a rank."""

    def __init__(self, name: str, ranks: int) -> None:
        port = str(free_port())
        commands = [
            [sys.executable, "-m", "benchmarks.workloads", name, str(n), str(ranks), port] for n in range(ranks)
        ]
        pipe = subprocess.PIPE
        self._name = name
        self._ranks = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for command in commands]

    def seconds(self, steps: int) -> float:
        """Do so many steps; how long they took."""
        for rank in self._ranks:
            assert rank.stdin
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        answers = [rank.stdout.readline() if rank.stdout else "" for rank in self._ranks]
        if not all(answers):
            raise RuntimeError(f"the workload {self._name} ended by itself")
        return max(map(float, answers))

    def warm(self) -> float:
        """Warm up; how many steps a second there are."""
        self.seconds(1)  # with all that is made once
        steps, took = 1, self.seconds(1)
        while took < WARM_SECONDS:
            steps = max(steps + 1, int(steps * min(10.0, 1.2 * WARM_SECONDS / took)))
            took = self.seconds(steps)
        return steps / took

    def until(self, end: float, steps: int) -> None:
        """So many steps again and again, until this time of the monotonic clock."""
        while time.monotonic() < end:
            self.seconds(steps)

    def end(self) -> None:
        """End all ranks."""
        for rank in self._ranks:
            rank.kill()
            rank.communicate()


def _scrape(exporter: Exporter) -> None:
    """Scrape once. After a stop the response has expired, until the collection that follows at once."""
    for _ in range(5):
        try:
            exporter.page()
        except HTTPError:
            time.sleep(0.01)
        else:
            return


class Turns:
    """Exporters of which none or one runs."""

    def __init__(self, exporters: Mapping[str, Exporter]) -> None:
        self.exporters = exporters
        self._scraped = dict.fromkeys(exporters, -SCRAPE_SECONDS)
        for exporter in exporters.values():
            _stop(exporter)

    def end(self) -> None:
        """Let all of them run: a stopped process does not end."""
        for exporter in self.exporters.values():
            exporter.process.send_signal(signal.SIGCONT)

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """This one runs, and is scraped if that is due; none if the name is no exporter's."""
        exporter = self.exporters.get(name)
        if exporter is None:
            yield
            return
        exporter.process.send_signal(signal.SIGCONT)
        with ThreadPoolExecutor(1) as pool:
            scrape = pool.submit(_scrape, exporter) if self._due(name) else None
            yield
        _stop(exporter)
        if scrape:
            scrape.result()

    def _due(self, name: str) -> bool:
        now = time.monotonic()
        due = now - self._scraped[name] > 0.9 * SCRAPE_SECONDS
        if due:
            self._scraped[name] = now
        return due


def _stop(exporter: Exporter) -> None:
    """Stop all of its threads: each first returns from the driver, so that none holds a lock there."""
    exporter.process.send_signal(signal.SIGSTOP)
    os.waitpid(exporter.process.pid, os.WUNTRACED)


@contextmanager
def exporters(with_peer: bool, env: Mapping[str, str]) -> Iterator[Turns]:
    """All of them, stopped."""
    commands = {"1 s": (*EVERYTHING, "--interval", "1s"), "100 ms": (*EVERYTHING, "--interval", "100ms")}
    started: dict[str, Exporter] = {}
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str], port: int) -> None:
            started[name] = stack.enter_context(running(command, port, env))

        for name, arguments in commands.items():
            port = free_port()
            start(name, ours(port, *arguments), port)
        if with_peer:
            port = free_port()
            start(NVITOP.name, NVITOP.command(port), port)
        turns = Turns(started)
        stack.callback(turns.end)
        yield turns


def pairs(work: Work, turns: Turns, seconds: float) -> Times:
    """What the same work took, less the first of each turn: there an exporter that was stopped catches up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (NOISE, *turns.exporters)}
    order, rate = random.Random(1), work.warm()
    for _ in range(ROUNDS):
        for name in order.sample(sorted(found), len(found)):
            pace = PACES.get(name, SECOND)
            steps, rest = (max(1, round(rate * part)) for part in (pace.piece, REST_SECONDS))
            number = max(1, round(seconds / len(found) / ROUNDS / pace.cycle))
            begin, taken = time.monotonic(), []
            for turn in range(number + 1):
                taken.append(pair(work, turns, name, steps))
                work.until(begin + (turn + 1) * pace.cycle, rest)
            found[name] += taken[1:]
    return found


def pair(work: Work, turns: Turns, name: str, steps: int) -> tuple[float, float]:
    """Seconds without an exporter, the mean of before and after, and beside it."""
    before = work.seconds(steps)
    with turns.turn(name):
        watched = work.seconds(steps)
    return (before + work.seconds(steps)) / 2, watched


def compared(times: Times) -> dict[str, Any]:
    """What each condition costs."""
    return {name: asdict(slowdown(taken, PACES.get(name, SECOND).interval)) for name, taken in times.items()}


def measure(name: str, ranks: int, turns: Turns, seconds: float) -> dict[str, Any]:
    """One workload."""
    work = Work(name, ranks)
    try:
        times = pairs(work, turns, seconds)
    finally:
        work.end()
    return {"gpus": ranks, "slowdown": compared(times), "times": times}


def runnable(names: Sequence[str], present: int) -> Iterator[tuple[str, int]]:
    """Workloads and how many ranks each has; says which are left out."""
    for name in names:
        if name == "all_reduce" and present < 2:
            print("all_reduce is left out: it needs two GPUs")
        else:
            yield name, present if name == "all_reduce" else 1


def main() -> int:
    """Measure each workload, print and write; 1 if a bound is not kept."""
    parser = options(__name__, __doc__)
    parser.add_argument("workloads", nargs="*", metavar="NAME", help=", ".join(GPU_WORKLOADS))
    parser.add_argument("--seconds", type=float, default=200, help="for each workload")
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--stand-in", action="store_true")
    chosen = parser.parse_args()
    run, kept = begin(__name__, chosen), True
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        env: Mapping[str, str] = {}
        if chosen.stand_in:
            from tests.support.fakes.driver import FakeDriver

            env = FakeDriver(Path(stack.enter_context(tempfile.TemporaryDirectory()))).environment
        with_peer = not (chosen.without_peer or chosen.stand_in) and NVITOP.present()
        turns = stack.enter_context(exporters(with_peer, env))
        names = ("hashing",) if chosen.stand_in else chosen.workloads or GPU_WORKLOADS
        for name, ranks in runnable(names, 0 if chosen.stand_in else gpus()):
            found[name] = measure(name, ranks, turns, chosen.seconds)
            for condition, each in found[name]["slowdown"].items():
                bound = BOUNDS.get(name, 1.0) if condition == "1 s" else 1.0
                kept &= each["upper"] < bound
                print(
                    f"{name:<11}{condition:<16}{each['mean']:>8.3%}  95 %: below {each['upper']:.3%} "
                    f"({each['pairs']} pairs)" + ("" if each["upper"] < bound else f"  MISSED: {bound:.1%}"),
                    flush=True,
                )
            run.write({"workloads": found})
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
