"""What the threads of a process did, from the folded stacks of py-spy. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.io.decoding import printable
from gpu_exporter.traces.frames import PYTHON_FRAME, is_user_frame, stack_cause_of

MAIN = "MainThread"
# How folded stacks begin.
WORKERS, MAIN_THREAD, THREAD = "workers", "main thread", "thread "
WAITING_SHARE = 0.98
MOST_NAME, MOST_FRAME, MOST_STACKS = 60, 300, 200_000
_THREAD = re.compile(r"thread \((?P<id>[0-9a-fA-FxX]+)\)(?:: (?P<name>.*))?", re.DOTALL)
_PROCESS = re.compile(r'process (?P<pid>[0-9]{1,10}):?"?')
# A native function without a symbol.
_ADDRESS = "0x"
# `function (path:line)` of Python, `function (library)` of native code.
_FRAME = re.compile(r"(?P<function>[^;]*?) \((?P<path>[^;]*?)(?::(?P<line>\d+))?\)", re.DOTALL)
# Of paths in packages and the standard library, what comes before these says nothing.
_INSTALLED = re.compile(r"^.*/(?=(?:site|dist)-packages/|lib/python3[^/]*/)")
# The innermost function of a thread that waits for another thread or process, or for time to pass.
_WAITING = re.compile(
    r"lib/python3[^/]*/(?:threading|queue|selectors|socket|subprocess|concurrent/futures/\w+|multiprocessing/\w+)\.py"
    r"\(\d+\): (?:\w+\.)*_?(?:wait\w*|try_wait|acquire|get|put|join|select|poll|recv\w*|accept|worker)$"
)


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack of one thread, frames from the outermost to the innermost, and how often it was seen.

    `is_main`: the main thread of the process itself. `worker` is the PID if it is of a child process, otherwise 0.
    """

    thread: str
    is_main: bool
    frames: tuple[str, ...]
    samples: int
    worker: int = 0


@dataclass(frozen=True, slots=True)
class LineTime:
    """A line of code, and how long a thread was there. `share` is of the time of the thread."""

    frame: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class CauseTime:
    """What a thread did, how long, and where, the most costly lines first. `share` is of the time of the thread."""

    cause: TraceCause
    seconds: float
    share: float
    lines: tuple[LineTime, ...]


@dataclass(frozen=True, slots=True)
class ThreadProfile:
    """Where the time of one thread went, or of the threads with one name of all `workers`, which are child processes.

    `waits`: it waited for other threads or processes nearly all the time.
    """

    name: str
    is_main: bool
    seconds: float
    causes: tuple[CauseTime, ...]
    waits: bool
    workers: int = 0


def parse(folded: str, main_ids: Collection[int] = (), *, native: bool = False) -> tuple[Stack, ...]:
    """Return the stacks in the raw format of py-spy. What is not in this format is left out.

    The main thread has one of `main_ids`: the PIDs of its process. `native` says whether there are frames of native
    code, which have no line.
    """
    found = []
    for line in folded.split("\n", MOST_STACKS)[:MOST_STACKS]:
        text, _, count = line.rpartition(" ")
        if count.isascii() and count.isdecimal() and (stack := _stack(text, int(count), main_ids, native)):
            found.append(stack)
    return tuple(found)


def _stack(text: str, samples: int, main_ids: Collection[int], native: bool) -> Stack | None:
    worker, others = _process_of(text.split(";"))
    thread = _THREAD.fullmatch(others.pop(0)) if others else None
    if not thread:
        return None
    if worker in main_ids:
        worker = 0
    # Threads have names only if the process has imported `threading`.
    its_pids = (worker,) if worker else main_ids
    is_main = thread["name"] == MAIN or (thread["id"].isdecimal() and int(thread["id"]) in its_pids)
    name = MAIN if is_main else thread["name"] or f"thread {thread['id']}"
    # A thread may have a name with semicolons, whose parts are no frames.
    while others and not ((frame := _FRAME.fullmatch(others[0])) and (native or frame["line"])):
        name = f"{name};{others.pop(0)}"
    frames = tuple(printable(_frame(frame), MOST_FRAME) for frame in others if not frame.startswith(_ADDRESS))
    return Stack(printable(name, MOST_NAME), is_main and not worker, frames, samples, worker)


