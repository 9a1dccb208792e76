"""Compose a snapshot from the GPUs' states: samples, and metrics about the GPUs and the exporter."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.events.event_log import EventLog, MetricRow
from gpu_exporter.health import fitness
from gpu_exporter.health.links import GpuLinks, LinkHistory
from gpu_exporter.model.gpu import Gpu, Owner, Sample, Series
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.pci import PciGpu, pci_bus_id
from gpu_exporter.model.snapshot import SOURCE_LOST, GpuSamples, GpuStatus, OwnerLabels, Row, Snapshot
from gpu_exporter.model.source import Attribution, HostEvidence, Source, Telemetry
from gpu_exporter.model.verdict import Problem, Verdict
from gpu_exporter.pipeline.gpu_state import GpuState
from gpu_exporter.pipeline.settings import CollectionSettings
from gpu_exporter.version import __version__

# GPUs that stopped to answer within this time failed at the same moment.
MOMENT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Context:
    """What tells more about the GPUs than their source does: their events, owners, hosts, jobs and profiles, where
    configured, and what their links reached before."""

    events: EventLog | None = None
    attribution: Attribution | None = None
    host: HostEvidence | None = None
    telemetry: Sequence[Telemetry] = ()
    links: LinkHistory | None = None


NO_CONTEXT = Context()


class Composer:
    """Makes the snapshots of one source. A series is the same object in each of them."""

    def __init__(self, source: Source, settings: CollectionSettings, context: Context) -> None:
        self._source, self._through_hostengine = source.name, source.through_hostengine
        self._live, self._description = source.live, source.description
        self._owners = source.owners
        self._non_gpu_samples = source.non_gpu_samples
        self._settings = settings
        self._events, self._attribution = context.events, context.attribution
        self._host, self._telemetry = context.host, context.telemetry
        self._links = context.links or LinkHistory()
        self._attributed: dict[tuple[Metric, Gpu | None, Labels], Series] = {}
        self._series: dict[tuple[Metric, Gpu | None, Labels], Series] = {}
        self._unsupported: dict[Gpu, tuple[Mapping[Metric, str], Sequence[Sample]]] = {}
        self._gpus: Sequence[Gpu] = ()
        self._event_rows: Sequence[MetricRow] = ()
        self._of_events: Sequence[Sample] = ()

    def compose(
        self,
        gpus: Sequence[tuple[GpuState, GpuStatus]],
        source_down: str,
        exporter_metrics: Iterable[tuple[Metric, float]],
        xid_counts: Collection[Metric],
        missing: Sequence[PciGpu] = (),
    ) -> Snapshot:
        """Return a snapshot of now, without the series of GPUs that were not read for some intervals.

        `source_down` is the reason why the source is down, or empty. `exporter_metrics` are those of the exporter
        itself. `xid_counts` are those of dcgm-exporter's XID metrics that are exposed. `missing` are GPUs on the PCI
        bus that the driver does not list.
        """
        now = time.time()
        self._forget_others([state.gpu for state, _ in gpus])
        problems = self._events.problems() if self._events else {}
        samples: list[Sample] = []
        verdicts: list[Verdict] = []
        seen: list[GpuSamples] = []
        of_node = fitness.fault_of_node(
            [status for _, status in gpus],
            max(MOMENT_SECONDS, 3 * self._settings.interval),
            through_hostengine=self._through_hostengine,
        )
        source_down = source_down or next((status.reason for status in of_node), "")
        gpus = [(state, self._judged(state, status, of_node, problems, now)) for state, status in gpus]
        rows = [self._read(state, status) for state, status in gpus]
        values = [fitness.plain(read) for _, read in rows]
        links = [GpuLinks(state.gpu, own, state.pcie_port) for (state, _), own in zip(gpus, values, strict=True)]
        expected = self._links.expected(links)
        for (state, status), (fresh, read), own, of_links in zip(gpus, rows, values, expected, strict=True):
            reported = problems.get(pci_bus_id(state.gpu.pci_bus_id), ())
            silent = bool(source_down) and (status.reason == SOURCE_LOST or status in of_node)
            words = faults.silent(self._source, source_down) if silent else ""
            own.update(of_links)
            verdict = fitness.judge(status, own, state.why, reported, silent=words)
            verdicts.append(verdict)
            if self._events and fitness.is_healthy_but_for_xids(verdict):
                self._events.confirm_repair(pci_bus_id(state.gpu.pci_bus_id))
            seen.append(GpuSamples(state.gpu, state.read_at if fresh else None, state.samples, state.unsupported))
            samples += read
            samples += [self._sample(metric, state.gpu, value) for metric, value in of_links.items()]
            samples += self._gpu_samples(state, status, now, fresh=fresh)
            samples += self._health_samples(verdict)
        samples += [self._sample(metric, None, value) for metric, value in exporter_metrics]
        samples += [self._sample(m.MISSING, None, 1, pci_bus_id=gpu.address, driver=gpu.driver) for gpu in missing]
        samples += () if source_down else self._non_gpu_samples()
        samples += self._source_samples(sum(status.up for _, status in gpus), source_down, now)
        samples += self._event_samples([state for state, _ in gpus], xid_counts)
        self._links.save()
        owner_labels = self._attribute(seen, samples)
        if self._telemetry:
            pods = [series for series in self._attributed.values() if series.metric is m.POD_INFO]
            for telemetry in self._telemetry:
                samples += telemetry.samples(seen, pods)
        statuses = tuple(status for _, status in gpus)
        return Snapshot(
            now, self._source, tuple(samples), statuses, self._live, tuple(verdicts), owner_labels, self._description
        )

    def _read(self, state: GpuState, status: GpuStatus) -> tuple[bool, Sequence[Sample]]:
        """Return whether the samples of a GPU are still valid, and these, or none."""
        fresh = status.reason != "released" and state.is_fresh(self._settings.interval)
        return fresh, state.samples if fresh else ()

    def _judged(
        self,
        state: GpuState,
        status: GpuStatus,
        of_node: Collection[GpuStatus],
        problems: Mapping[str, Sequence[Problem]],
        now: float,
    ) -> GpuStatus:
        """Return the status of a GPU, whose reason says whether the GPU or its source is at fault."""
        if status in of_node and status.reason != "stalled":
            status = replace(status, reason=SOURCE_LOST)
        read_at = 0.0 if state.read_at is None else now - (time.monotonic() - state.read_at)
        reported = problems.get(pci_bus_id(state.gpu.pci_bus_id), ())
        return replace(status, reason="lost") if fitness.is_lost_by_log(status, reported, read_at) else status

    def _forget_others(self, gpus: Sequence[Gpu]) -> None:
        """Forget the series of GPUs that are no longer shown."""
        if gpus != self._gpus:
            self._gpus, present = gpus, {None, *gpus}
            self._series = {key: series for key, series in self._series.items() if key[1] in present}
            self._unsupported = {gpu: missing for gpu, missing in self._unsupported.items() if gpu in present}

    def _source_samples(self, visible: int, source_down: str, now: float) -> Iterable[Sample]:
        yield self._sample(m.VISIBLE, None, visible)
        yield self._sample(m.RENDERED_AT, None, round(now, 3))
        yield self._sample(m.SOURCE_UP, None, not source_down, source=self._source)
        yield self._sample(m.BUILD_INFO, None, 1, version=__version__)
        if source_down:
            yield self._sample(m.SOURCE_DOWN, None, 1, source=self._source, reason=source_down)

    def _event_samples(self, states: Sequence[GpuState], xid_counts: Collection[Metric]) -> Iterable[Sample]:
        if not self._events:
            return
        nvml_up = bool(states) and all(state.reports_xids for state in states)
        reporting = {pci_bus_id(state.gpu.pci_bus_id) for state in states if state.reports_xids}
        gpus = [state.gpu for state in states]
        rows = self._events.samples(gpus, nvml_up, reporting)
        if rows is not self._event_rows:
            self._event_rows = rows
            self._of_events = [self._sample(metric, gpu, value, **labels) for metric, gpu, value, labels in rows]
        yield from self._of_events
        counts = self._events.as_dcgm_exporter(gpus, xid_counts, self._settings.xid_count_window, nvml_up, reporting)
        for metric, gpu, value, labels in counts:
            yield self._sample(metric, gpu, value, **labels)

    def _attribute(self, seen: Sequence[GpuSamples], samples: list[Sample]) -> OwnerLabels:
        """Add the samples of the GPUs' owners and hosts. Series of pods that have ended are not kept."""
        owner_labels, rows = self._labels_of_source(seen), list[Row]()
        if self._attribution:
            owner_labels, of_owners = self._attribution.attribute(seen)
            rows += of_owners
        if self._host:
            rows += self._host.rows(seen)
        previous, self._attributed = self._attributed, {}
        for row in rows:
            key = (row.metric, row.gpu, row.labels)
            series = self._attributed[key] = previous.get(key) or Series(*key)
            samples.append(Sample(series, row.value))
        return owner_labels

    def _labels_of_source(self, seen: Sequence[GpuSamples]) -> OwnerLabels:
        """Return the owner labels of classic families if the source knows pods, as attribution returns them."""
        owners = ((gpu.uuid, owner) for gpu, *_ in seen for owner in self._owners(gpu) if owner.pod)
        by_device = {(uuid, owner.instance): _pod_labels(owner) for uuid, owner in owners}
        return OwnerLabels(_pod_labels(Owner()), by_device) if by_device else OwnerLabels()

    def _health_samples(self, verdict: Verdict) -> Iterable[Sample]:
        state = verdict.health.value
        for row in m.HEALTH_STATE:
            yield self._sample(row, verdict.gpu, row.labels[0][1] == state)
        for reason, action in dict.fromkeys((problem.reason, problem.action.value) for problem in verdict.problems):
            yield self._sample(m.HEALTH_REASON, verdict.gpu, 1, reason=reason, action=action)

    def _gpu_samples(self, state: GpuState, status: GpuStatus, now: float, *, fresh: bool) -> list[Sample]:
        gpu, source = state.gpu, self._source
        samples = [
            self._sample(m.UP, gpu, status.up),
            self._sample(m.STALLED, gpu, round(status.stalled, 3)),
            self._sample(m.FAILURES, gpu, state.failures, source=source),
            self._sample(m.SKIPPED, gpu, state.skipped),
        ]
        if not status.up:
            samples.append(self._sample(m.DOWN, gpu, 1, reason=status.reason))
        if gpu.uuid:
            samples.append(self._sample(m.INFO, gpu, 1))
            samples += [self._sample(m.POD_INFO, gpu, 1, **_owner_labels(owner)) for owner in self._owners(gpu)]
        samples += [
            self._sample(m.REJECTED, gpu, n, metric=name) for name, n in state.accumulator.rejected.copy().items()
        ]
        for (name, outcome), n in state.accumulator.field_failures.copy().items():
            samples.append(self._sample(m.FIELD_FAILURES, gpu, n, metric=name, reason=outcome))
        if state.read_at is None:
            return samples
        age = time.monotonic() - state.read_at
        samples += [
            self._sample(m.READ_AT, gpu, round(now - age, 3)),
            self._sample(m.READ_AGE, gpu, round(age, 3)),
            self._sample(m.DURATION, gpu, round(state.duration, 6), source=source),
            self._sample(m.SPENT, gpu, round(state.spent, 3), source=source),
        ]
        return [*samples, *self._unsupported_samples(gpu, state.unsupported)] if fresh else samples

    def _unsupported_samples(self, gpu: Gpu, unsupported: Mapping[Metric, str]) -> Sequence[Sample]:
        """Return samples of what the GPU does not support. They are made anew only when that changes."""
        latest = self._unsupported.get(gpu)
        if latest is None or latest[0] != unsupported:
            samples = [
                self._sample(m.SUPPORTED, gpu, 0, metric=metric.key, reason=outcome)
                for metric, outcome in unsupported.items()
            ]
            latest = self._unsupported[gpu] = (unsupported, samples)
        return latest[1]

    def _sample(self, metric: Metric, gpu: Gpu | None, value: float, /, **labels: str) -> Sample:
        key = (metric, gpu, tuple(labels.items()))
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(*key)
        return Sample(series, value)


def _pod_labels(owner: Owner) -> Labels:
    return (("container", owner.container), ("namespace", owner.namespace), ("pod", owner.pod))


def _owner_labels(owner: Owner) -> dict[str, str]:
    labels = {**owner._asdict(), "GPU_I_ID": owner.instance, "instance": ""}
    return {name: value for name, value in labels.items() if value}
