"""Where the time of GPUs went: the analysis of one trace or of several ranks of one job.

A trace is reduced to a summary, in whatever process, and the summaries of all ranks are combined. So memory does not
grow with the traces of a job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.advice import advice, merged
from gpu_exporter.traces.collectives import calls_of, collective_times, rank_step, straggler_of
from gpu_exporter.traces.details import NO_FRAMES, gpu_stacks, timeline
from gpu_exporter.traces.device_times import NS, DeviceTimes, devices, kernels, step_times
from gpu_exporter.traces.idle import HostTimes, Launches, Share, attribute, frames_of, host_times, launch_frames
from gpu_exporter.traces.intervals import length
from gpu_exporter.traces.memory import memory_of
from gpu_exporter.traces.model import TRUNCATED, DeviceKind, Trace
from gpu_exporter.traces.result import (
    Advice,
    AnalysisResult,
    GpuDetails,
    IdleCause,
    RankResult,
    TraceVerdict,
)
from gpu_exporter.traces.stacks import Stacks
from gpu_exporter.traces.summary import GpuSummary, RankSummary
from gpu_exporter.traces.verdict import Thresholds, because, class_of, losses

MOST_FRAMES, MOST_KERNELS = 5, 20
DEFAULTS = Thresholds()


def analyze(traces: Sequence[Trace], thresholds: Thresholds = DEFAULTS, *, details: bool = False) -> AnalysisResult:
    """Return where the time of each GPU went, and what limits the job: `combined` after `summary`."""
    return combined([summary(trace, details=details) for trace in traces], thresholds)


def summary(trace: Trace, *, details: bool = False) -> RankSummary:
    """Return what the analysis of one trace finds. With `details`, also the timelines and stacks of its GPUs."""
    stacks, launches = Stacks(trace), Launches(trace)
    memory = {each.device: each for each in memory_of(trace, stacks)}
    gpus: list[GpuSummary] = []
    folded: dict[str, float] = {}
    for device, times in devices(trace).items():
        shares = attribute(trace, times.events, times.busy, stacks, launches)
        host = host_times(trace, launches.rows_of(times.events))
        result = replace(
            _measured(trace, device, times, host, _causes(shares, stacks, times.span)),
            copy_frames=_frames(trace, times, DeviceKind.COPY, stacks, launches),
            communication_frames=_frames(trace, times, DeviceKind.COMMUNICATION, stacks, launches),
        )
        gpus.append(
            GpuSummary(
                replace(result, memory=memory.get(device)),
                tuple(advice(trace, times, result)),
                (times.start, times.end),
                timeline(times, trace.steps) if details else None,
                gpu_stacks(trace, times.events, stacks, launches) if details else {},
            )
        )
        folded = _folded(shares, stacks, folded) if details else {}
    return RankSummary(
        trace.path, trace.distributed, tuple(gpus), calls_of(trace), folded, dict(trace.dropped), trace.repaired
    )


def combined(summaries: Sequence[RankSummary], thresholds: Thresholds = DEFAULTS) -> AnalysisResult:
    """Return the result for a job from the summaries of its ranks.

    A rank is what its file says, otherwise the position of the file. Raises GpuExporterError if no file has GPU events,
    or if the files are not one of each rank of one job.
    """
    ranks_of_files = rank_numbers(summaries)
    if not any(each.gpus for each in summaries):
        raise GpuExporterError(no_gpu_events(summaries))
    ranks: list[RankResult] = []
    tips: list[Sequence[Advice]] = []
    idle: dict[int, Mapping[str, float]] = {}
    details: dict[tuple[int, int], GpuDetails] = {}
    collectives = collective_times([each.calls for each in summaries])
    for each, rank, of_file in zip(summaries, ranks_of_files, collectives, strict=True):
        for gpu in each.gpus:
            ranks.append(replace(gpu.result, rank=rank, collectives=of_file))
            tips.append(gpu.advice)
            idle[rank] = each.idle_stacks
            if gpu.timeline:
                details[rank, gpu.result.device] = GpuDetails(gpu.timeline, gpu.gpu_stacks)
    straggler = straggler_of(ranks, thresholds.straggler) if len(summaries) > 1 else None
    lost = losses(ranks)
    verdict = TraceVerdict(class_of(lost, straggler, thresholds), because(ranks, lost, straggler), merged(tips))
    reasons = dropped_events(summaries)
    return AnalysisResult(
        tuple(ranks),
        verdict,
        straggler,
        sum(reasons.values()),
        dict(reasons),
        sum(each.repaired for each in summaries),
        truncated=tuple(each.file for each in summaries if TRUNCATED in each.dropped),
        idle_stacks=idle,
        details=details,
    )


# Clocks of hosts may disagree by minutes; profiles of one run do not begin hours apart.
LONGEST_APART_NS = 3_600_000_000_000
# Times before are not since 1970, but since the start of a machine or of a trace.
EPOCH_NS = 1_000_000_000_000_000_000


def rank_numbers(summaries: Sequence[RankSummary]) -> list[int]:
    """Return the rank of each file. Raises GpuExporterError if two files are of one rank, or of different jobs."""
    jobs = [(each.file, each.distributed.job) for each in summaries if each.distributed]
    for (file, job), (other_file, other_job) in pairwise(jobs):
        if job != other_job:
            raise GpuExporterError(f"{file} is of {job}, {other_file} of {other_job}: give files of one job")
    timed = sorted((gpu.span[0], each.file) for each in summaries for gpu in each.gpus if gpu.span[0] > EPOCH_NS)
    for (start, file), (later, other_file) in pairwise(timed):
        if later - start > LONGEST_APART_NS:
            raise GpuExporterError(
                f"{other_file} was recorded {(later - start) / LONGEST_APART_NS:.1f} h after {file}: give files of one"
                " run, or compare two with `trace diff`"
            )
    files: dict[int, str] = {}
    numbers = []
    for position, each in enumerate(summaries):
        rank = each.distributed.rank if each.distributed else position
        if rank in files:
            raise GpuExporterError(
                f"{files[rank]} and {each.file} are both of rank {rank}: give one file of each rank"
                " (of several windows of a rank, analyse one at a time)"
            )
        files[rank] = each.file
        numbers.append(rank)
    return numbers


def dropped_events(summaries: Sequence[RankSummary]) -> Counter[str]:
    """Return how many events of all files are not analysed, by reason."""
    reasons: Counter[str] = Counter()
    for each in summaries:
        reasons.update(each.dropped)
    return reasons


def no_gpu_events(summaries: Sequence[RankSummary]) -> str:
    """Return why there is nothing to analyse, and what to do."""
    files = summaries[0].file if len(summaries) == 1 else f"{len(summaries)} files"
    fix = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    dropped = dropped_events(summaries)
    if TRUNCATED in dropped:
        return f"{files}: truncated before the first GPU event: copy it again when it is written completely"
    if dropped:
        reason, count = dropped.most_common(1)[0]
        return f"{files}: no GPU events, but {count} events {reason}: {fix}"
    return f"{files}: no GPU events: {fix}"


def _measured(
    trace: Trace, device: int, times: DeviceTimes, host: HostTimes, causes: tuple[IdleCause, ...]
) -> RankResult:
    busy, exposed = length(times.busy), times.exposed_communication(times.start, times.end)
    classes, top = kernels(trace, times.events, MOST_KERNELS)
    properties = trace.devices.get(device)
    result = RankResult(
        rank=0,
        device=device,
        span_seconds=times.span / NS,
        busy_ratio=busy / times.span,
        idle_ratio=(times.span - busy) / times.span,
        compute_seconds=length(times.compute) / NS,
        communication_seconds=length(times.communication) / NS,
        exposed_communication_seconds=exposed / NS,
        copy_seconds=length(times.copies) / NS,
        kernels=int((times.events.kind <= DeviceKind.COMMUNICATION).sum()),
        steps=step_times(times, trace.steps, times.start, host),
        idle_causes=causes,
        file=trace.path,
        device_name=properties.name if properties else "",
        exposed_copy_seconds=times.exposed_copies() / NS,
        kernel_classes=classes,
        top_kernels=top,
    )
    return replace(result, self_seconds=rank_step(result).self_seconds)


def _frames(trace: Trace, times: DeviceTimes, kind: DeviceKind, stacks: Stacks, launches: Launches) -> tuple[str, ...]:
    return launch_frames(trace, times.events.rows(times.events.kind == kind), stacks, launches, MOST_FRAMES)


def _causes(shares: Sequence[Share], stacks: Stacks, span: int) -> tuple[IdleCause, ...]:
    """Return the idle time by cause, the largest first."""
    by_cause: dict[TraceCause, list[Share]] = defaultdict(list)
    for share in shares:
        by_cause[share.cause].append(share)
    found = []
    for cause, of_cause in by_cause.items():
        total = sum(share.nanoseconds for share in of_cause)
        found.append(IdleCause(cause.value, total / NS, total / span, frames_of(of_cause, stacks, MOST_FRAMES)))
    return tuple(sorted(found, key=lambda cause: -cause.seconds))


def _folded(shares: Sequence[Share], stacks: Stacks, before: Mapping[str, float]) -> dict[str, float]:
    """Return idle seconds by folded stack: the cause, then the frames from the outermost to the innermost."""
    totals = defaultdict(float, before)
    for share in shares:
        names = [name.replace(";", ":") for name in stacks.names(share.stack)] or [NO_FRAMES]
        totals[";".join((share.cause.value, *names))] += share.nanoseconds / NS
    return dict(totals)
