"""Three ranks of one job with a step timer, as processes that wait for each other; the last one is made to fail.

`python -m tests.support.three_ranks slow|stall|kill` begins with balanced ranks, and lets the last one fail once a line
comes from its input. It ends, with all ranks, when its input does.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier, Event

from gpu_exporter.training import StepTimer

RANKS, WORK_SECONDS, SLOWER_SECONDS = 3, 0.05, 0.15


def train(rank: int, failure: str, barrier: Barrier, begins: Event) -> None:
    """Train for ever; the last rank fails once that begins."""
    with StepTimer("llm", rank=rank, world_size=RANKS, gpu=False) as timer:
        while True:
            fails = begins.is_set() and rank == RANKS - 1
            with timer.step(tokens=1000):
                with timer.phase("forward"):
                    time.sleep(WORK_SECONDS)
                with timer.phase("backward"):
                    time.sleep(WORK_SECONDS + (SLOWER_SECONDS if fails and failure == "slow" else 0.0))
                if fails and failure == "stall":
                    begins.clear()
                    begins.wait()
                with timer.waiting():
                    barrier.wait()


def main(failure: str) -> None:
    """Run the ranks until the end of the input."""
    context = multiprocessing.get_context("fork")
    barrier, begins = context.Barrier(RANKS), context.Event()
    ranks = [context.Process(target=train, args=(rank, failure, barrier, begins), daemon=True) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    sys.stdin.readline()
    begins.set()
    if failure == "kill":
        ranks[-1].kill()
    sys.stdin.read()
    for rank in ranks:
        rank.kill()


if __name__ == "__main__":
    main(sys.argv[1])
