"""Cuts the time of a loop into steps and their sections, and adds them to the totals when they are over."""

from __future__ import annotations

from bisect import insort
from collections import deque

from gpu_exporter.model.job_message import WAITING
from gpu_exporter.training.clocks import CudaClock, HostClock, cuda

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable
    from typing import Any, Protocol

    from gpu_exporter.training.clocks import Clock
    from gpu_exporter.training.totals import StepTotals

    class Switchable(Protocol):
        """Calls `enter` and `leave_wait` for each collective while it is on."""

        def switch(self, *, on: bool) -> None:
            """Begin or end to measure."""


ONLY_WAITING = frozenset({WAITING})
# What a mark begins: a section of this name, or the end of the last one, or time that is not part of the step, or a
# pass of the model, or what a loop does between its passes.
LEAVE, PAUSE, RESUME, FORWARD, BETWEEN, BACKWARD, END = (object() for _ in range(7))
# In a loop without steps, marks would pile up.
MOST_MARKS = 8192
# So many steps the CPU can be ahead of the GPU; times of older ones are given up.
MOST_PENDING = 256
# On a GPU, sections of steps shorter than so many seconds are measured in one step of so many, the same on all ranks:
# each mark takes several microseconds. Where all collectives are measured, a step may have hundreds of marks.
ONE_OF = ((0.05, 8),)
ONE_OF_WATCHED = ((0.05, 32), (0.5, 8))
MANY_MARKS, SHORT_SECONDS, ONE_OF_MANY = 100, 0.05, 128
# A CPU that loses so much of its lead at once, as a share of the step, and has none left, has waited for the GPU.
WAITED_SHARE = 0.1
# So many steps must be as short as the one that counts: a step that the loop skips is shorter than all others.
SHORT_STEPS = 3


class HostTime:
    """How long the CPU of a rank needs for a step, by when it queued marks, and when the GPU passed them.

    The CPU runs ahead of the GPU. Where it is far ahead, the queue of launches is full, and a step takes the CPU as
    long as the GPU, although it has little to do. Until then, it queues steps as fast as it can: so its shortest steps
    tell how much it has to do, also while it is held up later. If it is never held up, all of its steps are like these.
    """

    __slots__ = ("_ahead", "_lowest", "_shortest")

    def __init__(self) -> None:
        # The lead of the CPU, but for a constant: it is 0 where it is lowest.
        self._ahead = self._lowest = 0.0
        self._shortest: list[float] = []

    def restart(self) -> None:
        """Begin to follow the lead again, after steps that are not known."""
        self._ahead = self._lowest = 0.0

    def add(self, parts: Iterable[tuple[float, float, bool, bool]]) -> tuple[float, bool]:
        """Add a step; return how long the CPU needs for one, and whether the GPU is behind by more than this step.

        Of each part: for how long the CPU queued it; how long the GPU took; whether the rank waited for others, or did
        not train; and whether the CPU may have waited for the GPU, as to read a loss.
        """
        busy = taken = 0.0
        lost = []
        for queued_for, passed_for, is_waiting, may_wait in parts:
            before = self._ahead
            self._ahead = ahead = before + passed_for - queued_for
            self._lowest = min(self._lowest, ahead)
            taken += passed_for
            if not is_waiting:
                busy += queued_for
                if may_wait:
                    lost.append((before - ahead, ahead - self._lowest))
        little = WAITED_SHARE * taken
        busy -= sum(seconds for seconds, left in lost if seconds > little > left)
        shortest = self._shortest
        if len(shortest) < SHORT_STEPS or busy < shortest[-1]:
            insort(shortest, busy)
            del shortest[SHORT_STEPS:]
        needed = shortest[-1] if len(shortest) == SHORT_STEPS else shortest[0]
        return needed, self._ahead - self._lowest > taken


