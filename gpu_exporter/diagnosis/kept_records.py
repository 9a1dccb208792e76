"""What is kept of the past of a node: its incidents, and what its GPUs did for their jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpu_exporter.reports.masking import Names

# An incident has ended when it has not been found for so long; two diagnoses make it one.
HOLD_SECONDS = 120.0
# The names of a culprit or a GPU that is hit, which are masked.
_MASKED = ("pod",)


@dataclass(slots=True)
class KeptIncident:
    """An incident with its begin and its end (unix seconds; None while it lasts), and what it has cost by then.

    `seen` is when it was last found: if the exporter was killed, the end is unknown, and not before. `advice` is what
    the last diagnosis said to do first; empty if an earlier version kept the incident.
    """

    id: str
    cause: str
    severity: str
    words: str
    start: float
    seen: float
    end: float | None = None
    culprits: list[dict[str, str]] = field(default_factory=list)
    hit: list[dict[str, str]] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    explains: list[str] = field(default_factory=list)
    lost_gpu_hours: float = 0.0
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "lost_gpu_hours": round(self.lost_gpu_hours, 4)}

    def masked(self, names: Names) -> KeptIncident:
        """Return it with other names of owners."""
        if not names.mask:
            return self
        words = self.words
        for workload in sorted({job.rpartition("/")[2] for job in self.jobs}, key=len, reverse=True):
            pattern = rf"(?<![\w-]){re.escape(workload)}(?![\w-])"
            words = re.sub(pattern, names.name("workload", workload), words)
        return replace(
            self,
            words=words,
            culprits=[_masked(gpu, names) for gpu in self.culprits],
            hit=[_masked(gpu, names) for gpu in self.hit],
            jobs=[masked_job(job, names) for job in self.jobs],
        )


@dataclass(slots=True)
class GpuUsage:
    """What a GPU did for a job from `start` to `end`: seconds by cause, and, if a rank of a training loop says so, its
    steps and seconds by activity."""

    UUID: str
    gpu: str = ""
    GPU_I_ID: str = ""
    job: str = ""
    job_id: str = ""
    rank: str = ""
    start: float = 0.0
    end: float = 0.0
    seconds: float = 0.0
    time: dict[str, float] = field(default_factory=dict)
    steps: float = 0.0
    step_seconds: float = 0.0
    # A step timer may know the self time of only some steps.
    self_seconds: float = 0.0
    self_steps: float = 0.0
    waiting_seconds: float = 0.0
    activity: dict[str, float] = field(default_factory=dict)
    restarts: float = 0.0


@dataclass(slots=True)
class KeptUsage:
    """What the GPUs of a node did for jobs from `start` to `end`."""

    start: float
    end: float
    gpus: list[GpuUsage] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, without what is 0 or unknown."""
        gpus = [{name: _rounded(value) for name, value in asdict(gpu).items() if value} for gpu in self.gpus]
        return {"start": round(self.start, 1), "end": round(self.end, 1), "gpus": gpus}

    def masked(self, names: Names) -> KeptUsage:
        """Return it with other names of owners."""
        if not names.mask:
            return self
        gpus = [
            replace(gpu, job=masked_job(gpu.job, names), job_id=names.name("workload", gpu.job_id)) for gpu in self.gpus
        ]
        return replace(self, gpus=gpus)


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """One line of the history: one of these."""

    incident: KeptIncident | None = None
    usage: KeptUsage | None = None


def masked_job(job: str, names: Names) -> str:
    """Return the name of a job with other names of its namespace and workload."""
    namespace, _, workload = job.rpartition("/")
    return "/".join(filter(None, (names.name("namespace", namespace), names.name("workload", workload))))


def _masked(gpu: Mapping[str, str], names: Names) -> dict[str, str]:
    return {label: names.name(label, value) if label in _MASKED else value for label, value in gpu.items()}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: round(number, 1) for name, number in value.items() if number}
    return value
