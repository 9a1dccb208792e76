"""What to change, each with the most that it can save, and the code or the kernels that it rests on.

A saving is an upper bound: it assumes that the loss vanishes, and that nothing else becomes the limit. Savings add up:
each moment of idle time and each kernel counts for one advice only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.reports.numbers import binary_size, measured, percent
from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.frames import COPY_TO_GPU, COPY_TO_HOST
from gpu_exporter.traces.idle import UserWaits
from gpu_exporter.traces.intervals import length, subtract, union
from gpu_exporter.traces.kernel_classes import COMMUNICATION_CLASS, avoids_tensor_cores, multiplies_vectors, short_name
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceEvents, DeviceKind, Trace, distinct
from gpu_exporter.traces.operators import EventClasses
from gpu_exporter.traces.remedies import Framework, framework_of, remedy
from gpu_exporter.traces.result import Advice, IdleCause, RankResult, Straggler

# Advice that saves less of the span is not given.
LEAST_SAVING = 0.01
# A chain to fuse: so many kernels in a row on one stream, each at most this long.
FEWEST_FUSED, LONGEST_FUSED_NS = 3, 50_000
FUSABLE = ("elementwise", "cast", "copy", "normalization", "softmax", "reduction", "optimizer", "random")
# A rank that launches more kernels than this times as many as the others has more work.
MORE_KERNELS = 1.02
# Tensor cores multiply fp16 and TF32 matrices at least so much faster than the other cores fp32 ones (V100: 8).
TENSOR_CORE_FACTOR = 8
MOST_KERNELS, MOST_NAME = 3, 60
Finding = tuple[str, str, float, tuple[str, ...], tuple[str, ...]]  # kind, text, seconds, frames, kernels
# The same stream before and after a gap, as `idle.dependencies` writes it.
_SAME_STREAM = re.compile(r" on stream (-?\d+) after .* on stream \1$")
_UNIFIED = re.compile(r"unified memory|Managed", re.IGNORECASE)


def advice(
    trace: Trace, times: DeviceTimes, rank: RankResult, classes: EventClasses, waits: UserWaits | None
) -> list[Advice]:
    """Return the advice for one GPU, but that on communication. What rests on no code and no kernel is left out."""
    causes = {cause.cause: cause for cause in rank.idle_causes}
    framework = framework_of(trace)
    found = (
        *_of_causes(causes, framework),
        *_of_waits(waits, len(rank.steps), framework),
        *_of_kernels(trace, times, classes, framework),
        *_of_copies(trace, times, rank, framework),
        *_of_unified_memory(trace, times),
    )
    return _kept(found, rank)


def _kept(found: Iterable[Finding], rank: RankResult) -> list[Advice]:
    """Return the advice that saves enough and rests on something."""
    return [
        Advice(kind, text, seconds, seconds / rank.span_seconds, frames, kernels)
        for kind, text, seconds, frames, kernels in found
        if seconds >= LEAST_SAVING * rank.span_seconds and (frames or kernels)
    ]


def _loader(frames: Sequence[str], framework: Framework) -> str:
    if any("SingleProcess" in frame for frame in frames):
        return "The loader runs in the main process: set num_workers, with persistent_workers and prefetch_factor."
    if any("MultiProcessing" in frame for frame in frames):
        return "The loader's workers are too slow: use more of them, or move work out of __getitem__ and collate_fn."
    return f"Load data {remedy('data_loading', framework)}."


def _launching(frames: Sequence[str], framework: Framework) -> str:
    if frames and "GraphLaunch" in frames[0]:
        return "The GPU waits between CUDA graphs: capture more work in each graph, or launch the next one earlier."
    return f"The host launches kernels more slowly than the GPU runs them: {remedy('cuda_graphs', framework)}."


def _depending(frames: Sequence[str], _: Framework) -> str:
    if not frames:
        return ""
    if _SAME_STREAM.search(frames[0]):
        return (
            f"The next work had been launched, but began late although no other stream worked ({frames[0]}): run fewer"
            " and longer kernels, and check what else uses this GPU."
        )
    return (
        f"The next work had been launched, but waited for other work ({frames[0]}): check which events or graphs it"
        " waits for, and put independent work on a stream of its own."
    )


_TEXTS: Mapping[TraceCause, tuple[str, Callable[[Sequence[str], Framework], str]]] = {
    TraceCause.DATA_LOADING: ("data_loading", _loader),
    TraceCause.LAUNCH_OVERHEAD: ("cuda_graphs", _launching),
    TraceCause.CHECKPOINT: ("checkpoint", lambda _, of: f"Write checkpoints {remedy('checkpoint', of)}."),
    TraceCause.COMPILATION: (
        "compilation",
        lambda _, of: (
            "Code is compiled or loaded in the traced steps: trace later ones if the job had just begun. Otherwise"
            f" {remedy('compilation', of)}."
        ),
    ),
    TraceCause.GARBAGE_COLLECTION: (
        "garbage_collection",
        lambda *_: "Call gc.freeze() after the start, and gc.disable() with a gc.collect() every some hundred steps.",
    ),
    TraceCause.ALLOCATION: (
        "allocation",
        lambda _, of: f"Memory of the GPU is allocated or freed in these steps: {remedy('allocation', of)}.",
    ),
    TraceCause.DEPENDENCY: ("dependency", _depending),
    TraceCause.PYTHON: (
        "python",
        lambda *_: "Move this code of the host out of the loop, into another process, or onto the GPU.",
    ),
}


def _of_causes(causes: Mapping[str, IdleCause], framework: Framework) -> Iterator[Finding]:
    """Yield advice on idle time."""
    for cause, (kind, text) in _TEXTS.items():
        if found := causes.get(cause.value):
            yield kind, text(found.frames, framework), found.seconds, found.frames, ()


_SYNCHRONIZE = "torch.cuda.synchronize()"
_INSTEAD = {
    ".item()": "keep values such as the loss on the GPU (detach), and read them every hundred steps",
    COPY_TO_HOST: "copy into pinned memory with non_blocking=True, and read it a step later",
    "nonzero()": "use torch.where, or a mask of fixed size",
    _SYNCHRONIZE: "leave it out, or measure with CUDA events",
}


def _of_waits(waits: UserWaits | None, steps: int, framework: Framework) -> Iterator[Finding]:
    """Yield advice on waits for the GPU that the user's code causes."""
    if waits is None:
        return
    is_pytorch = framework is Framework.PYTORCH
    code = "cudaDeviceSynchronize" if waits.code == _SYNCHRONIZE and not is_pytorch else waits.code
    often = f", {waits.count / steps:.3g} x {code} per step" if steps and waits.count else f", at {code}"
    kind = "pinned_memory" if waits.code == COPY_TO_GPU else "synchronisation"
    instead = _INSTEAD.get(waits.code, "") if is_pytorch else ""
    text = f"The host waits for the GPU in the loop{often}: {instead or remedy(kind, framework)}."
    yield "synchronisation", text, waits.nanoseconds / NS, waits.frames, ()


