"""What the server answers for one node: its pages, its health, its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_exporter.collection.composer import PAGE_SECONDS
from gpu_exporter.exposition.pages import Pages
from gpu_exporter.health.events import EventLog
from gpu_exporter.model.snapshot import Snapshot


class Health:
    """Liveness and readiness, from the latest snapshot and the time of the collection loop's last tick."""

    def __init__(self, interval: float, ticked_at: Callable[[], float]) -> None:
        self.snapshot: Snapshot | None = None
        self._interval = interval
        self._ticked_at = ticked_at

    def alive(self) -> str:
        """Why the process does not work; empty if it does. The loop calls no driver: only a bug can block it."""
        silent = time.monotonic() - self._ticked_at()
        return f"the collection loop has not ticked for {silent:.0f} s" if silent > max(60, 10 * self._interval) else ""

    def ready(self) -> str:
        """Why the node is not ready; empty if it is.

        It is ready while the last good read of any GPU is younger than three intervals; while a GPU is up, than three
        pages.
        """
        if self.snapshot is None:
            return "no snapshot yet"
        if self.snapshot.read_at is None:
            return "no GPU was read yet"
        if any(status.reason == "released" for status in self.snapshot.gpus):
            return "released: the driver is let go of, as gpu-exporter release asked"
        age = time.monotonic() - self.snapshot.read_at
        period = max(self._interval, PAGE_SECONDS if any(status.up for status in self.snapshot.gpus) else 0.0)
        return f"the last good read is {age:.1f} s old" if age >= 3 * period else ""


def never() -> bool:
    """The `dead` of a source that does not simulate one."""
    return False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One node. `dead` returns whether a simulated exporter has died, and so must not answer scrapes."""

    node: str
    pages: Pages
    health: Health
    events: EventLog | None = None
    dead: Callable[[], bool] = never
