"""The result of an analysis as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.catalogue.causes import TRACE_WORDS, TraceCause
from gpu_exporter.io.decoding import printable
from gpu_exporter.reports.numbers import binary_size, capitalised, counted, duration, percent, scaled
from gpu_exporter.traces.collectives import rank_step
from gpu_exporter.traces.memory import FailedAllocation, MemoryResult
from gpu_exporter.traces.result import AnalysisResult, OperatorRate, RankResult, WaitingFor
from gpu_exporter.traces.verdict import waiting_words

MOST_LINE, MOST_NAME = 160, 40
LEAST_SHARE = 0.001
MOST_CLASSES, MOST_CAUSES, MOST_FRAMES, MOST_KERNELS, MOST_COLLECTIVES = 8, 6, 2, 5, 5
MOST_OPERATORS = 5
# Of many ranks, only these are described in detail: the one with the most idle time, and the straggler.
MOST_DETAILED = 2
_COLUMNS = ("rank", "GPU", "span", "busy", "idle", "compute", "communication", "exposed", "copies", "kernels", "step")
# Columns for jobs whose ranks can be compared.
_DIVIDED = ("exposed transfer", "exposed waiting")


def lines(result: AnalysisResult) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"Verdict: {result.verdict.trace_class.value}"
    yield f"  {sentence(result.verdict.because)}"
    yield ""
    divided = any(rank.exposed_waiting_seconds is not None for rank in result.ranks)
    columns = tuple(column for name in _COLUMNS for column in (_DIVIDED if divided and name == "exposed" else (name,)))
    yield from table(columns, [_row(rank, divided) for rank in result.ranks])
    for rank in _detailed(result):
        yield from _idle(rank)
        yield from _kernels(rank)
        yield from _operators(rank)
        yield from _collectives(rank)
        yield from _waiting(rank)
        yield from _memory(rank)
    yield from _advice(result)
    yield from _dropped(result)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table whose columns are aligned to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))


def _row(rank: RankResult, divided: bool) -> Sequence[str]:
    return (
        str(rank.rank),
        printable(f"{rank.device} {rank.device_name}".strip(), MOST_NAME),
        *rank_cells(rank, divided),
        duration(rank_step(rank).seconds) if rank.steps else "-",
    )


def rank_cells(rank: RankResult, divided: bool) -> Sequence[str]:
    """Return where the time of a rank went, and its kernels. Exposed communication is `divided` into transfer and
    waiting."""
    return (
        duration(rank.span_seconds),
        percent(rank.busy_ratio),
        percent(rank.idle_ratio),
        duration(rank.compute_seconds),
        duration(rank.communication_seconds),
        *_exposed_times(rank, divided),
        duration(rank.copy_seconds),
        str(rank.kernels),
    )


def _exposed_times(rank: RankResult, divided: bool) -> Sequence[str]:
    if not divided:
        return (duration(rank.exposed_communication_seconds),)
    parts = rank.exposed_transfer_seconds, rank.exposed_waiting_seconds
    return tuple("-" if part is None else duration(part) for part in parts)


def _detailed(result: AnalysisResult) -> list[RankResult]:
    by_idle = sorted(result.ranks, key=lambda rank: -rank.idle_ratio)
    if straggler := result.straggler:
        by_idle.sort(key=lambda rank: rank.rank != straggler.rank)
    return by_idle[:MOST_DETAILED]


def _idle(rank: RankResult) -> Iterator[str]:
    if not rank.idle_causes:
        return
    yield ""
    share = f"{percent(rank.idle_ratio)} of {duration(rank.span_seconds)}"
    yield f"Why GPU {rank.device} of rank {rank.rank} was idle ({share})"
    yield f"{_OF_SPAN}cause"
    for cause in rank.idle_causes[:MOST_CAUSES]:
        if cause.share < LEAST_SHARE:
            break
        yield f"  {_part(cause.share, cause.seconds)}  {TRACE_WORDS[TraceCause(cause.cause)]}"
        for frame in cause.frames[:MOST_FRAMES]:
            yield f"{'':20}{printable(frame, MOST_LINE)}"


def _kernels(rank: RankResult) -> Iterator[str]:
    yield ""
    total = sum(of_class.seconds for of_class in rank.kernel_classes)
    yield f"GPU time of rank {rank.rank}: {duration(total)} in all"
    yield f"{_OF_ALL}class of kernel"
    for of_class in rank.kernel_classes[:MOST_CLASSES]:
        yield f"  {_part(of_class.share, of_class.seconds)}  {of_class.count:>8}  {of_class.name}"
    yield f"{_OF_ALL}kernel"
    for kernel in rank.top_kernels[:MOST_KERNELS]:
        yield f"  {_part(kernel.share, kernel.seconds)}  {kernel.count:>8}  {printable(kernel.name, MOST_LINE)}"


# The titles of columns: what a share is of, the time, and how often.
_OF_SPAN, _OF_ALL = " of span      time  ", "  of all      time  launches  "


def _part(share: float, seconds: float) -> str:
    """Return two columns: a share of the time, and this time."""
    return f"{percent(share):>6}  {duration(seconds):>8}"


def _operators(rank: RankResult) -> Iterator[str]:
    rated = [rate for rate in rank.operators if rate.peak_ratio is not None]
    if not rated:
        return
    yield ""
    yield f"Operators of rank {rank.rank} that lost most time against the peak of the GPU"
    for rate in rated[:MOST_OPERATORS]:
        share = percent(rate.peak_ratio or 0.0)
        time, count = duration(rate.seconds), f"{rate.count:>6} x"
        yield f"  {share:>6} of the peak  {time:>8}  {count}  {printable(rate_words(rate), MOST_LINE)}"


def rate_words(rate: OperatorRate) -> str:
    """Return an operator with its shapes and how fast it ran."""
    shapes = " x ".join(str(list(shape)) for shape in rate.shapes)
    speed = f"{scaled(rate.flops_per_second, 'FLOP/s')}, " if rate.flops_per_second else ""
    limit = f", {rate.bound}-bound" if rate.bound else ""
    return f"{rate.operator} {shapes} {rate.dtype}: {speed}{scaled(rate.bytes_per_second, 'B/s')}{limit}"


def _collectives(rank: RankResult) -> Iterator[str]:
    if not rank.collectives:
        return
    yield ""
    yield f"Collectives of rank {rank.rank}"
    for of_group in rank.collectives[:MOST_COLLECTIVES]:
        name = printable(" ".join((of_group.operation, "of group", of_group.group or "?")), MOST_LINE)
        text = f"  {duration(of_group.seconds):>8}  {of_group.count:>6} x {name} on {of_group.ranks} ranks"
        if of_group.bus_bandwidth is not None:
            text += f", {scaled(of_group.bus_bandwidth, 'B/s')} bus bandwidth"
        if of_group.transfer_seconds is not None:
            text += f", {duration(of_group.transfer_seconds)} of it transfer"
        if of_group.skew_seconds is not None:
            text += f", starts differ by up to {duration(of_group.skew_seconds)}"
        yield text


def _waiting(rank: RankResult) -> Iterator[str]:
    if not any(waiting.share >= LEAST_SHARE for waiting in rank.waiting):
        return
    yield ""
    yield f"For whom rank {rank.rank} waited in collectives"
    yield f"{_OF_SPAN}rank"
    for waiting in rank.waiting[:MOST_CAUSES]:
        if waiting.share < LEAST_SHARE:
            break
        yield f"  {_part(waiting.share, waiting.seconds)}  {for_whom(waiting)}"
        for frame in waiting.frames[:1]:
            yield f"{'':20}{printable(frame, MOST_LINE)}"


def for_whom(waiting: WaitingFor) -> str:
    """Return for which rank another one waited, and why that came last."""
    who = "a rank without a file" if waiting.rank is None else f"rank {waiting.rank}"
    return f"{who}{waiting_words(waiting.cause)}"


def _memory(rank: RankResult) -> Iterator[str]:
    memory = rank.memory
    if not memory:
        return
    yield ""
    yield f"Memory of rank {rank.rank} at its peak: {memory_words(memory)}"
    for holder in memory.by_category:
        yield f"  {percent(holder.share):>6}  {binary_size(holder.bytes):>9}  {holder.name}"
    yield "  and by code"
    for holder in memory.by_code[:MOST_CLASSES]:
        yield f"  {percent(holder.share):>6}  {binary_size(holder.bytes):>9}  {printable(holder.name, MOST_LINE)}"
    if memory.failed:
        yield f"  {failure_words(memory.failed)}"


def memory_words(memory: MemoryResult) -> str:
    """Return how much memory was in use at the peak."""
    of_all = f" of {binary_size(memory.total_bytes)}" if memory.total_bytes else ""
    return (
        f"{binary_size(memory.peak_allocated_bytes)}{of_all} in tensors, at most"
        f" {binary_size(memory.peak_reserved_bytes)} reserved by PyTorch,"
        f" {percent(memory.unused_ratio)} of what was reserved then unused"
    )


def failure_words(failed: FailedAllocation) -> str:
    """Return what would have prevented that an allocation failed."""
    why = (
        "memory was fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        if failed.unused_bytes >= failed.bytes
        else f"{binary_size(failed.bytes - failed.unused_bytes)} more would have been needed"
    )
    return (
        f"An allocation of {binary_size(failed.bytes)} failed while tensors used"
        f" {binary_size(failed.allocated_bytes)} and {binary_size(failed.unused_bytes)} were reserved without use:"
        f" {why}; at {printable(failed.code, MOST_LINE)}"
    )


def _advice(result: AnalysisResult) -> Iterator[str]:
    if not result.verdict.advice:
        return
    yield ""
    yield "What to do; each saving is an upper bound"
    for one in result.verdict.advice:
        yield f"  at most {duration(one.saving_seconds)} ({percent(one.saving_ratio)}): {sentence(one.text)}"
        for frame in one.frames[:1]:
            yield f"    at {printable(frame, MOST_LINE)}"
        if one.kernels:
            yield f"    in {printable(', '.join(one.kernels), MOST_LINE)}"


def _dropped(result: AnalysisResult) -> Iterator[str]:
    if result.dropped_reasons or result.repaired_events:
        yield ""
    for file in result.truncated:
        yield f"Truncated: {printable(file, MOST_LINE)} ends in the middle of an event; what follows is missing"
    for reason, count in result.dropped_reasons.items():
        yield f"Not analysed: {counted(count, 'event')} {printable(reason, MOST_LINE)}"
    if result.repaired_events:
        yield f"Repaired: {result.repaired_events} events that were not valid JSON"


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    plain = printable(text, 1000)
    return f"{capitalised(plain)}{'' if plain.endswith('.') else '.'}"
