"""Measures how much an exporter slows down GPU work. Needs PyTorch with CUDA.

    python -m benchmarks.perturbation [NAME …] [--seconds 200] [--without-peer] [--fake-driver]

NAME is a workload: gemm (bf16 products of 8192 x 8192), training (a transformer's step), all_reduce (NCCL over all
GPUs; skipped with only one), launches (tiny kernels, one after another). Each sample runs the same work three times:
alone, next to an exporter, alone; the exporter's time is compared with the mean of the other two, because clocks and
other load change more slowly. gpu-exporter runs with everything on, at 1 s and at 100 ms, and is scraped once a second;
so is nvitop-exporter if it is installed. Samples without an exporter measure the noise.

Exporters run from the beginning, so that no start is measured; between samples, they are stopped with SIGSTOP. An
exporter with a 1 s interval does its whole second of work within a run of 0.2 s, so a fifth of the difference counts.
This assumes that it costs nothing between two collections. At 100 ms a run is as long as the interval, and the whole
difference counts, including the noise. The first sample of a condition in a round is dropped: the exporter catches up.
In less than 200 s, few samples contain fields that are read every 15 s. The bound is the one-sided 95 % confidence
bound of Student's t-distribution.

`--fake-driver` tests the benchmark without a GPU: it hashes on the CPU next to exporters on the fake driver. Exit code
1 if the bound of the slowdown at 1 s is not below 0.5 % (gemm, training) or 1.5 % (launches).
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

from benchmarks.exporter import EVERYTHING, Exporter, exporter_command, free_port, running
from benchmarks.harness import begin, gpus, options
from benchmarks.paired import slowdown
from benchmarks.peers import NVITOP

BOUNDS = {"gemm": 0.005, "training": 0.005, "launches": 0.015}
GPU_WORKLOADS = ("gemm", "training", "all_reduce", "launches")
NOISE = "noise"
# Rounds; each measures every condition once.
ROUNDS = 4
SCRAPE_SECONDS = 1.0
WARM_SECONDS = 5.0
# The unit of work that fills the time until the next sample.
REST_SECONDS = 0.02
# By condition: the seconds of the same work alone and next to the exporter.
Times = Mapping[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Timing:
    """The interval of an exporter and the length of a run, in seconds."""

    interval: float = 1.0
    run: float = 0.2

    @property
    def cycle(self) -> float:
        """The time from one sample, of three runs, to the next."""
        return max(self.interval, 3 * self.run)


SECOND = Timing()
TIMINGS = {"100 ms": Timing(0.1, 0.1)}


class Work:
    """A workload with one process for each rank."""

    def __init__(self, name: str, ranks: int) -> None:
        port = str(free_port())
        commands = [
            [sys.executable, "-m", "benchmarks.workloads", name, str(n), str(ranks), port] for n in range(ranks)
        ]
        pipe = subprocess.PIPE
        self._name = name
        self._ranks = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for command in commands]

    def seconds(self, steps: int) -> float:
        """Run this number of steps; return how long they took."""
        for rank in self._ranks:
            assert rank.stdin
            rank.stdin.write(f"{steps}\n")
            rank.stdin.flush()
        answers = [rank.stdout.readline() if rank.stdout else "" for rank in self._ranks]
        if not all(answers):
            raise RuntimeError(f"the workload {self._name} exited early")
        return max(map(float, answers))

    def warm(self) -> float:
        """Warm up; return the number of steps per second."""
        self.seconds(1)  # includes one-time initialisation
        steps, took = 1, self.seconds(1)
        while took < WARM_SECONDS:
            steps = max(steps + 1, int(steps * min(10.0, 1.2 * WARM_SECONDS / took)))
            took = self.seconds(steps)
        return steps / took

    def until(self, end: float, steps: int) -> None:
        """Repeat this number of steps until this time of the monotonic clock."""
        while time.monotonic() < end:
            self.seconds(steps)

    def end(self) -> None:
        """Kill all ranks."""
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
    """Exporters, of which at most one runs at a time; the others are stopped."""

    def __init__(self, exporters: Mapping[str, Exporter]) -> None:
        self.exporters = exporters
        self._scraped = dict.fromkeys(exporters, -SCRAPE_SECONDS)
        for exporter in exporters.values():
            _stop(exporter)

    def end(self) -> None:
        """Continue all exporters, because a stopped process cannot be terminated."""
        for exporter in self.exporters.values():
            exporter.process.send_signal(signal.SIGCONT)

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Let this exporter run within the block, and scrape it if due; an unknown name lets none run."""
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
    """Stop all threads of an exporter. Each first returns from the driver, so none is stopped with a lock there."""
    exporter.process.send_signal(signal.SIGSTOP)
    os.waitpid(exporter.process.pid, os.WUNTRACED)


