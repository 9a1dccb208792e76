"""What the server answers for one node: its pages, its health, its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from gpu_exporter.collection.settings import PAGE_SECONDS
from gpu_exporter.exposition.pages import Pages
from gpu_exporter.health.events import EventLog
from gpu_exporter.model.snapshot import Snapshot

# A page is served until it is as old as this, or as so many intervals if that is longer.
EXPIRY_SECONDS = 5.0
EXPIRY_INTERVALS = 3


class Health:
    """Liveness and readiness, from the latest page and its snapshot. `failure` returns why no page is made."""

    def __init__(self, interval: float, pages: Pages, failure: Callable[[], str] = str) -> None:
        self.snapshot: Snapshot | None = None
        self._interval = interval
        self._pages = pages
        self._failure = failure

    def alive(self) -> str:
        """Return since when there is no page that may be served, and why, in one line; empty if there is one.

        Only the age of the page counts, not its GPUs: the thread that makes pages never calls a driver.
        """
        if not self._pages.made.is_set():
            return "no page has been made yet"
        age = time.monotonic() - self._pages.made_at
        if age <= max(EXPIRY_SECONDS, EXPIRY_INTERVALS * self._interval):
            return ""
        since = datetime.fromtimestamp(time.time() - age, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = self._failure() or "the collection loop hangs"
        return f"no page was made since {since}, {age:.0f} s ago: {why}"

    def ready(self) -> str:
        """Return why the node is not ready; empty if it is.

        It is ready while the last good read of any GPU is younger than three intervals; while a GPU is up, than three
        pages.
        """
        problem = self.alive()
        if self.snapshot is None or problem:
            return problem or "no snapshot yet"
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
