"""The HTML page: verdict, advice, GPUs, timelines, flame graphs, kernels, and the JSON of the analysis.

A timeline shows what each GPU did over the span of a trace: a column for each of some hundred moments, and the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import numpy as np

from gpu_exporter.catalogue.causes import TRACE_WORDS, TraceCause
from gpu_exporter.reports import html_document
from gpu_exporter.reports.flame_graph import FLAME_STYLE, flame_graph
from gpu_exporter.reports.html_document import analysis_foot, frame, legend, page_head, safe_text, table
from gpu_exporter.reports.numbers import binary_size, counted, duration, percent
from gpu_exporter.traces.details import BINS
from gpu_exporter.traces.model import Column
from gpu_exporter.traces.result import AnalysisResult, RankResult, RankTimeline
from gpu_exporter.traces.text_report import failure_words, for_whom, memory_words, rank_cells, rate_words, sentence

WIDTH, HEIGHT = 1000.0, 44
# What is drawn first is on the bottom.
LAYERS = (
    ("compute", "computing", "#4f9d4f"),
    ("communication", "only communicating", "#e0b400"),
    ("copies", "only copying", "#a56cc1"),
)
IDLE = ("idle", "idle", "#d9d9d9")
# Flame graphs take some 100 kB each: these ranks have them, the one with most idle time first.
MOST_FLAMES = 4
MOST_KERNELS, MOST_CAUSES, MOST_FRAMES = 12, 6, 3
# The rules of this page, beyond those of flame graphs and of all reports.
STYLE = """
.verdict.compute-bound{border-color:var(--ok)}
svg.timeline{height:44px;margin:.2rem 0 1rem}
.step{stroke:#0006;stroke-width:1;vector-effect:non-scaling-stroke}
"""


def picture(timeline: RankTimeline, title: str) -> str:
    """Return an SVG of a timeline."""
    step_width = WIDTH / BINS
    parts, bottom = [], np.zeros(BINS)
    for name, _, colour in LAYERS:
        top = np.clip(bottom + np.array(timeline.layers[name]), 0.0, 1.0)
        parts.append(f'<path class="{name}" fill="{colour}" d="{_columns(bottom, top, step_width)}"/>')
        bottom = top
    marks = [
        f'<path class="step" d="M{WIDTH * at:.2f} 0v{HEIGHT}"><title>{escape(name, quote=True)}</title></path>'
        for name, at in timeline.steps
    ]
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title, quote=True)}"><rect width="{WIDTH:.0f}" height="{HEIGHT}" fill="{IDLE[2]}"/>'
        f"{''.join(parts)}{''.join(marks)}</svg>"
    )


def _columns(bottom: Column, top: Column, width: float) -> str:
    """Return a path with one rectangle for each column that is not empty."""
    return "".join(
        f"M{at * width:.2f} {HEIGHT * (1 - high):.2f}h{width:.2f}V{HEIGHT * (1 - low):.2f}h-{width:.2f}z"
        for at, (low, high) in enumerate(zip(bottom.tolist(), top.tolist(), strict=True))
        if high - low > 0.002
    )


def page(result: AnalysisResult) -> str:
    """Return the whole document. The result needs its details."""
    return "".join(_document(result))


def _document(result: AnalysisResult) -> Iterator[str]:
    files = list(dict.fromkeys(rank.file for rank in result.ranks))
    names = ", ".join(Path(file).name for file in files[:3]) + (" …" if len(files) > 3 else "")
    verdict = result.verdict
    yield from page_head(f"{verdict.trace_class.value}: {names}", FLAME_STYLE + STYLE)
    yield f"<h1>Where the GPU time went <small>{safe_text(names)}</small></h1>\n"
    name = verdict.trace_class.value
    yield from html_document.verdict(name, name, [sentence(verdict.because)])
    yield from _advice(result)
    yield from _ranks(result)
    yield from _timelines(result)
    yield from _details(result)
    for file in result.truncated:
        yield f"<p>Truncated: {safe_text(file)} ends in the middle of an event.</p>\n"
    for reason, count in result.dropped_reasons.items():
        yield f"<p>Not analysed: {counted(count, 'event')} {safe_text(reason)}</p>\n"
    yield from analysis_foot(result.to_json())


def _advice(result: AnalysisResult) -> Iterator[str]:
    if not result.verdict.advice:
        return
    yield "<h2>What to do</h2>\n<p>Each saving is an upper bound.</p>\n<ol>\n"
    for one in result.verdict.advice:
        saving = f"at most {duration(one.saving_seconds)} ({percent(one.saving_ratio)})"
        where = f"<br>{frame(f'at {one.frames[0]}')}" if one.frames else ""
        if one.kernels:
            where += "<br>" + frame("in " + ", ".join(one.kernels))
        yield f"<li><b>{saving}</b>: {safe_text(sentence(one.text))}{where}</li>\n"
    yield "</ol>\n"


def _ranks(result: AnalysisResult) -> Iterator[str]:
    divided = any(rank.exposed_waiting_seconds is not None for rank in result.ranks)
    exposed = ("exposed transfer", "exposed waiting") if divided else ("exposed",)
    head = ("rank", "span", "busy", "idle", "compute", "communication", *exposed, "copies", "kernels")
    rows = [
        (
            safe_text(f"{rank.rank}, GPU {rank.device} {rank.device_name}".strip()),
            *rank_cells(rank, divided),
        )
        for rank in result.ranks
    ]
    yield "<h2>Ranks</h2>\n"
    if result.straggler:
        straggler = result.straggler
        yield f"<p>The others wait for rank {straggler.rank}, whose {straggler.kind.replace('gpu', 'GPU')} is slow: "
        yield f"{duration(straggler.excess_seconds)} per step.</p>\n"
    yield from table(head, rows, "Ranks")


def _timelines(result: AnalysisResult) -> Iterator[str]:
    colours = legend({words: colour for _, words, colour in (*LAYERS, IDLE)})
    yield "<h2>Timelines</h2>\n<p>Lines mark the starts of steps.</p>\n"
    for (rank, device), details in result.details.items():
        title = f"GPU {device} of rank {rank} over {duration(details.timeline.seconds)}"
        yield f"<p>{title}</p>\n{picture(details.timeline, title)}\n{colours}"


def _details(result: AnalysisResult) -> Iterator[str]:
    for number, rank in enumerate(sorted(result.ranks, key=lambda each: -each.idle_ratio)):
        yield f"<h2>Rank {rank.rank}, GPU {rank.device}</h2>\n"
        yield from _causes(rank)
        yield from _waiting(rank)
        if number < MOST_FLAMES:
            idle = result.idle_stacks.get(rank.rank, {})
            if idle:
                yield "<h3>What the host did while the GPU was idle</h3>\n"
                yield flame_graph(_in_words(idle), f"Idle time of rank {rank.rank} by stack") + "\n"
            yield "<h3>Which code the GPU worked for</h3>\n"
            stacks = result.details[rank.rank, rank.device].gpu_stacks
            yield flame_graph(stacks, f"GPU time of rank {rank.rank} by stack") + "\n"
        yield from _kernels(rank)
        yield from _operators(rank)
        yield from _memory(rank)


def _memory(rank: RankResult) -> Iterator[str]:
    memory = rank.memory
    if not memory:
        return
    yield f"<h3>Memory at its peak</h3>\n<p>{safe_text(memory_words(memory))}.</p>\n"
    if memory.failed:
        yield f"<p>{safe_text(failure_words(memory.failed))}.</p>\n"
    for head, holders in (("category", memory.by_category), ("code", memory.by_code)):
        rows = [
            (
                frame(each.name),
                percent(each.share),
                binary_size(each.bytes),
            )
            for each in holders
        ]
        yield from table((head, "share", "bytes"), rows, f"Memory of rank {rank.rank} by {head}")


def _in_words(stacks: Mapping[str, float]) -> Mapping[str, float]:
    """Return folded stacks whose first frame, the cause, is in words."""
    found: dict[str, float] = {}
    for stack, seconds in stacks.items():
        cause, _, frames = stack.partition(";")
        found[";".join((TRACE_WORDS[TraceCause(cause)], frames))] = seconds
    return found


def _causes(rank: RankResult) -> Iterator[str]:
    if not rank.idle_causes:
        return
    rows = []
    for cause in rank.idle_causes[:MOST_CAUSES]:
        frames = "".join(f"<br>{frame(each)}" for each in cause.frames[:MOST_FRAMES])
        words = safe_text(TRACE_WORDS[TraceCause(cause.cause)])
        rows.append((f"{words}{frames}", percent(cause.share), duration(cause.seconds)))
    yield f"<h3>Why the GPU was idle ({percent(rank.idle_ratio)} of {duration(rank.span_seconds)})</h3>\n"
    yield from table(("cause", "share of the span", "time"), rows, "Causes of idle time")


def _operators(rank: RankResult) -> Iterator[str]:
    rows = [
        (
            frame(rate_words(rate)),
            percent(rate.peak_ratio),
            duration(rate.seconds),
            str(rate.count),
        )
        for rate in rank.operators[:MOST_KERNELS]
        if rate.peak_ratio is not None
    ]
    if rows:
        yield "<h3>Operators that lost most time against the peak of the GPU</h3>\n"
        yield from table(("operator", "of the peak", "time", "calls"), rows, f"Operators of rank {rank.rank}")


def _waiting(rank: RankResult) -> Iterator[str]:
    if not rank.waiting:
        return
    rows = []
    for waiting in rank.waiting[:MOST_CAUSES]:
        frames = "".join(f"<br>{frame(each)}" for each in waiting.frames[:1])
        rows.append((f"{safe_text(for_whom(waiting))}{frames}", percent(waiting.share), duration(waiting.seconds)))
    yield "<h3>For whom it waited in collectives</h3>\n"
    yield from table(("rank", "share of the span", "time"), rows, f"Waiting of rank {rank.rank}")


def _kernels(rank: RankResult) -> Iterator[str]:
    rows = [
        (
            f"{frame(kernel.name)} <small>{safe_text(kernel.kernel_class)}</small>",
            percent(kernel.share),
            duration(kernel.seconds),
            str(kernel.count),
        )
        for kernel in rank.top_kernels[:MOST_KERNELS]
    ]
    yield "<h3>Kernels with most time</h3>\n"
    yield from table(("kernel", "share of GPU time", "time", "launches"), rows, f"Kernels of rank {rank.rank}")
