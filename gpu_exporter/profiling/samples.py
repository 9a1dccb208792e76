"""The metrics of profiles: what the latest profile of a GPU says, and how many were taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels, Metric
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import SamplingFailure
from gpu_exporter.profiling.records import Summary, cause_shares

# For how long a profile says what a GPU waits for.
SHOWN_SECONDS = 3600.0


class ProfileSeries:
    """Counts profiles, and makes samples. A series is the same object each time."""

    def __init__(self) -> None:
        self._taken = Counter[ProfileReason]()
        self._failures = Counter[SamplingFailure]()
        # Seconds in traces, by UUID and kernel class.
        self._kernels: dict[tuple[str, str], float] = {}
        self._series: dict[tuple[Metric, Gpu | None, Labels], Series] = {}

    def count(
        self, reason: ProfileReason, failed: Sequence[tuple[Process, SamplingFailure]], *, succeeded: bool
    ) -> None:
        """Count a profile, and the processes that it has no stacks of."""
        if succeeded:
            self._taken[reason] += 1
        self._failures.update(failure for _, failure in failed)

    def count_failure(self, failure: SamplingFailure) -> None:
        """Count a profile that could not be stored."""
        self._failures[failure] += 1

    def add_kernels(self, summary: Summary) -> None:
        """Add the GPU time of a trace."""
        for kernels in summary.kernels:
            key = (kernels.gpu, kernels.kernel_class)
            self._kernels[key] = self._kernels.get(key, 0.0) + kernels.seconds

    def samples(self, gpus: Sequence[GpuSamples], summaries: Sequence[Summary], now: float) -> Sequence[Sample]:
        """Return the samples of now, in unix seconds."""
        previous, self._series = self._series, {}
        made = []
        for metric, gpu, labels, value in self._rows(gpus, summaries, now):
            key = (metric, gpu, labels)
            series = self._series[key] = previous.get(key) or Series(*key)
            made.append(Sample(series, value))
        return made

    def _rows(
        self, gpus: Sequence[GpuSamples], summaries: Sequence[Summary], now: float
    ) -> Iterator[tuple[Metric, Gpu | None, Labels, float]]:
        for reason in ProfileReason:
            yield m.PROFILES, None, (("reason", reason.value),), self._taken[reason]
        for failure in SamplingFailure:
            yield m.PROFILE_FAILURES, None, (("reason", failure.value),), self._failures[failure]
        by_uuid = {seen.gpu.uuid: seen.gpu for seen in gpus}
        for (uuid, name), seconds in self._kernels.items():
            if uuid in by_uuid:
                yield m.KERNEL_CLASS, by_uuid[uuid], (("class", name),), round(seconds, 6)
        for gpu in (seen.gpu for seen in gpus):
            if latest := latest_of(summaries, gpu.uuid, now - SHOWN_SECONDS):
                yield m.PROFILED_AT, gpu, (), latest.at
                for cause, share in cause_shares(latest, gpu.uuid).items():
                    yield m.IDLE_CAUSE, gpu, (("cause", cause.value),), round(share, 4)


def latest_of(summaries: Sequence[Summary], uuid: str, since: float) -> Summary | None:
    """Return the latest profile with stacks of a process on this GPU, since this time; None if there is none."""
    for summary in reversed(summaries):
        if summary.at < since:
            return None
        if any(uuid in process.gpus and process.samples for process in summary.processes):
            return summary
    return None