def of_communication(rank: RankResult) -> list[Advice]:
    """Return the advice on transfers. Waiting for another rank is no reason to overlap communication."""
    transfer = rank.exposed_transfer_seconds
    exposed = rank.exposed_communication_seconds if transfer is None else transfer
    share = percent(exposed / max(rank.communication_seconds, 1e-12))
    what = "runs while nothing computes" if transfer is None else "is transfer of data while nothing computes"
    text = (
        f"{share} of the communication {what}: overlap it (gradient buckets, prefetch of FSDP), use larger messages, or"
        " accumulate gradients."
    )
    kernels = [of.name for of in rank.top_kernels if of.kernel_class == COMMUNICATION_CLASS][:MOST_KERNELS]
    return _kept([("overlap_communication", text, exposed, rank.communication_frames, tuple(kernels))], rank)


def of_straggler(straggler: Straggler, ranks: Sequence[RankResult]) -> Advice:
    """Return what to do about the straggler."""
    slow = next(rank for rank in ranks if rank.rank == straggler.rank)
    others = [rank for rank in ranks if rank is not slow]
    waits = [sum(of.seconds for of in rank.waiting if of.rank == slow.rank) for rank in others]
    saving = sum(waits) / len(ranks)
    span = sum(rank.span_seconds for rank in ranks) / len(ranks)
    wait = f"The others wait {measured(straggler.excess_seconds, 'seconds')} per step for rank {slow.rank}"
    if straggler.kind == "host":
        text = f"{wait}, whose host is slower: make this code as fast as on the other ranks, or balance its input."
    elif slow.kernels <= MORE_KERNELS * median(rank.kernels for rank in others):
        text = (
            f"{wait}, whose GPU takes longer for as many kernels: check its clocks, temperature and power limit, and"
            " which other processes use it."
        )
    else:
        usual = median(rank.kernels for rank in others)
        text = f"{wait}, which runs {slow.kernels} kernels where the others run {usual:.0f}: give it less work."
    return Advice("straggler", text, saving, saving / span, straggler.frames)


