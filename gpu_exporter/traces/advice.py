"""What to change, each with the most that it can save, computed from the trace of one GPU.

A saving is an upper bound: it assumes that the loss vanishes, and that nothing else becomes the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.reports.numbers import percent
from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.intervals import subtract, union
from gpu_exporter.traces.kernel_classes import avoids_tensor_cores, multiplies_vectors
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceKind, Trace, distinct
from gpu_exporter.traces.operators import EventClasses
from gpu_exporter.traces.result import Advice, IdleCause, RankResult

# Advice that saves less of the span is not given.
LEAST_SAVING = 0.01
# A chain to fuse: so many kernels in a row on one stream, each at most this long.
FEWEST_FUSED, LONGEST_FUSED_NS = 3, 50_000
FUSABLE = ("elementwise", "cast", "copy", "normalization", "softmax", "reduction", "optimizer", "random")
# Tensor cores multiply fp16 and TF32 matrices at least so much faster than the other cores fp32 ones (V100: 8).
TENSOR_CORE_FACTOR = 8
Finding = tuple[str, str, float, tuple[str, ...]]  # kind, text, seconds, frames


def advice(trace: Trace, times: DeviceTimes, rank: RankResult, classes: EventClasses) -> list[Advice]:
    """Return the advice for one GPU."""
    causes = {cause.cause: cause for cause in rank.idle_causes}
    found = (
        *_of_causes(causes),
        *_of_communication(rank),
        *_of_kernels(trace, times, classes),
        *_of_copies(trace, times, rank),
    )
    return [
        Advice(kind, text, seconds, seconds / rank.span_seconds, frames)
        for kind, text, seconds, frames in found
        if seconds >= LEAST_SAVING * rank.span_seconds
    ]


def _loader(frames: Sequence[str]) -> str:
    if any("SingleProcess" in frame for frame in frames):
        return "The loader runs in the main process: set num_workers, with persistent_workers and prefetch_factor."
    if any("MultiProcessing" in frame for frame in frames):
        return "The loader's workers are too slow: use more of them, or move work out of __getitem__ and collate_fn."
    return "Load data in other processes, ahead of the step: DataLoader(num_workers=…, pin_memory=True)."


def _synchronisation(frames: Sequence[str]) -> str:
    return (
        "The host waits for the GPU in the loop: keep values such as the loss on the GPU (detach), read them every"
        " hundred steps, and pass non_blocking=True with pinned memory."
    )


def _launching(frames: Sequence[str]) -> str:
    if frames and "GraphLaunch" in frames[0]:
        return "The GPU waits between CUDA graphs: capture more work in each graph, or launch the next one earlier."
    return (
        "The host launches kernels more slowly than the GPU runs them: capture the step in a CUDA graph"
        ' (torch.compile(mode="reduce-overhead"), torch.cuda.graph), or enlarge the batch.'
    )


_TEXTS: Mapping[TraceCause, tuple[str, Callable[[Sequence[str]], str]]] = {
    TraceCause.DATA_LOADING: ("data_loading", _loader),
    TraceCause.SYNCHRONISATION: ("synchronisation", _synchronisation),
    TraceCause.LAUNCH_OVERHEAD: (
        "cuda_graphs",
        _launching,
    ),
    TraceCause.CHECKPOINT: (
        "checkpoint",
        lambda _: (
            "Write checkpoints in the background, such as with torch.distributed.checkpoint.async_save, or rarely."
        ),
    ),
    TraceCause.COMPILATION: (
        "compilation",
        lambda _: (
            "Code is compiled in the traced steps: avoid changing shapes (dynamic=True), and keep the compile cache."
        ),
    ),
    TraceCause.GARBAGE_COLLECTION: (
        "garbage_collection",
        lambda _: "Call gc.freeze() after the start, and gc.disable() with a gc.collect() every some hundred steps.",
    ),
    TraceCause.PYTHON: (
        "python",
        lambda _: "Move this code of the host out of the loop, into another process, or onto the GPU.",
    ),
}


def _of_causes(causes: Mapping[str, IdleCause]) -> Iterator[Finding]:
    """Yield advice on idle time."""
    for cause, (kind, text) in _TEXTS.items():
        if found := causes.get(cause.value):
            yield kind, text(found.frames), found.seconds, found.frames


def _of_communication(rank: RankResult) -> Iterator[Finding]:
    if rank.exposed_communication_seconds:
        share = rank.exposed_communication_seconds / max(rank.communication_seconds, 1e-12)
        yield (
            "overlap_communication",
            f"{percent(share)} of the communication runs while nothing computes: overlap it (gradient buckets,"
            " prefetch of FSDP), use larger messages, or accumulate gradients.",
            rank.exposed_communication_seconds,
            rank.communication_frames,
        )


def _of_copies(trace: Trace, times: DeviceTimes, rank: RankResult) -> Iterator[Finding]:
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
        f"{int(chosen.sum())} copies use pageable memory, which blocks the host and is slow: use pin_memory=True, and"
        " to(device, non_blocking=True).",
        exposed / NS + idle,
        rank.copy_frames,
    )


def _of_kernels(trace: Trace, times: DeviceTimes, classes: EventClasses) -> Iterator[Finding]:
    """Yield advice on kernels: fusion, size and tensor cores."""
    computing = times.events.kind == DeviceKind.COMPUTE
    events, classes = times.events.rows(computing), classes.chosen(computing)
    duration = events.end - events.start
    chains, cost, saving = _chains(events.stream, classes.among(FUSABLE), duration)
    if chains:
        yield (
            "fusion",
            f"{chains} chains of short element-wise kernels take {cost / NS:.3g} s: fuse them with torch.compile or a"
            " fused optimizer and norm.",
            saving / NS,
            (),
        )
    properties = trace.devices.get(int(events.device[0])) if len(events) else None
    if properties and properties.multiprocessors:
        filled = np.clip(events.blocks / properties.multiprocessors, 0, 1)
        small = (events.blocks != UNKNOWN) & (filled < 1)
        lost = float((duration * (1 - filled))[small].sum())
        yield (
            "larger_batch",
            f"{int(small.sum())} kernels have fewer thread blocks than the GPU has multiprocessors"
            f" ({properties.multiprocessors}): enlarge the batch, or run small work on several streams.",
            lost / NS,
            (),
        )
    names = [
        row
        for row in distinct(events.name).tolist()
        if avoids_tensor_cores(trace.names[row]) and not multiplies_vectors(trace.names[row])
    ]
    slow = float(duration[np.isin(events.name, names)].sum())
    if slow:
        yield (
            "tensor_cores",
            f"matrix products take {slow / NS:.3g} s without tensor cores: use autocast (bfloat16), or"
            ' torch.set_float32_matmul_precision("high").',
            slow / NS * (1 - 1 / TENSOR_CORE_FACTOR),
            (),
        )


def _chains(stream: Column, can_fuse: Column, duration: Column) -> tuple[int, int, int]:
    """Return the number of chains that can be fused, their time, and what is saved if only the longest kernel stays."""
    if not len(stream):
        return 0, 0, 0
    order = np.argsort(stream, kind="stable")
    stream, duration = stream[order], duration[order]
    fusable = can_fuse[order] & (duration <= LONGEST_FUSED_NS)
    new = np.concatenate(([True], (stream[1:] != stream[:-1]) | (fusable[1:] != fusable[:-1])))
    starts = np.flatnonzero(new)
    lengths = np.diff(np.concatenate((starts, [len(fusable)])))
    chosen = fusable[starts] & (lengths >= FEWEST_FUSED)
    cost, longest = np.add.reduceat(duration, starts), np.maximum.reduceat(duration, starts)
    return int(chosen.sum()), int(cost[chosen].sum()), int((cost - longest)[chosen].sum())


def merged(of_ranks: Sequence[Sequence[Advice]]) -> tuple[Advice, ...]:
    """Return the advice for all ranks: of each kind the one with the largest saving, the largest first."""
    best: dict[str, Advice] = {}
    for one in (one for of_rank in of_ranks for one in of_rank):
        if one.kind not in best or one.saving_seconds > best[one.kind].saving_seconds:
            best[one.kind] = one
    return tuple(sorted(best.values(), key=lambda one: -one.saving_seconds))
