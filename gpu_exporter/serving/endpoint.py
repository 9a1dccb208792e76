"""What is shown of one node: its pages, and how it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_exporter.collection.settings import PAGE_SECONDS
from gpu_exporter.exposition.renderer import Pages
from gpu_exporter.health.events import EventLog
from gpu_exporter.model.snapshot import Snapshot


class Health:
    """What the health endpoints answer: from the latest snapshot and the clock's last tick."""

    def __init__(self, interval: float, ticked_at: Callable[[], float]) -> None:
        self.snapshot: Snapshot | None = None
        self._interval = interval
        self._ticked_at = ticked_at

    def alive(self) -> str:
        """Empty if the process works. The clock calls no driver, so if it stands still that is our bug."""
        silent = time.monotonic() - self._ticked_at()
        return f"the collection loop has not ticked for {silent:.0f} s" if silent > max(60, 10 * self._interval) else ""

    def ready(self) -> str:
        """Empty if the last good read of any GPU is younger than three intervals; while one is up, than three pages."""
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
    """What is dead of an exporter that plays nothing."""
    return False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is shown of one node. `dead` tells when a simulated one shall not be scraped any more."""

    node: str
    pages: Pages
    health: Health
    events: EventLog | None = None
    dead: Callable[[], bool] = never
