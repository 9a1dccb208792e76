"""A training loop whose loader is slow, without PyTorch or a GPU: `python examples/slow_loader.py [--prefetch]`.

With --prefetch, a thread loads the next batches while the loop trains.
"""

from __future__ import annotations

import argparse
import os
import queue
import threading
import time
from collections.abc import Iterator

from gpu_exporter.training import StepTimer


def load_batch() -> bytes:
    """Stands for reading and decoding a batch."""
    time.sleep(0.08)
    return os.urandom(4096)


def train(batch: bytes) -> None:
    """Stands for the work on the GPU."""
    time.sleep(0.1)


def one_by_one(steps: int) -> Iterator[bytes]:
    """Load each batch when the loop asks for it."""
    for _ in range(steps):
        yield load_batch()


def ahead(steps: int) -> Iterator[bytes]:
    """Load batches in a thread, up to four ahead of the loop."""
    batches: queue.Queue[bytes] = queue.Queue(4)

    def load() -> None:
        for _ in range(steps):
            batches.put(load_batch())

    threading.Thread(target=load, daemon=True).start()
    for _ in range(steps):
        yield batches.get()


options = argparse.ArgumentParser()
options.add_argument("--prefetch", action="store_true", help="load the next batches during the step")
options.add_argument("--steps", type=int, default=100)
chosen = options.parse_args()
loader = ahead(chosen.steps) if chosen.prefetch else one_by_one(chosen.steps)

with StepTimer("slow-loader") as timer:
    for batch in timer.data(loader):
        with timer.step(samples=1):
            train(batch)

for name, value in timer.summary().items():
    print(f"{name:<28}{value:.6g}")
