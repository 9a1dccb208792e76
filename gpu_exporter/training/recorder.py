"""Cuts the time of a loop into steps and their sections, and adds them to the totals when they are over."""

from __future__ import annotations

from collections import deque

from gpu_exporter.training.clocks import CudaClock, HostClock, cuda
from gpu_exporter.training.totals import WAITING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from typing import Any

    from gpu_exporter.training.clocks import Clock
    from gpu_exporter.training.totals import Totals

ONLY_WAITING = frozenset({WAITING})
# The name of sections that are not part of the step, such as an evaluation.
EXCLUDED = ""
NO_SECTION = -1
# In a loop without steps, sections would pile up.
MOST_SECTIONS = 4096
# So many steps the CPU can be ahead of the GPU; times of older ones are given up.
MOST_PENDING = 256
# A section is [name, begin, end, index of the section around it]; a step (begin, end, sections, marks).
NAME, BEGIN, END, OUTER = range(4)


class Recorder:
    """Records sections of steps. A step begins where the previous one ended, with what is between them.

    `waits` are the phases in which this rank waits for others; None while that is unknown. Not safe for several
    threads, except that the totals are only changed with `lock`.
    """

    def __init__(self, totals: Totals, lock: threading.Lock, waits: frozenset[str] | None, *, gpu: bool) -> None:
        self.waits = waits
        self._totals, self._lock, self._gpu = totals, lock, gpu
        self._clock: Clock = HostClock()
        self._begin: Any = None
        self._sections: list[list[Any]] = []
        self._open: list[int] = []
        self._pending: deque[tuple[Any, Any, list[list[Any]], list[Any]]] = deque()
        self._paused: Any = None
        self._is_paused = False
        self._restart = False

    @property
    def on_gpu(self) -> bool:
        """Whether times are those of the GPU."""
        return not isinstance(self._clock, HostClock)

    def start(self) -> None:
        """Begin the first step here, unless it has begun."""
        if self._gpu and not self.on_gpu and (module := cuda()):
            self._clock, self._begin = CudaClock(module), None
            self._sections, self._open, self._restart = [], [], True
        if self._begin is None and not self._is_paused:
            self._begin = self._clock.mark()

    def enter(self, name: str) -> None:
        """Begin a section within the one that is open."""
        if self._is_paused or len(self._sections) >= MOST_SECTIONS:
            self._open.append(NO_SECTION)
            return
        if self._begin is None:
            self.start()
        outer = self._open[-1] if self._open else NO_SECTION
        self._open.append(len(self._sections))
        self._sections.append([name, self._clock.mark(), None, outer])

    def leave(self) -> None:
        """End the section that is open."""
        if not self._open:  # the step ended within the section
            return
        place = self._open.pop()
        if place != NO_SECTION:
            self._sections[place][END] = self._clock.mark()

    def pause(self) -> None:
        """Begin something that is no training."""
        self._is_paused, self._restart = True, self._begin is None
        if not self._restart:
            self._paused = self._clock.mark()

    def resume(self) -> None:
        """Continue the training: what was since `pause` is not part of the step."""
        self._is_paused = False
        if self._restart:
            self._begin, self._sections, self._open = None, [], []
            return
        outer = self._open[-1] if self._open else NO_SECTION
        self._sections.append([EXCLUDED, self._paused, self._clock.mark(), outer])

    def end_step(self, *, is_timed: bool = True) -> None:
        """End a step. One that ends during a pause has no times, nor has one that is not to be timed."""
        if self._is_paused:
            self._restart = True
            return
        end, sections = self._clock.mark(), self._sections
        marks = self._clock.cut()
        if len(self._pending) >= MOST_PENDING:
            self._pending.popleft()
        if is_timed:
            self._pending.append((self._begin, end, sections, marks))
        self._begin, self._sections, self._open = end, [], []
        self.collect()

    def collect(self) -> None:
        """Add the steps that are over to the totals. Only the thread of the loop may call it."""
        pending, clock = self._pending, self._clock
        while pending and clock.passed(pending[0][1]):
            begin, end, sections, marks = pending.popleft()
            self._add(begin, end, sections)
            clock.reuse(marks)

    def _add(self, begin: Any, end: Any, sections: list[list[Any]]) -> None:
        try:
            seconds = self._clock.between(begin, end)
        except RuntimeError:  # a graph was being captured: this step has no times
            return
        parts = [0.0] * len(sections)
        for place, (name, entered, left, outer) in enumerate(sections):
            if left is None:
                continue
            try:
                part = self._clock.between(entered, left)
            except RuntimeError:  # recorded on a stream that the step did not wait for
                continue
            parts[place] += part
            if outer != NO_SECTION:
                parts[outer] -= part
            if name == EXCLUDED:
                seconds -= part
        phases = [
            (section[NAME], part)
            for section, part in zip(sections, parts, strict=True)
            if section[NAME] and section[END]
        ]
        with self._lock:
            self._totals.add_step(max(seconds, 0.0), phases, self.waits)
