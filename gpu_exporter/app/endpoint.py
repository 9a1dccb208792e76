"""What the server needs of one node: its pages, its health and its events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from gpu_exporter.active_checks.history import Run
from gpu_exporter.app.api import EVENTS_SECONDS, Composed, Since
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.pipeline.pages import NO_METRICS_YET, Pages
from gpu_exporter.pipeline.settings import PAGE_SECONDS
from gpu_exporter.reports.masking import Names

if TYPE_CHECKING:
    from gpu_exporter.live_page.thread import LiveNode
    from gpu_exporter.profiling.views import ProfileViews

# A page expires after this time, or after this many intervals if that is longer.
EXPIRY_SECONDS = 5.0
EXPIRY_INTERVALS = 3


class NodeHealth:
    """Liveness and readiness of a node, from its latest page and snapshot.

    `failure` returns why the collection loop makes no page.
    """

    def __init__(self, interval: float, pages: Pages, failure: Callable[[], str] = str) -> None:
        self.snapshot: Snapshot | None = None
        self.pages = pages
        self._interval = interval
        self._failure = failure

    def liveness_problem(self) -> str:
        """Return one line that says since when there are no new metrics, and why; empty if the page is new enough.

        Only the age of the page counts, not its GPUs: the thread that makes pages never calls a driver.
        """
        if not self.pages.made.is_set():
            return NO_METRICS_YET
        age = time.monotonic() - self.pages.made_at
        if age <= max(EXPIRY_SECONDS, EXPIRY_INTERVALS * self._interval):
            return ""
        since = datetime.fromtimestamp(time.time() - age, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        why = self._failure() or "the collection loop hangs"
        return f"no new metrics since {since}, {age:.0f} s ago: {why}"

    def readiness_problem(self) -> str:
        """Return why the node is not ready; empty if it is.

        It is ready if the last good read of any GPU is younger than three intervals. While a GPU is up, intervals
        shorter than PAGE_SECONDS count as PAGE_SECONDS.
        """
        problem = self.liveness_problem()
        if self.snapshot is None or problem:
            return problem or NO_METRICS_YET
        if self.snapshot.read_at is None:
            return "no GPU has been read yet"
        if any(status.reason == "released" for status in self.snapshot.gpus):
            return "released: `gpu-exporter release` made the exporter release the driver"
        age = time.monotonic() - self.snapshot.read_at
        period = max(self._interval, PAGE_SECONDS if any(status.up for status in self.snapshot.gpus) else 0.0)
        return f"no GPU has been read for {age:.1f} s: `gpu-exporter doctor` says why" if age >= 3 * period else ""


class Reply(NamedTuple):
    """The answer to somebody who asks for a profile: JSON, or a line of text why there is none, with another status."""

    status: int
    body: bytes
    retry_seconds: float = 0.0


def never() -> bool:
    """Return False: real sources never simulate a dead exporter."""
    return False


def no_check(uuid: str) -> Run | None:
    """Return None: without `--state-dir`, results of active checks are not known."""
    return None


@dataclass(frozen=True, slots=True)
class ProfileAccess:
    """The profiles of a node's processes. `ask` has one taken, with the arguments of a URL, for a user."""

    views: ProfileViews
    ask: Callable[[Mapping[str, Sequence[str]], str], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One node, with its `/api/v1` answers. `dead` returns whether a simulated exporter must not answer scrapes.

    `live` is the node's live page; None if that is off. `boot_id` is that of the machine with the GPUs, "" if the
    exporter cannot know it. `profiles` is None if the node takes none. `last_check` returns the last active check of a
    GPU by its UUID. Only `trusted_users`, and who has the token, may see profiles; for others, `names` replaces names.
    """

    node: str
    health: NodeHealth
    events: EventLog | None = None
    dead: Callable[[], bool] = never
    live: LiveNode | None = None
    boot_id: str = ""
    profiles: ProfileAccess | None = None
    last_check: Callable[[str], Run | None] = no_check
    trusted_users: frozenset[str] = frozenset()
    names: Names = field(default_factory=lambda: Names(mask=False))
    since: Since = field(default_factory=Since, init=False)
    # For clients that may see profiles, and for those that may not.
    gpus: Mapping[bool, Composed] = field(default_factory=lambda: {True: Composed(), False: Composed()}, init=False)
    page: Mapping[bool, Composed] = field(default_factory=lambda: {True: Composed(), False: Composed()}, init=False)
    state: Composed = field(default_factory=lambda: Composed(EVENTS_SECONDS), init=False)
    recent: Mapping[bool, Composed] = field(
        default_factory=lambda: {each: Composed(EVENTS_SECONDS) for each in (True, False)}, init=False
    )

    def names_for(self, *, trusted: bool) -> Names:
        """Return what replaces names for a client that may see profiles, or may not."""
        return Names(mask=False) if trusted else self.names

    @property
    def pages(self) -> Pages:
        """The pages whose age is the health of the node."""
        return self.health.pages
