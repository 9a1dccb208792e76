"""The loop without a server: it collects in the background and offers the latest snapshot at any time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from gpu_exporter.health.links import LinkHistory
from gpu_exporter.model.metric import Gpm, Metric
from gpu_exporter.model.snapshot import SOURCE_LOST, UNREAD, Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.pipeline.composer import NO_CONTEXT, Context
from gpu_exporter.pipeline.settings import CollectionSettings

# A GPU that has not answered within this time is reported without values.
PATIENCE_SECONDS = 5.0


class Monitor:
    """Collects every `interval` seconds on its own threads; profiling values are means over `window` seconds."""

    def __init__(
        self,
        source: Source,
        metrics: Sequence[Metric],
        interval: float,
        window: float,
        expected: int | None = None,
        context: Context = NO_CONTEXT,
    ) -> None:
        settings = CollectionSettings(interval, gauge_window=window, expected_gpus=expected)
        self._collector = Collector(source, metrics, self._publish, settings, context=context)
        self._source = source
        self._profiled = any(isinstance(metric.nvml, Gpm) for metric in metrics)
        self._latest: Snapshot | None = None
        self._reads: dict[int, set[float | None]] = defaultdict(set)
        self._enough = threading.Event()

    def start(self) -> None:
        """Start, and wait until every GPU was read, or often enough for profiling values. Raises SourceLost."""
        end = time.monotonic() + PATIENCE_SECONDS
        self._collector.start(PATIENCE_SECONDS)
        begin = time.monotonic()
        self._collector.await_attached()
        end += time.monotonic() - begin
        self._enough.wait(max(0.0, end - time.monotonic()))
        self._enough.set()  # nobody waits any more: reads need no longer be counted

    def _publish(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        if self._enough.is_set():
            return
        for status in snapshot.gpus:
            self._reads[status.gpu.index].add(status.read_at)
        wanted = self._reads_wanted()
        if all(
            len(self._reads[status.gpu.index] - {None}) >= wanted
            if status.up
            else status.reason not in (UNREAD, SOURCE_LOST, "stalled")
            for status in snapshot.gpus
        ):
            self._enough.set()

    def _reads_wanted(self) -> int:
        return self._source.reads_until_profiled if self._profiled else 1

    def snapshot(self) -> Snapshot:
        """Return the latest snapshot at once. Calls no driver."""
        return self._latest or self._collector.snapshot()

    def stop(self) -> bool:
        """Stop. Return False if a driver call is stuck: then use `os._exit`."""
        return self._collector.stop()


# In a single snapshot, profiling metrics are means over this many seconds.
OBSERVE_INTERVAL = 0.5


def observe(
    source: Source, metrics: Sequence[Metric], expected: int | None = None, links: LinkHistory | None = None
) -> tuple[Snapshot, bool]:
    """Return one snapshot, and whether all threads ended. Raises SourceLost if there is no GPU.

    `links` is what the links of the GPUs reached before.
    """
    context = Context(links=links)
    monitor = Monitor(source, metrics, OBSERVE_INTERVAL, OBSERVE_INTERVAL, expected, context)
    monitor.start()
    clean = monitor.stop()
    return monitor.snapshot(), clean
