"""Where the time of GPUs went: the analysis of one trace or of several ranks of one job.

A trace is reduced to a summary, in whatever process, and the summaries of all ranks are combined. So memory does not
grow with the traces of a job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.reports.numbers import counted
from gpu_exporter.traces.advice import advice, merged, of_communication, of_straggler
from gpu_exporter.traces.collectives import calls_of, collective_times, rank_step, straggler_of
from gpu_exporter.traces.details import NO_FRAMES, gpu_stacks, timeline
from gpu_exporter.traces.device_times import NS, DeviceTimes, devices, kernels, step_times, steps_on_gpu
from gpu_exporter.traces.idle import (
    HostTimes,
    Launches,
    Share,
    UserWaits,
    attribute,
    dependencies,
    frames_of,
    host_times,
    launch_frames,
    user_waits,
)
from gpu_exporter.traces.intervals import length
from gpu_exporter.traces.memory import memory_of
from gpu_exporter.traces.model import TRUNCATED, DeviceKind, HostKind, Trace, TraceRecorder
from gpu_exporter.traces.operators import EventClasses, event_classes, launch_stacks
from gpu_exporter.traces.rank_files import rank_numbers
from gpu_exporter.traces.result import (
    Advice,
    AnalysisResult,
    GpuDetails,
    IdleCause,
    RankResult,
    Straggler,
    TraceVerdict,
)
from gpu_exporter.traces.roofline import rates
from gpu_exporter.traces.stacks import Stacks
from gpu_exporter.traces.summary import GpuSummary, RankSummary
from gpu_exporter.traces.verdict import Thresholds, because, blamed, class_of, losses, outweighs
from gpu_exporter.traces.waiting import Communication, Waits, by_step, communication_of, divided, longer, with_waiting

MOST_FRAMES, MOST_KERNELS, MOST_OPERATORS = 5, 20, 20
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
        waited_for = dependencies(trace, times.events, times.busy, launches, MOST_FRAMES)
        causes = _causes(shares, stacks, times.span, waited_for)
        classes = event_classes(trace, times.events, launch_stacks(trace, times.events, stacks, launches), stacks)
        result = replace(
            _measured(trace, device, times, host, causes, classes),
            copy_frames=_frames(trace, times, DeviceKind.COPY, stacks, launches),
            operators=rates(trace, times, launches, device_name(trace, device), MOST_OPERATORS),
            compute_frames=_frames(trace, times, DeviceKind.COMPUTE, stacks, launches),
            communication_frames=_frames(trace, times, DeviceKind.COMMUNICATION, stacks, launches),
        )
        waits = _user_waits(trace, times, shares, stacks, launches)
        gpus.append(
            GpuSummary(
                replace(result, memory=memory.get(device)),
                tuple(advice(trace, times, result, classes, waits)),
                (times.start, times.end),
                communication_of(trace, device, times, steps_on_gpu(trace.steps, times.events, host)),
                timeline(times, trace.steps) if details else None,
                gpu_stacks(trace, times.events, stacks, launches) if details else {},
            )
        )
        folded = _folded(shares, stacks, folded) if details else {}
    return RankSummary(
        trace.path,
        trace.distributed,
        tuple(gpus),
        calls_of(trace),
        folded,
        dict(trace.dropped),
        trace.repaired,
        0 if gpus else _launches(trace),
        trace.recorder,
    )


def _launches(trace: Trace) -> int:
    rows = [row for row, name in enumerate(trace.names) if "Launch" in name]
    return int((np.isin(trace.host_events.name, rows) & (trace.host_events.kind == HostKind.RUNTIME)).sum())


def combined(summaries: Sequence[RankSummary], thresholds: Thresholds = DEFAULTS) -> AnalysisResult:
    """Return the result for a job from the summaries of its ranks.

    A rank is what its file says, otherwise the position of the file. Raises GpuExporterError if no file has GPU events,
    or if the files are not one of each rank of one job.
    """
    ranks_of_files = rank_numbers([each.rank_file for each in summaries])
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
    straggler = None
    if len(summaries) > 1:
        communication = [gpu.communication for each in summaries for gpu in each.gpus]
        waits = divided(communication)
        ranks = with_waiting(ranks, waits)
        # Ranks with several GPUs cannot be told apart by waits of their GPUs.
        straggler = _straggler(ranks, communication, waits, thresholds) if len(ranks) == len(summaries) else None
    is_main = straggler is not None and outweighs(straggler, ranks)
    trace_class = class_of(blamed(ranks), straggler if is_main else None, thresholds)
    tips = [[*of_rank, *of_communication(rank)] for of_rank, rank in zip(tips, ranks, strict=True)]
    text = because(ranks, losses(ranks), straggler, is_main)
    verdict = TraceVerdict(trace_class, text, _merged(tips, ranks, straggler, is_main))
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


def _straggler(
    ranks: Sequence[RankResult],
    communication: Sequence[Communication],
    waits: Sequence[Waits | None],
    thresholds: Thresholds,
) -> Straggler | None:
    """Return the rank that makes the others wait; None if the ranks have no collectives in common."""
    tables = [
        by_step(of_rank, divided, len(ranks))
        for of_rank, divided in zip(communication, waits, strict=True)
        if divided is not None
    ]
    found = straggler_of(ranks, tables, thresholds.straggler) if len(tables) == len(ranks) else None
    if found is None:
        return None
    slow = next(rank for rank in ranks if rank.rank == found.rank)
    others = [rank for rank in ranks if rank is not slow]
    return replace(found, frames=longer(slow, others, of_host=found.kind == "host")[1])


def dropped_events(summaries: Sequence[RankSummary]) -> Counter[str]:
    """Return how many events of all files are not analysed, by reason."""
    reasons: Counter[str] = Counter()
    for each in summaries:
        reasons.update(each.dropped)
    return reasons


def no_gpu_events(summaries: Sequence[RankSummary]) -> str:
    """Return why there is nothing to analyse, and what to do."""
    files = summaries[0].file if len(summaries) == 1 else f"{len(summaries)} files"
    if summaries[0].recorder is TraceRecorder.NSIGHT_SYSTEMS:
        fix = "record with `nsys profile --trace=cuda,nvtx,osrt` while kernels run"
    else:
        fix = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    dropped = dropped_events(summaries)
    if TRUNCATED in dropped:
        return f"{files}: truncated before the first GPU event: copy it again when it is written completely"
    if dropped:
        reason, count = dropped.most_common(1)[0]
        return f"{files}: no GPU events, but {counted(count, 'event')} {reason}: {fix}"
    if launches := sum(each.launches for each in summaries):
        return (
            f"{files}: no GPU events, although the host launched {launches} kernels: the profiler could not record the"
            " GPU. Read its warnings; no other profiler may use the GPU, and CUPTI must fit the driver"
        )
    return f"{files}: no GPU events: {fix}"


def _measured(
    trace: Trace,
    device: int,
    times: DeviceTimes,
    host: HostTimes,
    causes: tuple[IdleCause, ...],
    event_classes: EventClasses,
) -> RankResult:
    busy, exposed = length(times.busy), times.exposed_communication(times.start, times.end)
    classes, top = kernels(trace, times.events, event_classes, MOST_KERNELS)
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
        device_name=device_name(trace, device),
        exposed_copy_seconds=times.exposed_copies() / NS,
        kernel_classes=classes,
        top_kernels=top,
    )
    return replace(result, self_seconds=rank_step(result).self_seconds)


def device_name(trace: Trace, device: int) -> str:
    """Return the model of a GPU; "" if the file does not say it."""
    properties = trace.devices.get(device)
    return properties.name if properties else ""


def _frames(trace: Trace, times: DeviceTimes, kind: DeviceKind, stacks: Stacks, launches: Launches) -> tuple[str, ...]:
    return launch_frames(trace, times.events.rows(times.events.kind == kind), stacks, launches, MOST_FRAMES)


def _user_waits(
    trace: Trace, times: DeviceTimes, shares: list[Share], stacks: Stacks, launches: Launches
) -> UserWaits | None:
    return user_waits(trace, shares, stacks, times.events, launches.rows_of(times.events), MOST_FRAMES)


def _merged(
    tips: Sequence[Sequence[Advice]], ranks: Sequence[RankResult], straggler: Straggler | None, is_main: bool
) -> tuple[Advice, ...]:
    """Return the advice for the job. If the others wait most of all for one rank, that comes first."""
    if straggler is None:
        return merged(tips)
    first = of_straggler(straggler, ranks)
    # What makes its host slow is counted once, by those who wait for it.
    by_host = straggler.kind == "host"
    slow = [straggler.frames[:1] if by_host and rank.rank == straggler.rank else () for rank in ranks]
    others = merged(
        [[one for one in of_rank if not at or one.frames[:1] != at] for of_rank, at in zip(tips, slow, strict=True)]
    )
    return (first, *others) if is_main else tuple(sorted((first, *others), key=lambda one: -one.saving_seconds))


def _causes(shares: Sequence[Share], stacks: Stacks, span: int, waited_for: tuple[str, ...]) -> tuple[IdleCause, ...]:
    """Return the idle time by cause, the largest first. `waited_for` is what launched work waited for."""
    by_cause: dict[TraceCause, list[Share]] = defaultdict(list)
    for share in shares:
        by_cause[share.cause].append(share)
    found = []
    for cause, of_cause in by_cause.items():
        total = sum(share.nanoseconds for share in of_cause)
        frames = waited_for if cause is TraceCause.DEPENDENCY else frames_of(of_cause, stacks, MOST_FRAMES)
        found.append(IdleCause(cause.value, total / NS, total / span, frames))
    return tuple(sorted(found, key=lambda cause: -cause.seconds))


def _folded(shares: Sequence[Share], stacks: Stacks, before: Mapping[str, float]) -> dict[str, float]:
    """Return idle seconds by folded stack: the cause, then the frames from the outermost to the innermost."""
    totals = defaultdict(float, before)
    for share in shares:
        names = [name.replace(";", ":") for name in stacks.names(share.stack)] or [NO_FRAMES]
        totals[";".join((share.cause.value, *names))] += share.nanoseconds / NS
    return dict(totals)