def _of_copies(trace: Trace, times: DeviceTimes, rank: RankResult, framework: Framework) -> Iterator[Finding]:
    events = times.events
    pageable = [row for row, name in enumerate(trace.names) if "Pageable" in name and name.startswith("Memcpy")]
    chosen = np.isin(events.name, pageable) & (events.kind == DeviceKind.COPY)
    if not chosen.any():
        return
    kernels = events.kind <= DeviceKind.COMMUNICATION
    exposed = subtract(
        union(events.start[chosen], events.end[chosen]), union(events.start[kernels], events.end[kernels])
    )
    idle = sum(cause.seconds for cause in rank.idle_causes if cause.cause == TraceCause.COPIES.value)
    yield (
        "pinned_memory",
        f"{int(chosen.sum())} copies use pageable memory, which blocks the host and is slow:"
        f" {remedy('pinned_memory', framework)}.",
        exposed / NS + idle,
        rank.copy_frames,
        _names(trace, events.name[chosen], (events.end - events.start)[chosen]),
    )


def _of_unified_memory(trace: Trace, times: DeviceTimes) -> Iterator[Finding]:
    events = times.events
    chosen = np.isin(events.name, [row for row, name in enumerate(trace.names) if _UNIFIED.search(name)])
    chosen &= events.kind == DeviceKind.COPY
    if chosen.any():
        moved = int(events.bytes[chosen & (events.bytes > 0)].sum())
        exposed = subtract(union(events.start[chosen], events.end[chosen]), times.compute)
        yield (
            "unified_memory",
            f"{int(chosen.sum())} migrations and page faults of unified memory ({binary_size(moved)}): prefetch with"
            " cudaMemPrefetchAsync, or use memory of the GPU.",
            exposed / NS,
            (),
            _names(trace, events.name[chosen], (events.end - events.start)[chosen]),
        )


def _of_kernels(trace: Trace, times: DeviceTimes, classes: EventClasses, framework: Framework) -> Iterator[Finding]:
    """Yield advice on kernels: tensor cores, fusion and size. Each kernel counts for the first that applies."""
    computing = times.events.kind == DeviceKind.COMPUTE
    events, classes = times.events.rows(computing), classes.chosen(computing)
    duration = events.end - events.start
    if not duration.sum():
        return
    # Kernels overlap: what all of them save is at most the time in which one runs.
    scale = length(union(events.start, events.end)) / float(duration.sum()) / NS
    free = np.ones(len(events), dtype=bool)
    for kind, text, saved in (
        _tensor_cores(trace, events, duration, framework),
        _fusion(events, classes, duration, framework),
        _larger_batch(trace, events, duration),
    ):
        seconds = float(saved[free].sum()) * scale
        if seconds:
            yield kind, text, seconds, (), _names(trace, events.name, np.where(free, saved, 0))
        free &= saved == 0


