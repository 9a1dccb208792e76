"""Sampled stacks as a page of HTML with flame graphs, without any other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.catalogue.causes import STACK_WORDS, WORKER_WORDS
from gpu_exporter.profiling.ranks import odd_ones
from gpu_exporter.profiling.result import ProcessProfile
from gpu_exporter.profiling.stacks import MAIN_THREAD, ThreadProfile
from gpu_exporter.profiling.text_report import title
from gpu_exporter.reports.flame_graph import FLAME_STYLE, flame_graph
from gpu_exporter.reports.html_document import analysis_foot, frame, page_head, safe_text, table
from gpu_exporter.reports.numbers import capitalised, duration, percent

MOST_PROCESSES, MOST_THREADS, MOST_LINES = 16, 8, 8


def page(found: Sequence[ProcessProfile]) -> str:
    """Return the whole document."""
    return "".join(_document(found))


def _document(found: Sequence[ProcessProfile]) -> Iterator[str]:
    yield from page_head("Where the time of the host went", FLAME_STYLE)
    yield "<h1>Where the time of the host went</h1>\n"
    for odd in odd_ones(found):
        yield f'<div class="verdict"><p>{odd.others} of {len(found)} processes are at '
        yield f"{frame(odd.others_line)}, but {safe_text(odd.process.title)} is at {frame(odd.line)}.</p></div>\n"
    for profile in found[:MOST_PROCESSES]:
        yield from _process(profile)
    if len(found) > MOST_PROCESSES:
        yield f"<p>{len(found) - MOST_PROCESSES} more processes are only in the JSON.</p>\n"
    yield from analysis_foot([profile.to_json() for profile in found])


def _process(profile: ProcessProfile) -> Iterator[str]:
    yield f"<h2>{safe_text(capitalised(profile.process.title))}</h2>\n"
    yield f"<p>Sampled {profile.samples} times in {profile.sampling.seconds:g} s.</p>\n"
    busy = [thread for thread in profile.threads if not thread.waits]
    for thread in busy[:MOST_THREADS]:
        yield from _thread(thread)
    for caption, is_main in (("Stacks of the main thread", True), ("Stacks of other threads and processes", False)):
        stacks = {
            stack: seconds
            for stack, seconds in profile.stacks.items()
            if (stack.partition(";")[0] == MAIN_THREAD) is is_main
        }
        if stacks:
            yield f"<h3>{caption}</h3>\n{flame_graph(stacks, f'{caption} of process {profile.process.pid}')}\n"


def _thread(thread: ThreadProfile) -> Iterator[str]:
    name = title(thread)
    words = WORKER_WORDS if thread.workers else STACK_WORDS
    rows = []
    for cause in thread.causes:
        frames = "".join(f"<br>{frame(f'{percent(line.share)} {line.frame}')}" for line in cause.lines[:MOST_LINES])
        rows.append((f"{words[cause.cause]}{frames}", percent(cause.share), duration(cause.seconds)))
    yield f"<h3>{safe_text(capitalised(name))}</h3>\n"
    yield from table(("what it did", "share", "time"), rows, name)
