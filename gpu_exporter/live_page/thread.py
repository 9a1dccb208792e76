"""The thread that follows the snapshots of all nodes for the live page. It never calls a driver, and nothing waits
for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpu_exporter.live_page.monitor import LiveMonitor
from gpu_exporter.live_page.stream import Stream

if TYPE_CHECKING:
    from gpu_exporter.model.snapshot import Snapshot

log = logging.getLogger(__name__)

# How often a snapshot is taken for the history, watched for the diagnosis, and judged, while nobody looks.
QUIET_SECONDS, QUIET_WATCHED, QUIET_JUDGED = 5.0, 10.0, 30.0
# How often a snapshot is taken and watched while a page is open, and judged then or while the exporter is young.
OPEN_SECONDS, OPEN_JUDGED = 1.0, 5.0
# With several nodes, one that nobody has asked about for this long is not followed.
ASKED_SECONDS = 120.0
# Somebody who asks for the GPUs this often gets diagnoses as new as those of an open page.
WATCHED_SECONDS = 15.0


class LiveNode:
    """The live view of one node. `newest` returns its latest snapshot, `problem` why there is no newer one.

    It is followed `always`, or only while somebody looks at it.
    """

    def __init__(
        self,
        monitor: LiveMonitor,
        newest: Callable[[], Snapshot | None],
        problem: Callable[[], str],
        *,
        always: bool = True,
    ) -> None:
        self.monitor, self.stream = monitor, Stream()
        self._newest, self._problem, self._always = newest, problem, always
        self._started, self._asked_at = time.monotonic(), -ASKED_SECONDS
        self._seen: Snapshot | None = None
        self._taken_at = self._watched_at = self._judged_at = float("-inf")

    def asked(self) -> None:
        """Note that somebody looks at this node."""
        self._asked_at = time.monotonic()

    def follow(self) -> None:
        """Take the newest snapshot if it is time, judge it if it is time, and send it to open pages."""
        now, is_open, snapshot = time.monotonic(), self.stream.is_open, self._newest()
        unasked = now - self._asked_at
        if not (self._always or is_open or unasked < ASKED_SECONDS):
            return
        watched = is_open or unasked < WATCHED_SECONDS
        if snapshot is None or (snapshot is self._seen and not is_open):
            return
        problem = self._problem()
        if snapshot is not self._seen and (watched or now - self._taken_at >= QUIET_SECONDS):
            self._seen, self._taken_at = snapshot, now
            complete = self.monitor.take(snapshot)
            self._diagnose(snapshot, now, often=watched or now - self._started < QUIET_JUDGED)
            if complete and is_open:
                self.stream.post("point", self.monitor.point_json(), snapshot.at)
        elif not problem and self.stream.has_posted:
            return
        for trusted in self.stream.audiences:
            event = self.monitor.event(snapshot, problem, trusted=trusted)
            self.stream.post("gpus", event, snapshot.at, trusted=trusted)

    def _diagnose(self, snapshot: Snapshot, now: float, *, often: bool) -> None:
        due = now - self._judged_at >= (OPEN_JUDGED if often else QUIET_JUDGED)
        if due or often or now - self._watched_at >= QUIET_WATCHED:
            self.monitor.watch(snapshot)
            self._watched_at = now
        if due:
            self.monitor.judge(snapshot)
            self._judged_at = now


class LiveThread:
    """Follows all nodes until `stop`."""

    def __init__(self, nodes: Sequence[LiveNode]) -> None:
        self._nodes = nodes
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)
        self._stop = threading.Event()

    def start(self, stop: threading.Event) -> None:
        """Begin to follow, until `stop` is set."""
        self._stop = stop
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(OPEN_SECONDS):
            for node in self._nodes:
                try:
                    node.follow()
                except Exception:  # the page must not end because of one snapshot
                    log.exception("the live page of node %s", node.monitor.name)
