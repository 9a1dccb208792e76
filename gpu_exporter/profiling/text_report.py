"""Sampled stacks as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.catalogue.causes import STACK_WORDS, WORKER_WORDS
from gpu_exporter.io.decoding import printable
from gpu_exporter.profiling.ranks import odd_ones
from gpu_exporter.profiling.result import ProcessProfile
from gpu_exporter.profiling.stacks import MAIN, ThreadProfile
from gpu_exporter.reports.numbers import capitalised, duration, percent

MOST_LINE = 160
MOST_CAUSES, MOST_LINES, MOST_THREADS, MOST_WAITING = 6, 3, 6, 8
LEAST_SHARE = 0.01


def lines(found: Sequence[ProcessProfile]) -> Iterator[str]:
    """Yield the lines of the report: which process is elsewhere than all others, then the threads of each."""
    for odd in odd_ones(found):
        yield f"{odd.others} of {len(found)} processes are at {printable(odd.others_line, MOST_LINE)}"
        yield f"but {odd.process.title} is at {printable(odd.line, MOST_LINE)}"
        yield ""
    for number, profile in enumerate(found):
        if number:
            yield ""
        yield from _process(profile)


def _process(profile: ProcessProfile) -> Iterator[str]:
    name, sampling = profile.process.title, profile.sampling
    yield f"{capitalised(name)}: sampled {profile.samples} times in {sampling.seconds:g} s"
    threads = [thread for thread in profile.threads if not thread.waits]
    for thread in threads[:MOST_THREADS]:
        yield from _thread(thread)
    if len(threads) > MOST_THREADS:
        yield f"  {len(threads) - MOST_THREADS} more threads: see --json"
    waiting = [title(thread) for thread in profile.threads if thread.waits]
    if waiting:
        names = ", ".join(waiting[:MOST_WAITING]) + (", …" if len(waiting) > MOST_WAITING else "")
        yield f"  waited for other threads or processes all the time: {names}"


def title(thread: ThreadProfile) -> str:
    """Return what a thread is, for people."""
    if not thread.workers:
        return "main thread" if thread.is_main else thread.name
    workers = "1 child process" if thread.workers == 1 else f"{thread.workers} child processes"
    return workers if thread.name == MAIN else f"{thread.name} of {workers}"


def _thread(thread: ThreadProfile) -> Iterator[str]:
    yield f"  {title(thread)}" + ("" if thread.is_main else f", {duration(thread.seconds)}")
    words = WORKER_WORDS if thread.workers else STACK_WORDS
    for cause in thread.causes[:MOST_CAUSES]:
        if cause.share < LEAST_SHARE:
            break
        yield f"    {percent(cause.share):>6}  {duration(cause.seconds):>8}  {words[cause.cause]}"
        for line in cause.lines[:MOST_LINES]:
            if line.share >= LEAST_SHARE:
                yield f"{'':14}{percent(line.share):>6}  {printable(line.frame, MOST_LINE)}"
