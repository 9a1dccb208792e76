"""The profiling values of one GPU, and pauses. Each sample counts once, as the mean since the previous one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue.stopped_counters import StoppedCounters
from gpu_exporter.conditions.signal import PROFILING_PREFIX
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.sources.dcgm.plan import FieldQuery
from gpu_exporter.sources.dcgm.values import Entity, FieldAnswer

# A sample that comes more than this many intervals after the previous one is the mean of only the last interval.
LONGEST_SPAN = 2.5
# How long to wait for a new sample, in intervals and seconds, before it counts as missing.
PATIENCE_INTERVALS, PATIENCE_SECONDS = 3.0, 2.0
# The reason of a pause in which all counters are 0 although the GPU works, or keep their values.
STOPPED = "stopped"
# After how many seconds to retry a GPU whose counters another process holds.
RETRY_SECONDS = 30.0
# The same for a host engine that cannot profile: what it lacks may be installed meanwhile.
LATER_SECONDS = 600.0


@dataclass(slots=True)
class ProfilingReads:
    """The state of the profiling fields since they were first watched at `since` (monotonic seconds).

    `seconds` has the intervals between samples by the pace of these.
    `counted` has the stamps of samples that any device of this GPU has taken: while the GPU is attached twice, the
    second device continues where the first is. `refused` has the metrics that the host engine does not sample, with
    the reason; `pause` is the reason why there are no values: another process holds the counters, or they have stopped.
    """

    queries: tuple[FieldQuery, ...]
    seconds: Mapping[Pace, float]
    since: float
    counted: dict[tuple[Entity, int], int]
    pause: str = field(default="", init=False)
    stopped: StoppedCounters = field(default_factory=StoppedCounters, init=False)
    refused: dict[Metric, str] = field(default_factory=dict, init=False)
    stamps: dict[Series, int] = field(default_factory=dict, init=False)
    seen_at: dict[Series, float] = field(default_factory=dict, init=False)
    _reported: set[Series] = field(default_factory=set, init=False)

    def patience(self, query: FieldQuery) -> float:
        """Return how long a sample may take, in seconds."""
        return PATIENCE_INTERVALS * self.seconds[query.sampled] + PATIENCE_SECONDS

    def refuse(self, entities: Sequence[Entity], number: int, reason: str) -> None:
        """Record that the host engine does not sample a field of these entities."""
        gone = {query for query in self.queries if query.number == number and query.entity in entities}
        self.refused.update((query.series.metric, reason) for query in gone)
        self.queries = tuple(query for query in self.queries if query not in gone)

    def read(
        self,
        answers: Mapping[tuple[Entity, int], FieldAnswer],
        now: float,
        util: float | None,
        power: float | None,
        values: dict[Series, float],
        spans: dict[Series, float],
        failed: dict[Series, str],
    ) -> None:
        """Fill in the new samples. A series without one for too long fails once, until the next sample.

        `util` is the utilisation as a ratio, `power` is in watts: what counters show that have stopped are no samples.
        """
        stopped = self.stopped.take("", now, util, power, self._counters(answers))
        for query in self.queries:
            series = query.series
            is_stopped = stopped and series.metric.name.startswith(PROFILING_PREFIX)
            answer = answers.get(query.key)
            value = None if answer is None or not isinstance(answer.value, int | float) else query.value(answer.value)
            if answer is not None and value is not None:
                before = self.stamps.get(series, self.counted.get(query.key))
                if is_stopped:
                    self.stamps[series] = self.counted[query.key] = answer.stamp
                elif answer.stamp != before:
                    values[series] = value
                    spans[series] = self._span(query, before, answer.stamp)
                    self.stamps[series] = self.counted[query.key] = answer.stamp
                    self.seen_at[series] = now
                    self._reported.discard(series)
                    continue
            seen_at = self.seen_at.get(series)
            is_late = seen_at is not None and (is_stopped or now - seen_at > self.patience(query))
            if is_late and series not in self._reported:
                self._reported.add(series)
                failed[series] = "paused" if is_stopped or answer is None or answer.value is None else "no_data"
        self.pause = STOPPED if stopped else self._paused(now)

    def _counters(self, answers: Mapping[tuple[Entity, int], FieldAnswer]) -> Iterator[tuple[str, float]]:
        """Yield names and values. NVLinks count on their own."""
        for query in self.queries:
            name, answer = query.series.metric.name, answers.get(query.key)
            if name.startswith(PROFILING_PREFIX) and answer is not None and isinstance(answer.value, int | float):
                yield name, answer.value

    def _span(self, query: FieldQuery, before: int | None, stamp: int) -> float:
        """Return the seconds that a sample is the mean over: since the previous one, by the host engine's clock."""
        interval = self.seconds[query.sampled]
        if before is None or stamp < before:
            return interval
        span = (stamp - before) / 1e6
        return span if span <= LONGEST_SPAN * interval else interval

    def _paused(self, now: float) -> str:
        """Return why there are no values: if counters had values and have none now, another process holds them."""
        if not self.queries:
            return self.pause
        patience = min(map(self.patience, self.queries))
        return "no_values" if self.seen_at and now - max(self.seen_at.values()) > patience else ""

    def is_due(self, now: float) -> bool:
        """Return whether it is time to watch the fields again."""
        if self.pause:
            return now - self.since >= RETRY_SECONDS
        without = bool(self.refused) or (bool(self.queries) and not self.seen_at)
        return without and now - self.since >= LATER_SECONDS

    def unsupported(self, answers: Mapping[tuple[Entity, int], FieldAnswer], now: float) -> dict[Metric, str]:
        """Return the metrics that never had a value, with the reason, once a value is overdue."""
        reasons = dict(self.refused)
        seen = {series.metric for series in self.seen_at}
        for query in self.queries:
            metric = query.series.metric
            if metric in seen:
                continue
            answer = answers.get(query.key)
            reason = "paused" if self.pause == STOPPED else "no_value" if answer is None else answer.reason
            if now - self.since > self.patience(query) or reason in ("not_supported", "no_permission"):
                reasons[metric] = reason or "no_value"
        return reasons

    def computed_sums(
        self, queries: Sequence[FieldQuery], answers: Mapping[tuple[Entity, int], FieldAnswer], now: float
    ) -> set[Series]:
        """Return the sums that are computed from their parts, because these have values or are only paused.

        DCGM's own value of a sum has another window than the parts, and so than HELP says.
        """
        unsupported = self.unsupported(answers, now)
        known = {query.series.metric for query in self.queries} | self.refused.keys()
        parts = {metric for metric in known if unsupported.get(metric, "paused") == "paused"}
        sums = (query.series for query in queries if query.series.metric.sum_of)
        return {series for series in sums if parts.issuperset(series.metric.sum_of)}

    def resume(self, before: ProfilingReads) -> None:
        """Continue where an earlier state ended, so that no sample counts twice."""
        self.stopped = before.stopped
        for query in self.queries:
            series = query.series
            if series in before.stamps:
                self.stamps[series] = before.stamps[series]
                self.seen_at[series] = before.seen_at[series]
