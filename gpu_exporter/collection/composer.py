"""What the loop knows of the GPUs -> a snapshot: their samples, and the exporter's own about them and about itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.collection.accumulator import Accumulator
from gpu_exporter.collection.dcgm_counts import ClockEvents
from gpu_exporter.health import judge
from gpu_exporter.health.events import EventLog
from gpu_exporter.model.gpu import Gpu, Owner, Sample, Series
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.pci import pci_bus_id
from gpu_exporter.model.snapshot import GpuSamples, GpuStatus, OwnerLabels, Row, Snapshot
from gpu_exporter.model.source import Attribution, Source
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

# How often a page is made at least, and read what only pages show, however short the interval.
PAGE_SECONDS = 1.0
# Series of a GPU that was not read for so many intervals are withdrawn: Prometheus would stamp them as fresh. It is the
# third read in a row that is missing, whose tick comes when the values are not quite three intervals old.
STALE_INTERVALS = 2.5


class GpuRecord:
    """What the loop knows of one GPU, by UUID; it stays when the GPU is gone. Its worker writes, the clock reads."""

    def __init__(self, gpu: Gpu, gauge_window: float) -> None:
        self.gpu = gpu
        self.accumulator = Accumulator(gauge_window)
        self.clock_events = ClockEvents()
        self.samples: tuple[Sample, ...] = ()
        self.unsupported: Mapping[Metric, str] = {}
        self.read_at: float | None = None
        self.period = 0.0
        self.reason = "unread"
        self.duration = 0.0
        self.spent = 0.0
        self.failures = 0
        self.skipped = 0
        self.told = False

    def why(self, metric: Metric) -> str:
        """Why there is no value of this metric."""
        if reason := self.unsupported.get(metric):
            return reason
        failures = self.accumulator.field_failures.copy()
        return next((outcome for name, outcome in failures if name == metric.name), "not_read")

    def read(self, now: float) -> None:
        """A read went well; of short intervals only some have one."""
        self.period = PAGE_SECONDS if self.read_at is None else min(now - self.read_at, PAGE_SECONDS)
        self.read_at = now
        self.up()

    def down(self, reason: str, message: str) -> None:
        """A read failed; said in the log when that is news."""
        self.failures += 1
        if self.reason != reason:
            log.warning("GPU %d (%s) is down: %s", self.gpu.index, self.gpu.uuid or "not identified", message)
        self.reason = reason

    def stuck(self) -> None:
        """A read does not return; said in the log once."""
        if self.reason != "stalled":
            log.warning("GPU %d (%s) is stuck in a driver call", self.gpu.index, self.gpu.uuid or "not identified")
        self.reason = "stalled"

    def up(self) -> None:
        """A read went well; said in the log when that is news."""
        if self.reason not in ("", "unread", "released"):
            log.info("GPU %d (%s) is back", self.gpu.index, self.gpu.uuid)
        self.reason = ""


class Composer:
    """Makes the snapshots of one source. A series is the same object in all of them."""

    def __init__(self, source: Source, attribution: Attribution | None = None) -> None:
        self._source = source.name
        self._attribution = attribution
        self._told: dict[Row, Series] = {}
        self._owners = source.owners
        self._beside = source.non_gpu_samples
        self._live = source.live
        self._series: dict[tuple[Metric, Gpu | None, Labels], Series] = {}
        self._unsupported: dict[Gpu, tuple[Mapping[Metric, str], Sequence[Sample]]] = {}

    def compose(
        self,
        gpus: Sequence[tuple[GpuRecord, GpuStatus]],
        source_down: str,
        own: Iterable[tuple[Metric, float]],
        interval: float,
        events: EventLog | None = None,
        counted: tuple[Collection[Metric], float] = ((), 0.0),
    ) -> Snapshot:
        """A snapshot of now, without series of GPUs that are read each `interval` seconds, and were not for long.

        `counted`: which of dcgm-exporter's counts of Xids are exposed, and over how many seconds.
        """
        now, told = time.time(), events.problems() if events else {}
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        seen: list[GpuSamples] = []
        for record, status in gpus:
            age = None if record.read_at is None else time.monotonic() - record.read_at
            stale_after = STALE_INTERVALS * max(interval, record.period)
            fresh = age is not None and age <= stale_after and status.reason != "released"
            read = record.samples if fresh else ()
            verdict = judge.judge(status, read, record.why, told.get(pci_bus_id(record.gpu.pci_bus_id), ()))
            verdicts.append(verdict)
            seen.append(GpuSamples(record.gpu, record.read_at if fresh else None, record.samples, record.unsupported))
            samples += read
            samples += self._of_gpu(record, status, now, fresh=fresh)
            samples += self._of_health(verdict)
        samples += [self._own(metric, None, value) for metric, value in own]
        samples += () if source_down else self._beside()
        samples += (
            self._own(m.VISIBLE, None, sum(status.up for _, status in gpus)),
            self._own(m.RENDERED_AT, None, round(now, 3)),
            self._own(m.SOURCE_UP, None, not source_down, source=self._source),
            self._own(m.BUILD_INFO, None, 1, version=__version__),
        )
        if source_down:
            samples.append(self._own(m.SOURCE_DOWN, None, 1, source=self._source, reason=source_down))
        if events:
            heard = bool(gpus) and all(record.told for record, _ in gpus)
            known = [record.gpu for record, _ in gpus]
            for metric, gpu, value, labels in chain(
                events.samples(known, heard), events.as_dcgm_exporter(known, *counted, heard)
            ):
                samples.append(self._own(metric, gpu, value, **labels))
        owner_labels = self._attribute(seen, samples)
        statuses = tuple(status for _, status in gpus)
        return Snapshot(now, self._source, tuple(samples), statuses, self._live, tuple(verdicts), owner_labels)

    def _attribute(self, seen: Sequence[GpuSamples], samples: list[Sample]) -> OwnerLabels:
        """Add the rows of whose the GPUs are. Pods come and go: series of those that are gone are not kept."""
        if self._attribution is None:
            return OwnerLabels()
        owner_labels, rows = self._attribution.attribute(seen)
        known, self._told = self._told, {}
        for row in rows:
            key = row._replace(value=0)
            series = self._told[key] = known.get(key) or Series(row.metric, row.gpu, row.labels)
            samples.append(Sample(series, row.value))
        return owner_labels

    def _of_health(self, verdict: Verdict) -> Iterable[Sample]:
        state = verdict.health.value
        for row in m.HEALTH_STATE:
            yield self._own(row, verdict.gpu, row.labels[0][1] == state)
        for reason, action in dict.fromkeys((each.reason, each.action.value) for each in verdict.problems):
            yield self._own(m.HEALTH_REASON, verdict.gpu, 1, reason=reason, action=action)

    def _of_gpu(self, record: GpuRecord, status: GpuStatus, now: float, *, fresh: bool) -> list[Sample]:
        gpu, source = record.gpu, self._source
        own = [
            self._own(m.UP, gpu, status.up),
            self._own(m.STALLED, gpu, round(status.stalled, 3)),
            self._own(m.FAILURES, gpu, record.failures, source=source),
            self._own(m.SKIPPED, gpu, record.skipped),
        ]
        if not status.up:
            own.append(self._own(m.DOWN, gpu, 1, reason=status.reason))
        if gpu.uuid:
            own.append(self._own(m.INFO, gpu, 1))
            own += [self._own(m.POD_INFO, gpu, 1, **_of(owner)) for owner in self._owners(gpu)]
        own += [self._own(m.REJECTED, gpu, n, metric=name) for name, n in record.accumulator.rejected.copy().items()]
        for (name, outcome), n in record.accumulator.field_failures.copy().items():
            own.append(self._own(m.FIELD_FAILURES, gpu, n, metric=name, reason=outcome))
        if record.read_at is None:
            return own
        age = time.monotonic() - record.read_at
        own += [
            self._own(m.READ_AT, gpu, round(now - age, 3)),
            self._own(m.READ_AGE, gpu, round(age, 3)),
            self._own(m.DURATION, gpu, round(record.duration, 6), source=source),
            self._own(m.SPENT, gpu, round(record.spent, 3), source=source),
        ]
        return [*own, *self._missing(gpu, record.unsupported)] if fresh else own

    def _missing(self, gpu: Gpu, unsupported: Mapping[Metric, str]) -> Sequence[Sample]:
        """What the GPU can't answer, which hardly ever changes: made again only when it does."""
        known = self._unsupported.get(gpu)
        if known is None or known[0] != unsupported:
            samples = [
                self._own(m.SUPPORTED, gpu, 0, metric=metric.key, reason=outcome)
                for metric, outcome in unsupported.items()
            ]
            known = self._unsupported[gpu] = (unsupported, samples)
        return known[1]

    def _own(self, metric: Metric, gpu: Gpu | None, value: float, /, **labels: str) -> Sample:
        key = (metric, gpu, tuple(labels.items()))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(*key)
        return Sample(series, value)


def _of(owner: Owner) -> dict[str, str]:
    known = {**owner._asdict(), "GPU_I_ID": owner.instance, "instance": ""}
    return {name: value for name, value in known.items() if value}
