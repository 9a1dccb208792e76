"""Sampled stacks as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.catalogue.causes import STACK_WORDS
from gpu_exporter.decoding import printable
from gpu_exporter.profiling.result import ProcessProfile
from gpu_exporter.profiling.stacks import ThreadProfile
from gpu_exporter.traces.text_report import duration
from gpu_exporter.traces.verdict import percent

MOST_LINE = 160
MOST_CAUSES, MOST_LINES, MOST_THREADS, MOST_WAITING = 6, 3, 6, 8
LEAST_SHARE = 0.01


def lines(found: Sequence[ProcessProfile]) -> Iterator[str]:
    """Yield the lines of the report: for each process its threads, what they did, and where."""
    for number, profile in enumerate(found):
        if number:
            yield ""
        yield from _process(profile)


def _process(profile: ProcessProfile) -> Iterator[str]:
    title, sampling = profile.process.title, profile.sampling
    yield f"{title[:1].upper()}{title[1:]}: sampled {profile.samples} times in {sampling.seconds:g} s"
    threads = [thread for thread in profile.threads if not thread.waits]
    for thread in threads[:MOST_THREADS]:
        yield from _thread(thread)
    if len(threads) > MOST_THREADS:
        yield f"  {len(threads) - MOST_THREADS} more threads: see --json"
    waiting = [thread.name for thread in profile.threads if thread.waits]
    if waiting:
        names = ", ".join(waiting[:MOST_WAITING]) + (", …" if len(waiting) > MOST_WAITING else "")
        threads_wait = "1 thread" if len(waiting) == 1 else f"{len(waiting)} threads"
        yield f"  {threads_wait} waited for other threads all the time: {names}"


def _thread(thread: ThreadProfile) -> Iterator[str]:
    yield "  main thread" if thread.is_main else f"  {thread.name}, {duration(thread.seconds)}"
    for cause in thread.causes[:MOST_CAUSES]:
        if cause.share < LEAST_SHARE:
            break
        yield f"    {percent(cause.share):>6}  {duration(cause.seconds):>8}  {STACK_WORDS[cause.cause]}"
        for line in cause.lines[:MOST_LINES]:
            if line.share >= LEAST_SHARE:
                yield f"{'':14}{percent(line.share):>6}  {printable(line.frame, MOST_LINE)}"