def _process_of(parts: list[str]) -> tuple[int, list[str]]:
    """Return the PID of the innermost process, 0 if there is none, and the parts from the thread on.

    A command in the name of a process may contain semicolons.
    """
    worker = 0
    for number, part in enumerate(parts):
        if _THREAD.fullmatch(part):
            return worker, parts[number:]
        if process := _PROCESS.match(part):
            worker = int(process["pid"])
        elif not number:
            break
    return worker, []


def _frame(text: str) -> str:
    """Return a frame of Python in the form of the profiler of PyTorch, and the name alone of a native one."""
    match = _FRAME.fullmatch(text)
    if not match:
        return text
    if match["line"] is None:
        return match["function"]
    return f"{_INSTALLED.sub('', match['path'])}({match['line']}): {match['function']}"


def cause_of(frames: Sequence[str]) -> TraceCause:
    """Return what a thread with these frames does: what the innermost frame that names a cause says."""
    named = next((cause for frame in reversed(frames) if (cause := stack_cause_of(frame))), None)
    return named or (TraceCause.PYTHON if frames else TraceCause.UNKNOWN)


def responsible(frames: Sequence[str]) -> str:
    """Return the innermost frame of the user's code, and the innermost frame of all if that is another."""
    if not frames:
        return ""
    outer = next((frame for frame in reversed(frames) if is_user_frame(frame)), "") or _python_frame(frames)
    return " > ".join(dict.fromkeys(frame for frame in (outer, frames[-1]) if frame))


def _python_frame(frames: Sequence[str]) -> str:
    """Return the innermost frame of Python; empty if there is none."""
    return next((frame for frame in reversed(frames) if PYTHON_FRAME.match(frame)), "")


def profiles(stacks: Sequence[Stack], rate: float) -> tuple[ThreadProfile, ...]:
    """Return where the time of each thread went: the main thread first, then those with most time."""
    by_thread: dict[tuple[bool, bool, str], list[Stack]] = defaultdict(list)
    for stack in stacks:
        by_thread[stack.is_main, bool(stack.worker), stack.thread].append(stack)
    found = [_profile(name, is_main, of_thread, rate) for (is_main, _, name), of_thread in by_thread.items()]
    return tuple(sorted(found, key=lambda thread: (not thread.is_main, thread.waits, -thread.seconds, thread.name)))


def _profile(name: str, is_main: bool, stacks: Sequence[Stack], rate: float) -> ThreadProfile:
    total = sum(stack.samples for stack in stacks)
    times: dict[TraceCause, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    waiting = 0
    for stack in stacks:
        times[cause_of(stack.frames)][responsible(stack.frames)] += stack.samples
        waiting += stack.samples if _WAITING.search(_python_frame(stack.frames)) else 0
    causes = [_cause_time(cause, lines, total, rate) for cause, lines in times.items()]
    causes.sort(key=lambda cause: -cause.seconds)
    waits = not is_main and waiting >= WAITING_SHARE * total
    workers = len({stack.worker for stack in stacks if stack.worker})
    return ThreadProfile(name, is_main, total / rate, tuple(causes), waits, workers)


def _cause_time(cause: TraceCause, lines: Mapping[str, int], total: int, rate: float) -> CauseTime:
    found = [LineTime(frame, samples / rate, samples / total) for frame, samples in lines.items() if frame]
    found.sort(key=lambda line: (-line.seconds, line.frame))
    samples = sum(lines.values())
    return CauseTime(cause, samples / rate, samples / total, tuple(found))


def unfolded(stacks: Mapping[str, float], rate: float) -> tuple[Stack, ...]:
    """Return the stacks that `folded` has made a text of. All workers count as one."""
    found = []
    for text, seconds in stacks.items():
        thread, *frames = text.split(";")
        worker = int(thread == WORKERS and bool(frames))
        if worker:
            thread, *frames = frames
        is_main = thread == MAIN_THREAD
        name = MAIN if is_main else thread.removeprefix(THREAD)
        found.append(Stack(name, is_main, tuple(frames), max(1, round(seconds * rate)), worker))
    return tuple(found)


def folded(stacks: Sequence[Stack], rate: float) -> dict[str, float]:
    """Return seconds by folded stack: the thread, then the frames from the outermost to the innermost."""
    found: dict[str, float] = defaultdict(float)
    for stack in stacks:
        thread = MAIN_THREAD if stack.is_main else f"{THREAD}{stack.thread}"
        names = (*((WORKERS,) if stack.worker else ()), thread, *stack.frames)
        found[";".join(name.replace(";", ":") for name in names)] += stack.samples / rate
    return dict(found)
