"""What the GPUs of a node do for jobs, added up from one diagnosis to the next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.kept_records import GpuUsage, KeptUsage
from gpu_exporter.diagnosis.rolling import Current
from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.model.job_message import ON_GPU, WAITING
from gpu_exporter.model.snapshot import Snapshot

# How often what GPUs did for jobs is written.
USAGE_SECONDS = 600.0
_ACTIVITY, _RANK = m.JOB_ACTIVITY.name, m.JOB_RANK_INFO.name
# The sums of a rank, and the fields of its usage that they add to. Of its phases, only waiting of its GPU counts.
_SUMS = {
    f"{m.JOB_STEP}_count": "steps",
    f"{m.JOB_STEP}_sum": "step_seconds",
    f"{m.JOB_SELF}_count": "self_steps",
    f"{m.JOB_SELF}_sum": "self_seconds",
    m.JOB_PHASE.name: "waiting_seconds",
    m.JOB_RESTARTS.name: "restarts",
}
RANK_FAMILIES = frozenset({*_SUMS, _ACTIVITY, _RANK})
# Job and rank, and sums by name and activity.
_RankSums = tuple[tuple[str, str], dict[tuple[str, str], float]]
# UUID and MIG instance.
_Place = tuple[str, str]


class JobUsage:
    """What the GPUs of a node do for jobs, since the last time that it was written."""

    def __init__(self) -> None:
        self._gpus: dict[tuple[_Place, str], GpuUsage] = {}
        self._sums: dict[tuple[_Place, str, str], dict[tuple[str, str], float]] = {}
        # Pods and Slurm jobs that have a training loop, of which the end counts.
        self._looped: set[str] = set()
        self._start = 0.0

    def take(self, current: Current, of_ranks: Iterable[ScrapedSample], seconds: float) -> set[str]:
        """Add the time since the diagnosis before; return the names of the jobs, of training loops their `job_id`."""
        jobs: set[str] = set()
        present: set[str] = set()
        if not self._gpus:
            self._start = current.at - seconds
        ranks = _by_place(of_ranks)
        for device, diagnosis in current.diagnoses.items():
            place, job = (device.uuid, device.instance), diagnosis.identity.job
            of_rank = ranks.get(place)
            if not job and of_rank is None:
                continue
            job_id, rank = of_rank[0] if of_rank else ("", "")
            present.add(job)
            if of_rank:
                self._looped.add(job)
            if of_rank or job not in self._looped:
                jobs.add(job_id or job)
            key = place, f"{job} {job_id} {rank}"
            usage = self._gpus.get(key)
            if usage is None:
                usage = GpuUsage(device.uuid, diagnosis.identity.gpu, device.instance, job, job_id, rank)
                usage.start = current.at - seconds
                self._gpus[key] = usage
            usage.end = current.at
            usage.seconds += seconds * diagnosis.identity.share
            for cause, share in diagnosis.gpu_time.items():
                usage.time[cause.value] = usage.time.get(cause.value, 0.0) + share * seconds
            if of_rank:
                self._add(usage, (place, job_id, rank), of_rank[1])
        self._looped &= present
        return jobs

    def _add(self, usage: GpuUsage, key: tuple[_Place, str, str], sums: dict[tuple[str, str], float]) -> None:
        before = self._sums.get(key)
        self._sums[key] = sums
        if before is None:
            return
        for (name, activity), value in sums.items():
            grown = max(0.0, value - before.get((name, activity), 0.0))
            if activity:
                usage.activity[activity] = usage.activity.get(activity, 0.0) + grown
            else:
                setattr(usage, _SUMS[name], getattr(usage, _SUMS[name]) + grown)

    def so_far(self, at: float) -> KeptUsage | None:
        """Return what is not written yet; None if that is nothing."""
        used = [replace(gpu, time=dict(gpu.time), activity=dict(gpu.activity)) for gpu in self._gpus.values()]
        used = [gpu for gpu in used if gpu.seconds]
        return KeptUsage(self._start, at, used) if used else None

    def complete(self, at: float, *, now: bool = False) -> KeptUsage | None:
        """Return what is to be written, and begin anew, if it is time, or `now`."""
        if not self._gpus or not (now or at - self._start >= USAGE_SECONDS or at < self._start):
            return None
        usage = self.so_far(at)
        ranks = {((gpu.UUID, gpu.GPU_I_ID), gpu.job_id, gpu.rank) for gpu in self._gpus.values()}
        self._sums = {key: sums for key, sums in self._sums.items() if key in ranks}
        self._gpus = {}
        return usage


def rank_samples(snapshot: Snapshot) -> Iterator[ScrapedSample]:
    """Yield what a snapshot says of the ranks of training loops."""
    for series, value in snapshot.samples:
        if series.gpu is not None and series.name in RANK_FAMILIES:
            if series.name == m.JOB_PHASE.name and ("phase", WAITING) not in series.labels:
                continue
            labels = dict((*series.metric.labels, *series.labels))
            yield ScrapedSample(series.name, {**labels, "UUID": series.gpu.uuid}, value)


def _by_place(samples: Iterable[ScrapedSample]) -> Mapping[_Place, _RankSums]:
    """Return the rank of a training loop on each device, and its sums. Of several ranks, the last one counts."""
    found: dict[_Place, _RankSums] = {}
    on_gpu: set[_Place] = set()
    for name, labels, value in samples:
        who = labels.get("job_id", ""), labels.get("rank", "")
        place = (labels.get("UUID", ""), labels.get("GPU_I_ID", ""))
        if place not in found or found[place][0] != who:
            found[place] = (who, {})
        if labels.get("clock") == ON_GPU:
            on_gpu.add(place)
        if name != _RANK and labels.get("phase", WAITING) == WAITING:
            found[place][1][name, labels.get("activity", "")] = value
    for place in found.keys() - on_gpu:
        found[place][1].pop((m.JOB_PHASE.name, ""), None)
    return found