@contextmanager
def exporters(with_peer: bool, env: Mapping[str, str]) -> Iterator[Turns]:
    """Start all exporters; they are stopped until their turn."""
    commands = {"1 s": (*EVERYTHING, "--interval", "1s"), "100 ms": (*EVERYTHING, "--interval", "100ms")}
    started: dict[str, Exporter] = {}
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str], port: int) -> None:
            started[name] = stack.enter_context(running(command, port, env))

        for name, arguments in commands.items():
            port = free_port()
            start(name, exporter_command(port, *arguments), port)
        if with_peer:
            port = free_port()
            start(NVITOP.name, NVITOP.command(port), port)
        turns = Turns(started)
        stack.callback(turns.end)
        yield turns


def pairs(work: Work, turns: Turns, seconds: float) -> Times:
    """Measure every condition in each round, without its first sample there, because the exporter catches up."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (NOISE, *turns.exporters)}
    order, rate = random.Random(1), work.warm()
    for _ in range(ROUNDS):
        for name in order.sample(sorted(found), len(found)):
            timing = TIMINGS.get(name, SECOND)
            steps, rest = (max(1, round(rate * part)) for part in (timing.run, REST_SECONDS))
            number = max(1, round(seconds / len(found) / ROUNDS / timing.cycle))
            begin, taken = time.monotonic(), []
            for sample in range(number + 1):
                taken.append(pair(work, turns, name, steps))
                work.until(begin + (sample + 1) * timing.cycle, rest)
            found[name] += taken[1:]
    return found


def pair(work: Work, turns: Turns, name: str, steps: int) -> tuple[float, float]:
    """Take a sample: return the mean seconds before and after the exporter's turn, and those within it."""
    before = work.seconds(steps)
    with turns.turn(name):
        within = work.seconds(steps)
    return (before + work.seconds(steps)) / 2, within


def slowdowns(times: Times) -> dict[str, Any]:
    """Return the slowdown by condition."""
    return {name: asdict(slowdown(taken, TIMINGS.get(name, SECOND).interval)) for name, taken in times.items()}


def measure(name: str, ranks: int, turns: Turns, seconds: float) -> dict[str, Any]:
    """Measure one workload."""
    work = Work(name, ranks)
    try:
        times = pairs(work, turns, seconds)
    finally:
        work.end()
    return {"gpus": ranks, "slowdown": slowdowns(times), "times": times}


def runnable(names: Sequence[str], present: int) -> Iterator[tuple[str, int]]:
    """Yield the workloads with their number of ranks; print which ones are skipped."""
    for name in names:
        if name == "all_reduce" and present < 2:
            print("skipped all_reduce: it needs two GPUs")
        else:
            yield name, present if name == "all_reduce" else 1


def main() -> int:
    """Measure each workload, print and write; return 1 if a bound is missed."""
    parser = options(__name__, __doc__)
    parser.add_argument("workloads", nargs="*", metavar="NAME", help=f"default: {' '.join(GPU_WORKLOADS)}")
    parser.add_argument(
        "--seconds", type=float, default=200, help="how long each workload is measured (default: %(default)s)"
    )
    parser.add_argument("--without-peer", action="store_true", help="measure only gpu-exporter")
    parser.add_argument(
        "--fake-driver", action="store_true", help="test the benchmark without a GPU; no result without --json"
    )
    chosen = parser.parse_args()
    run, kept = begin(__name__, chosen), True
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        env: Mapping[str, str] = {}
        if chosen.fake_driver:
            from tests.support.fakes.driver import FakeDriver

            env = FakeDriver(Path(stack.enter_context(tempfile.TemporaryDirectory()))).environment
        with_peer = not (chosen.without_peer or chosen.fake_driver) and NVITOP.present()
        turns = stack.enter_context(exporters(with_peer, env))
        names = ("hashing",) if chosen.fake_driver else chosen.workloads or GPU_WORKLOADS
        for name, ranks in runnable(names, 0 if chosen.fake_driver else gpus()):
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
