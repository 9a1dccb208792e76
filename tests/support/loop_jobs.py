"""Training loops that send to a real exporter, without a training: their sums grow with the clock."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_exporter.catalogue import metrics as m
from tests.support.job_sender import encoded, message, send

EVERY = 0.2


def uuids(page: str) -> list[str]:
    """Return the UUIDs of the GPUs on a page of metrics, in order."""
    return sorted(set(re.findall(rf'^{m.UP.name}{{[^}}]*\bUUID="([^"]+)"', page, re.MULTILINE)))


@dataclass
class LoopJob:
    """A job with a rank on each of these GPUs. `steps_until`: the monotonic time of its last step, None while it steps.

    The last rank has `own` times the self time of the others, which is half of a step. `data` is the share of a step in
    the data loader.
    """

    job_id: str
    uuids: Sequence[str]
    step_seconds: float = 0.05
    own: float = 1.0
    data: float = 0.02
    steps_until: float | None = None
    begun: float = 0.0

    def messages(self, now: float) -> Iterator[Mapping[str, Any]]:
        """Yield what the ranks say at a monotonic time."""
        last = now if self.steps_until is None else min(now, self.steps_until)
        steps = int((last - self.begun) / self.step_seconds)
        trained = steps * self.step_seconds
        for rank, uuid in enumerate(self.uuids):
            said = message(steps, self.step_seconds)
            own = trained / 2 * (self.own if rank == len(self.uuids) - 1 else 1.0)
            yield {
                **said,
                "job_id": self.job_id,
                "rank": rank,
                "world_size": len(self.uuids),
                "uuid": uuid,
                "dtype": "bf16",
                "elapsed": now - self.begun,
                "since_step": now - self.begun - trained,
                "data_seconds": trained * self.data,
                "self": {**said["self"], "sum": own},
                "self_squares": own**2 / max(steps, 1),
                "phase_seconds": {"forward": own / 3, "backward": own / 2, "waiting": trained - own},
                "activity_seconds": {"training": trained, "evaluation": 0, "checkpoint": 0, "compile": 0},
            }


@contextmanager
def sending(path: Path, jobs: Sequence[LoopJob]) -> Iterator[None]:
    """Send the messages of jobs to the socket of an exporter until the end."""
    stop = threading.Event()
    for job in jobs:
        job.begun = job.begun or time.monotonic()

    def run() -> None:
        while not stop.wait(EVERY):
            for job in jobs:
                for said in job.messages(time.monotonic()):
                    send(path, encoded(said))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