class Recorder:
    """Records sections of steps. A step begins where the previous one ended, with what is between them.

    `waits` are the phases in which this rank waits for others; None while that is unknown. Not safe for several
    threads, except that the totals are only changed with `lock`.

    A step is a list of marks, each with what it begins. The time to the next mark belongs to the innermost section.
    """

    __slots__ = (
        "_begin",
        "_clock",
        "_depth",
        "_ended",
        "_followed",
        "_gpu",
        "_host",
        "_ignored",
        "_ignores",
        "_is_paused",
        "_is_sampled",
        "_lock",
        "_marked",
        "_marks",
        "_pending",
        "_restart",
        "_skipped",
        "_took",
        "_totals",
        "beside",
        "follows_host",
        "on_gpu",
        "waits",
        "watch",
    )

    def __init__(self, totals: StepTotals, lock: threading.Lock, waits: frozenset[str] | None, *, gpu: bool) -> None:
        self.waits, self.on_gpu = waits, False
        # What measures all collectives of a model, in the steps that are sampled; or those that a loop has beside those
        # of DistributedDataParallel, which are few.
        self.watch: Switchable | None = None
        self.beside: Switchable | None = None
        self._totals, self._lock, self._gpu = totals, lock, gpu
        self._clock: Clock = HostClock()
        self._begin: Any = None
        self._marks: list[tuple[Any, Any]] = []
        # Open sections, and those in which nothing is recorded.
        self._depth = self._ignored = 0
        self._pending: deque[tuple[Any, Any, list[tuple[Any, Any]], list[Any], float, bool]] = deque()
        self._is_paused = False
        self._restart = False
        # Whether the sections of this step are measured; how many steps have ended, and how many since the last one
        # whose sections were measured; how long a step took; how many marks the last of these steps had.
        self._is_sampled, self._ended, self._skipped, self._took, self._marked = True, 0, 0, float("inf"), 0
        self._ignores = False
        # Whether a rank may only seem to wait for others, because its CPU is ahead of theirs; then, the time of its CPU
        # is followed, up to this mark.
        self.follows_host, self._host, self._followed = False, HostTime(), None

    def start(self) -> None:
        """Begin the first step here, unless it has begun."""
        if self._gpu and not self.on_gpu and (module := cuda()):
            self.unwatch()
            self._clock, self._begin, self.on_gpu = CudaClock(module), None, True
            self._marks, self._depth, self._restart = [], 0, True
        if self._begin is None and not self._is_paused:
            self._begin = self._clock.mark()
        self._switch()
        if self.beside:
            self.beside.switch(on=True)

    def enter(self, name: str) -> None:
        """Begin a section within the one that is open."""
        if self._ignores or len(self._marks) >= MOST_MARKS:
            self._ignored += 1
            return
        if self._begin is None:
            self.start()
        self._depth += 1
        self._marks.append((name, self._clock.mark()))

    def leave(self) -> None:
        """End the section that is open."""
        if self._ignored:
            self._ignored -= 1
        elif self._depth:  # else the step ended within the section
            self._depth -= 1
            self._marks.append((LEAVE, self._clock.mark()))

    def leave_wait(self) -> None:
        """End the open section, in which the CPU only queued a wait for the GPU: it takes the CPU no time."""
        self._clock.separate()
        self.leave()

    def mark(self, begins: Any) -> None:
        """Note a moment within a section."""
        if not self._ignores and self._begin is not None and len(self._marks) < MOST_MARKS:
            self._marks.append((begins, self._clock.mark()))

    def unwatch(self) -> None:
        """Leave collectives alone until the next step."""
        for each in (self.watch, self.beside):
            if each:
                each.switch(on=False)

    def pause(self) -> None:
        """Begin something that is no training."""
        self._is_paused = self._ignores = True
        self._restart = self._begin is None
        if not self._restart:
            self._marks.append((PAUSE, self._clock.mark()))

    def resume(self) -> None:
        """Continue the training: what was since `pause` is not part of the step."""
        self._is_paused, self._ignores = False, not self._is_sampled
        if self._restart:
            self._begin, self._marks, self._depth = None, [], 0
            return
        self._marks.append((RESUME, self._clock.mark()))

    def end_step(self, *, is_timed: bool = True, data: float = 0.0) -> None:
        """End a step, `data` seconds of which were in the loader.

        One that ends during a pause has no times, nor has one that is not to be timed.
        """
        if self._is_paused:
            self._restart = True
            return
        end = self._clock.mark()
        if self.on_gpu:
            self._queue(end, data, is_timed=is_timed)
        elif is_timed:
            self._add(self._begin, end, self._marks, is_sampled=True, data=data)
        self._begin, self._marks, self._depth, self._ignored = end, [], 0, 0

    def _queue(self, end: Any, data: float, *, is_timed: bool) -> None:
        """Keep a step until the GPU has passed its end."""
        if len(self._pending) >= MOST_PENDING:
            self._pending.popleft()
        used = self._clock.cut()
        if is_timed:
            self._pending.append((self._begin, end, self._marks, used, data, self._is_sampled))
        if self._is_sampled:
            self._marked = len(self._marks)
        self.collect()
        self._ended += 1
        self._is_sampled = not self._ended % self._one_of()
        self._ignores = not self._is_sampled
        self._switch()

    def _one_of(self) -> int:
        """Return in one of how many steps sections are measured."""
        if self._marked > MANY_MARKS and self._took < SHORT_SECONDS:
            return ONE_OF_MANY
        paces = ONE_OF_WATCHED if self.watch or self._marked > MANY_MARKS else ONE_OF
        return next((one_of for seconds, one_of in paces if self._took < seconds), 1)

    def _switch(self) -> None:
        """Let the collectives of this step be measured if its sections are."""
        if self.watch:
            self.watch.switch(on=self._is_sampled)

    def collect(self) -> None:
        """Add the steps that are over to the totals. Only the thread of the loop may call it."""
        pending, clock = self._pending, self._clock
        while pending and clock.passed(pending[0][1]):
            begin, end, marks, used, data, is_sampled = pending.popleft()
            self._add(begin, end, marks, is_sampled=is_sampled, data=data)
            clock.reuse(used)

    def _add(self, begin: Any, end: Any, marks: list[tuple[Any, Any]], *, is_sampled: bool, data: float = 0.0) -> None:
        phases: list[list[Any]] = []
        opened: list[list[Any]] = []  # name and seconds
        parts: list[tuple[float, float, bool, bool]] = []
        trained = paused = 0.0
        # Between few marks, a GPU that catches up with the CPU looks the same as a CPU that waits for the GPU.
        is_paused, is_complete, has_waited, may_wait = False, True, False, bool(self.watch)
        follows, waits = self.follows_host and self.on_gpu, self.waits or ONLY_WAITING
        between, last = self._clock.between, begin
        marks.append((END, end))
        for begins, mark in marks:
            if mark is not last:
                try:
                    seconds = between(last, mark)
                except RuntimeError:  # during the capture of a graph, or on a stream that the step did not wait for
                    seconds, is_complete = 0.0, False
                if follows and is_complete:
                    is_waiting = is_paused or (bool(opened) and opened[-1][0] in waits)
                    queued_for = mark.queued_at - last.queued_at
                    parts.append((queued_for, seconds, is_waiting, may_wait))
                last = mark
                if is_paused:
                    paused += seconds
                else:
                    trained += seconds
                    if opened:
                        opened[-1][1] += seconds
            if begins is LEAVE:
                phases.append(opened.pop())
                if phases[-1][0] == WAITING:
                    has_waited = may_wait = True
            elif begins.__class__ is str:
                opened.append([begins, 0.0])
            elif begins is PAUSE or begins is RESUME:
                is_paused = begins is PAUSE
            elif begins is not END:
                may_wait = begins is BETWEEN or bool(self.watch)
        host = self._follow(begin, end, parts) if follows and is_complete else (0.0, False)
        if not is_complete:
            try:
                trained = between(begin, end) - paused
            except RuntimeError:  # this step has no times
                return
        self._took = trained
        # A step in which no collective was seen has some that are not.
        is_seen = not self.watch or has_waited
        weight = self._skipped + 1 if is_sampled else 0
        self._skipped = 0 if is_sampled else self._skipped + 1
        with self._lock:
            known = self.waits if is_seen else None
            self._skipped += self._totals.add_step(max(trained, 0.0), phases, known, weight, *host, data)

    def _follow(self, begin: Any, end: Any, parts: list[tuple[float, float, bool, bool]]) -> tuple[float, bool]:
        """Return how long the CPU needs for a step, and whether it is far ahead, after this one."""
        if begin is not self._followed:
            self._host.restart()
        self._followed = end
        return self._host.add(parts)
