"""The series of a training job with a step timer, from which failure modes are injected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from gpu_exporter.model.job_message import ACTIVITIES, STEP_BUCKETS, TRAINING

# Steps of half a second, four fifths of which are self time, and most of that is the backward pass.
STEP_SECONDS, SELF_SHARE = 0.5, 0.8
PHASES = {"forward": 0.25, "backward": 0.45, "waiting": 0.2}
TOKENS_PER_SECOND, FLOPS_PER_SECOND, PEAK, DATA_SHARE = 8000.0, 4e14, 1e15, 0.02
# What the counters have reached, in seconds of training.
PAST = 500.0


@dataclass(frozen=True)
class TrainingLoop(Mapping[str, "float | Ramp"]):
    """The series of a job of this name, whose ranks have the GPUs of a node of this name.

    The last rank has `own` times the usual self time. `trains` is the share of time in training; the rest is in
    evaluations. `speed` is that of the steps. `since`: the time of the last step, if there are no steps any more.
    A server, which injects nothing, does not need the series; they are made when they are read first.
    """

    name: str
    ranks: int = 4
    own: float = 1.0
    trains: float = 1.0
    speed: float = 1.0
    since: float | None = None

    @cached_property
    def series(self) -> Mapping[str, float | Ramp]:
        """The values by name and labels."""
        series: dict[str, float | Ramp] = {}
        for rank in range(self.ranks):
            labels = f'job_id="{self.name}",rank="{rank}",gpu="{rank}",UUID="GPU-{self.name}-{rank}"'
            grows = 0.0 if self.since is not None else self.trains
            for key, per_second in _counters(self.own if rank == self.ranks - 1 else 1.0, self.speed):
                if key[0] == f"{m.JOB_STEP}_bucket" and rank:
                    continue  # all ranks have the same, so that of one is enough
                series[_key(*key, labels)] = Ramp(PAST * per_second, grows * per_second)
            series[_key(m.JOB_ACTIVITY.name, 'activity="evaluation"', labels)] = Ramp(0.0, 1 - self.trains)
            for metric in m.JOB_NOW:
                ((label, activity),) = metric.labels
                series[_key(metric.name, f'{label}="{activity}"', labels)] = float(activity == TRAINING)
            series[_key(m.JOB_STEPPED_AT.name, "", labels)] = Ramp(0.0, 1.0) if self.since is None else self.since
            series[_key(m.JOB_STARTED_AT.name, "", labels)] = -PAST
            series[_key(m.JOB_PEAK.name, "", labels)] = PEAK
            series[_key(m.JOB_RANK_INFO.name, f'world_size="{self.ranks}"', labels)] = 1.0
        return series

    def __getitem__(self, key: str) -> float | Ramp:
        return self.series[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        return len(self.series)


def _counters(own: float, speed: float) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield name and labels of each counter with its growth in a second of training."""
    steps = speed / STEP_SECONDS
    yield (m.JOB_STEPS.name, ""), steps
    for histogram, share in ((m.JOB_STEP, 1.0), (m.JOB_SELF, SELF_SHARE * own)):
        yield (f"{histogram}_count", ""), steps
        yield (f"{histogram}_sum", ""), share
    for edge in (*STEP_BUCKETS, float("inf")):
        text = "+Inf" if edge == float("inf") else repr(edge)
        yield (f"{m.JOB_STEP}_bucket", f'le="{text}"'), steps * (edge >= STEP_SECONDS / speed)
    yield (m.JOB_TOKENS.name, ""), TOKENS_PER_SECOND * speed
    yield (m.JOB_FLOPS.name, ""), FLOPS_PER_SECOND * speed
    yield (m.JOB_DATA.name, ""), DATA_SHARE
    for phase, share in PHASES.items():
        longer = (own - 1) * SELF_SHARE if phase == "backward" else 0.0
        yield (m.JOB_PHASE.name, f'phase="{phase}"'), share + longer
    for activity in ACTIVITIES:
        if activity != "evaluation":
            yield (m.JOB_ACTIVITY.name, f'activity="{activity}"'), float(activity == TRAINING)


def _key(name: str, more: str, labels: str) -> str:
    return f"{name}{{{labels}{',' if more else ''}{more}}}"