def _names(trace: Trace, names: Column, weights: Column) -> tuple[str, ...]:
    """Return the names of the events with the largest weights in all."""
    rows, inverse = np.unique(names, return_inverse=True)
    sums = Counter[str]()
    for row, weight in zip(rows.tolist(), np.bincount(inverse, weights=weights).tolist(), strict=True):
        if weight > 0:
            sums[short_name(trace.names[row], MOST_NAME)] += weight
    return tuple(name for name, _ in sums.most_common(MOST_KERNELS))


def _tensor_cores(
    trace: Trace, events: DeviceEvents, duration: Column, framework: Framework
) -> tuple[str, str, Column]:
    names = [
        row
        for row in distinct(events.name).tolist()
        if avoids_tensor_cores(trace.names[row]) and not multiplies_vectors(trace.names[row])
    ]
    slow = np.where(np.isin(events.name, names), duration, 0)
    text = (
        f"matrix products take {measured(slow.sum() / NS, 'seconds')} without tensor cores:"
        f" {remedy('tensor_cores', framework)}."
    )
    return "tensor_cores", text, slow * (1 - 1 / TENSOR_CORE_FACTOR)


def _fusion(
    events: DeviceEvents, classes: EventClasses, duration: Column, framework: Framework
) -> tuple[str, str, Column]:
    """Return what is saved of each kernel if only the longest of a chain stays."""
    order = np.argsort(events.stream, kind="stable")
    stream, length_ns = events.stream[order], duration[order]
    fusable = classes.among(FUSABLE)[order] & (length_ns <= LONGEST_FUSED_NS)
    new = np.concatenate(([True], (stream[1:] != stream[:-1]) | (fusable[1:] != fusable[:-1])))
    starts = np.flatnonzero(new)
    lengths = np.diff(np.concatenate((starts, [len(fusable)])))
    chosen = fusable[starts] & (lengths >= FEWEST_FUSED)
    cost, longest = np.add.reduceat(length_ns, starts), np.maximum.reduceat(length_ns, starts)
    share = np.where(chosen, 1 - longest / np.maximum(cost, 1), 0.0)
    saved = np.zeros(len(duration))
    saved[order] = length_ns * np.repeat(share, lengths)
    text = (
        f"{int(chosen.sum())} chains of short element-wise kernels take"
        f" {measured(int(cost[chosen].sum()) / NS, 'seconds')}: {remedy('fusion', framework)}."
    )
    return "fusion", text, saved


def _larger_batch(trace: Trace, events: DeviceEvents, duration: Column) -> tuple[str, str, Column]:
    properties = trace.devices.get(int(events.device[0]))
    if not properties or not properties.multiprocessors:
        return "larger_batch", "", np.zeros(len(duration))
    filled = np.clip(events.blocks / properties.multiprocessors, 0, 1)
    small = (events.blocks != UNKNOWN) & (filled < 1)
    text = (
        f"{int(small.sum())} kernels have fewer thread blocks than the GPU has multiprocessors"
        f" ({properties.multiprocessors}): enlarge the batch, or run small work on several streams."
    )
    return "larger_batch", text, np.where(small, duration * (1 - filled), 0.0)


def merged(of_ranks: Sequence[Sequence[Advice]]) -> tuple[Advice, ...]:
    """Return the advice for all ranks, the largest saving first: means, in the words for the rank that saves most."""
    by_kind: dict[str, list[Advice]] = {}
    for one in (one for of_rank in of_ranks for one in of_rank):
        by_kind.setdefault(one.kind, []).append(one)
    means = [
        replace(
            max(of_kind, key=lambda one: one.saving_seconds),
            saving_seconds=sum(one.saving_seconds for one in of_kind) / len(of_ranks),
            saving_ratio=sum(one.saving_ratio for one in of_kind) / len(of_ranks),
        )
        for of_kind in by_kind.values()
    ]
    kept = [one for one in means if one.saving_ratio >= LEAST_SAVING]
    return tuple(sorted(kept, key=lambda one: -one.saving_seconds))
