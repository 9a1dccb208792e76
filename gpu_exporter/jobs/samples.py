"""The samples of a rank, from its state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.gpu_models import peak
from gpu_exporter.jobs.message import Sums
from gpu_exporter.jobs.places import PROFILE
from gpu_exporter.jobs.store import RankKey, RankState
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.job_message import HISTOGRAM, KEYS, STEP_BUCKETS
from gpu_exporter.model.metric import Labels, Metric

# More digits would only be noise that every scrape transfers.
DIGITS = 6


class RankSeries:
    """The series of one rank; each is the same object in all snapshots."""

    def __init__(self, key: RankKey, gpu: Gpu) -> None:
        self.gpu = gpu
        instance = key.place.instance
        self._model = f"{gpu.model} MIG {dict(instance).get(PROFILE, '')}" if instance else gpu.model
        self._labels: Labels = (("job_id", key.job_id), ("rank", str(key.rank)), *instance)
        self._series: dict[tuple[Metric, Labels, str], Series] = {}

    def samples(self, state: RankState) -> tuple[Sample, ...]:
        """Return the samples of this state."""
        return tuple(self._samples(state))

    def _samples(self, state: RankState) -> Iterator[Sample]:
        totals, message = state.totals(), state.message
        for (name, part), value in totals.items():
            key = KEYS[name]
            if key.kind != HISTOGRAM:
                label = ((key.label, part),) if key.label else ()
                yield self._sample(m.JOB_SENT[name], round(value, DIGITS), label)
            elif part == "sum":
                yield from self._histogram(m.JOB_SENT[name], name, totals)
        if state.stepped_at is not None:
            yield self._sample(m.JOB_STEPPED_AT, round(state.stepped_at, 3))
        yield self._sample(m.JOB_STARTED_AT, round(state.started_at, 3))
        yield self._sample(m.JOB_RESTARTS, state.past.processes)
        for metric in m.JOB_NOW:
            yield self._sample(metric, ("activity", message.activity) in metric.labels)
        highest = peak(self._model, message.dtype)
        if highest is not None:
            yield self._sample(m.JOB_PEAK, highest)
        facts = {
            "world_size": str(message.world_size),
            "dtype": message.dtype,
            "pod_uid": message.pod_uid,
            "verified": str(state.sender.verified).lower(),
        }
        yield self._sample(m.JOB_RANK_INFO, 1, tuple((label, text) for label, text in facts.items() if text))

    def _histogram(self, metric: Metric, name: str, totals: Sums) -> Iterator[Sample]:
        edges = (*map(repr, STEP_BUCKETS), "+Inf")
        below = list(accumulate(totals[name, str(bucket)] for bucket in range(len(edges))))
        for edge, count in zip(edges, below, strict=True):
            yield self._sample(metric, count, (("le", edge),), "_bucket")
        yield self._sample(metric, round(totals[name, "sum"], DIGITS), (), "_sum")
        yield self._sample(metric, below[-1], (), "_count")

    def _sample(self, metric: Metric, value: float, labels: Labels = (), part: str = "") -> Sample:
        key = (metric, labels, part)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(metric, self.gpu, self._labels + labels, part)
        return Sample(series, value)
