"""XIDs from a host engine: watched for each GPU, read for all GPUs in one call."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from gpu_exporter.sources.dcgm.connection import Connection
from gpu_exporter.sources.dcgm.errors import DcgmError
from gpu_exporter.sources.dcgm.groups import Groups, Watch, WatchRequest
from gpu_exporter.sources.dcgm.values import Answer, Entity, gpu

XID = 230
# Samples are kept for a slow reader: DCGM's own limits on age and number.
KEEP_SECONDS, KEEP_SAMPLES = 3600.0, 1000


class XidWatches:
    """The XIDs of one connection. Every method but `unwatch` raises SourceLost if the connection is broken."""

    def __init__(self, connection: Connection, groups: Groups) -> None:
        self._connection, self._groups = connection, groups
        self._watchers: Counter[int] = Counter()
        self._boards: tuple[Entity, ...] = ()

    def watch(self, number: int) -> Watch | None:
        """Make the host engine keep the XIDs of a GPU; return None if it refuses."""
        watch, refused = self._groups.watch(
            WatchRequest("xid", (gpu(number),), (XID,), 1.0, KEEP_SECONDS, KEEP_SAMPLES)
        )
        if refused:
            self._groups.unwatch(watch)
            return None
        self._watchers[number] += 1
        self._regroup()
        return watch

    def unwatch(self, number: int, watch: Watch) -> None:
        """End the watch of a GPU."""
        self._watchers[number] -= 1
        self._regroup()
        self._groups.unwatch(watch)

    def _regroup(self) -> None:
        """Create one group of all watched GPUs, so that one call reads the XIDs of all."""
        boards = tuple(gpu(number) for number in sorted(+self._watchers))
        if boards == self._boards:
            return
        if self._boards:
            self._groups.drop(self._boards)
        self._boards = ()
        if boards:
            with suppress(DcgmError):  # then DCGM reports no XIDs; the kernel log has them, too
                self._groups.acquire(boards)
                self._boards = boards

    def since(self, stamp: int) -> tuple[list[tuple[Entity, Answer]], int]:
        """Return every XID after a timestamp, and the timestamp for the next call."""
        group, fields = self._groups.handle(self._boards), self._groups.fields_handle((XID,))
        if group is None or fields is None:
            return [], stamp
        try:
            return self._connection.call(self._connection.bindings.since, group, fields, stamp)
        except DcgmError:  # none yet
            return [], stamp
