"""The collection loop without pauses, on simulated GPUs in simulated time. `make soak`.

    python -m tests.soak.ticks [--ticks 200000] [--gpus 2] [--seed 1]

Every tick is complete: workers read, accumulators add, a page is rendered and sometimes scraped. GPUs are lost and
slow, drivers are reloaded and handed over. Memory of the last quarter is compared with that of the second; threads and
descriptors must not grow. `tests.soak.faults` tests wedged drivers, which need real time.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from types import ModuleType
from typing import NamedTuple
from unittest.mock import patch

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline import collector as collector_module
from gpu_exporter.pipeline import composer, connector, gpu_state, hand_over, worker
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.pages import Pages, Variant
from gpu_exporter.pipeline.renderer import Renderer
from gpu_exporter.sources.simulated import device
from gpu_exporter.sources.simulated.faults import LOST, RELOAD, SLOW
from gpu_exporter.sources.simulated.source import FleetSettings, fleet
from gpu_exporter.sources.simulated.workload import workloads
from tests.conftest import RECORDINGS

NODE = "node-000"
VARIANTS = [Variant(*each) for each in product((False, True), repeat=2)]
FAULT_TICKS, HAND_OVER_TICKS, SCRAPE_TICKS = 100, 500, 15
# Samples of the usage in any run, because they use memory, too.
SAMPLES = 400
CLOCKS: Sequence[ModuleType] = (collector_module, connector, hand_over, composer, gpu_state, worker, device)
MIB = 1 << 20


class Used(NamedTuple):
    """The usage of the process."""

    mib: float
    threads: int
    descriptors: int


class Clock:
    """Time that passes only in `pass_by`."""

    def __init__(self) -> None:
        self._begin = self._now = time.monotonic()
        self._unix = time.time()

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._unix + self._now - self._begin

    def pass_by(self, seconds: float) -> None:
        """Advance the time."""
        self._now += seconds


def usage() -> Used:
    """Return the usage of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    count = [len(os.listdir(f"/proc/self/{each}")) for each in ("task", "fd")]
    return Used(pages * os.sysconf("SC_PAGE_SIZE") / MIB, *count)


def script(rng: random.Random, ticks: int, gpus: int) -> str:
    """Return faults for this many seconds, one after another."""
    faults = []
    for begin in range(FAULT_TICKS, ticks, FAULT_TICKS):
        kind = rng.choice((LOST, LOST, SLOW, RELOAD))
        where = NODE if kind == RELOAD else f"{NODE}/{rng.choice([*range(gpus), '*'])}"
        faults.append(f"{kind} {where} at {begin + rng.randrange(20)}s for {rng.randint(1, 60)}s")
    return ";".join(faults)


class Life:
    """One node, and its results."""

    def __init__(self, ticks: int, gpus: int, seed: int) -> None:
        self.used: list[Used] = []
        self.states: Counter[str] = Counter()
        self._ticks, self._rng, self._clock = ticks, random.Random(seed), Clock()
        self._renderer, self._pages = Renderer(NODE), Pages()
        known = workloads(sorted(RECORDINGS.glob("*.jsonl.gz")))
        faults = script(self._rng, ticks, gpus)
        nodes = fleet(FleetSettings(1, gpus, seed, faults), known, self._clock.monotonic, self._clock.pass_by)
        self._collector = Collector(nodes[NODE], selected(MetricSet.FULL), self._publish)

    def _publish(self, made: Snapshot) -> None:
        self._pages.publish(self._renderer.render(made))
        self.states.update(status.reason or "up" for status in made.gpus)

    def run(self) -> None:
        """Run tick after tick, without pauses."""
        with ExitStack() as stack:
            for module in CLOCKS:
                stack.enter_context(patch.object(module, "time", self._clock))
            assert self._collector.connect()
            for tick in range(self._ticks):
                self._tick(tick)
            self._collector.hand_over_state.end()
            assert self._collector.stop(10)

    def _tick(self, tick: int) -> None:
        collector = self._collector
        self._clock.pass_by(collector.settings.interval)
        collector.tick()
        if not collector.connection.up:  # its back-off is real time
            collector.connection.wake()
            time.sleep(0.001)
        if tick % HAND_OVER_TICKS == HAND_OVER_TICKS - 1:
            collector.hand_over_state.begin(self._rng.randint(1, 60))
        if tick % SCRAPE_TICKS == 0:
            for variant in VARIANTS:
                self._pages.get(variant)
        if tick % max(1, self._ticks // SAMPLES) == 0:
            self.used.append(usage())


def quarters(used: Sequence[Used]) -> list[Used]:
    """Return the median memory and the most threads and descriptors of each quarter."""
    quarter = len(used) // 4
    parts = [used[number * quarter : (number + 1) * quarter] for number in range(4)]
    return [
        Used(
            statistics.median(each.mib for each in part),
            max(each.threads for each in part),
            max(each.descriptors for each in part),
        )
        for part in parts
    ]


def main() -> int:
    """Run and print the result."""
    options = argparse.ArgumentParser()
    options.add_argument("--ticks", type=int, default=200_000)
    options.add_argument("--gpus", type=int, default=2)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    logging.disable()  # thousands of faults would be logged
    begin = time.monotonic()
    life = Life(chosen.ticks, chosen.gpus, chosen.seed)
    life.run()
    _, second, _, last = found = quarters(life.used)
    print(f"{chosen.ticks} ticks of {chosen.gpus} GPUs in {time.monotonic() - begin:.0f} s", end=": ")
    print(", ".join(f"{state} {number}" for state, number in life.states.most_common()))
    print("RSS", " -> ".join(f"{each.mib:.2f}" for each in found), "MiB by quarter", end=", ")
    print(f"threads {second.threads} -> {last.threads}, descriptors {second.descriptors} -> {last.descriptors}")
    return 0 if last.mib < second.mib * 1.02 and last[1:] <= second[1:] else 1


if __name__ == "__main__":
    sys.exit(main())
