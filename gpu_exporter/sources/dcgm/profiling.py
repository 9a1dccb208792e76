"""The profiling values of one GPU: each sample counts once, over the time since the one before; and pauses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.sources.dcgm.plan import Question
from gpu_exporter.sources.dcgm.values import Answer, Entity

# A sample that came later than that many intervals after the one before has only the last of them in it.
LONGEST_SPAN = 2.5
# For how long there may be no new sample, in intervals and seconds, before it means something.
PATIENCE_INTERVALS, PATIENCE_SECONDS = 3.0, 2.0
# How often a GPU whose counters somebody else has is tried again.
RETRY_SECONDS = 30.0
# The same where the means are lacking: they may be installed.
LATER_SECONDS = 600.0


@dataclass(slots=True)
class Profiling:
    """What was seen of the profiling fields since they were asked for at `since` (monotonic seconds).

    `counted` has the stamps of samples that any device of this GPU has taken: while it is attached twice, the second
    one goes on where the first is. `refused` has those that the host engine does not sample, with the reason; `pause`
    says that somebody else has the counters.
    """

    questions: tuple[Question, ...]
    interval: float
    since: float
    counted: dict[tuple[Entity, int], int]
    pause: str = ""
    refused: dict[Metric, str] = field(default_factory=dict)
    _stamps: dict[Series, int] = field(default_factory=dict)
    _seen_at: dict[Series, float] = field(default_factory=dict)
    _said: set[Series] = field(default_factory=set)

    @property
    def patience(self) -> float:
        """Seconds without a new sample that are nothing strange."""
        return PATIENCE_INTERVALS * self.interval + PATIENCE_SECONDS

    def refuse(self, entities: Sequence[Entity], number: int, reason: str) -> None:
        """Take note that the host engine does not sample a field of these entities."""
        gone = {each for each in self.questions if each.number == number and each.entity in entities}
        self.refused.update((question.series.metric, reason) for question in gone)
        self.questions = tuple(question for question in self.questions if question not in gone)

    def read(
        self,
        answers: Mapping[tuple[Entity, int], Answer],
        now: float,
        values: dict[Series, float],
        spans: dict[Series, float],
        failed: dict[Series, str],
    ) -> None:
        """Fill in the samples that are new. A series that has had none for long fails once, until one comes."""
        for question in self.questions:
            series = question.series
            answer = answers.get(question.key)
            value = (
                None if answer is None or not isinstance(answer.value, int | float) else question.value(answer.value)
            )
            if answer is not None and value is not None:
                before = self._stamps.get(series, self.counted.get(question.key))
                if answer.stamp != before:
                    values[series] = value
                    spans[series] = self._span(before, answer.stamp)
                    self._stamps[series] = self.counted[question.key] = answer.stamp
                    self._seen_at[series] = now
                    self._said.discard(series)
                    continue
            seen_at = self._seen_at.get(series)
            if seen_at is not None and now - seen_at > self.patience and series not in self._said:
                self._said.add(series)
                failed[series] = "paused" if answer is None or answer.value is None else "no_data"
        self.pause = self._paused(now)

    def _span(self, before: int | None, stamp: int) -> float:
        """Seconds that a sample is the mean over: from the one before, as the host engine's clock tells."""
        if before is None or stamp < before:
            return self.interval
        span = (stamp - before) / 1e6
        return span if span <= LONGEST_SPAN * self.interval else self.interval

    def _paused(self, now: float) -> str:
        """Counters that gave values, and give none of them any more, have been taken."""
        if not self.questions:
            return self.pause
        return "no_values" if self._seen_at and now - max(self._seen_at.values()) > self.patience else ""

    def due(self, now: float) -> bool:
        """Whether to ask for the fields anew."""
        if self.pause:
            return now - self.since >= RETRY_SECONDS
        without = bool(self.refused) or (bool(self.questions) and not self._seen_at)
        return without and now - self.since >= LATER_SECONDS

    def unsupported(self, answers: Mapping[tuple[Entity, int], Answer], now: float) -> dict[Metric, str]:
        """What never had a value, and why; not before one could be there."""
        found = dict(self.refused)
        seen = {series.metric for series in self._seen_at}
        for question in self.questions:
            metric = question.series.metric
            if metric in seen:
                continue
            answer = answers.get(question.key)
            reason = "no_value" if answer is None else answer.reason
            if now - self.since > self.patience or reason in ("not_supported", "no_permission"):
                found[metric] = reason or "no_value"
        return found

    def after(self, before: Profiling) -> None:
        """Go on where an earlier one ended: no sample counts twice."""
        for question in self.questions:
            series = question.series
            if series in before._stamps:
                self._stamps[series] = before._stamps[series]
                self._seen_at[series] = before._seen_at[series]
