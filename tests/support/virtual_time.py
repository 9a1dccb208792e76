"""A collector's loop in virtual time: the test does the work of the clock thread; time passes while all threads wait.

The speed of the machine has no effect. A device whose reads take long calls `Clock.sleep`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TypeVar
from unittest.mock import patch

from gpu_exporter.pipeline import collector as collector_module
from gpu_exporter.pipeline import composer, connector, gpu_state, hand_over, worker
from gpu_exporter.pipeline.collector import Collector
from gpu_exporter.sources import backoff

T = TypeVar("T")

# Modules whose clock is replaced.
MODULES: tuple[ModuleType, ...] = (backoff, collector_module, composer, connector, gpu_state, hand_over, worker)
# Real seconds after which a thread that neither ends its work nor waits counts as deadlocked.
PATIENCE = 60.0


class Clock:
    """A clock that the test advances. Threads can sleep in it."""

    def __init__(self) -> None:
        self._begin = self._now = time.monotonic()
        self._unix = time.time()
        self._passed = threading.Condition()
        self._asleep: dict[int, float] = {}

    def monotonic(self) -> float:
        """Return seconds, as `time.monotonic`."""
        return self._now

    def time(self) -> float:
        """Return seconds since 1970, as `time.time`."""
        return self._unix + self._now - self._begin

    def pass_by(self, seconds: float) -> None:
        """Advance the time."""
        self.pass_until(self._now + seconds)

    def pass_until(self, end: float) -> None:
        """Advance the time to `end`."""
        with self._passed:
            self._now = max(self._now, end)
            self._passed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Wait until this much time has passed."""
        thread = threading.get_ident()
        with self._passed:
            end = self._asleep[thread] = self._now + seconds
            assert self._passed.wait_for(lambda: self._now >= end, PATIENCE), "the test does not advance the time"
            del self._asleep[thread]

    def wakes(self, thread: int | None) -> float | None:
        """Return when a thread that sleeps now wakes up."""
        end = self._asleep.get(thread or 0)
        return end if end is not None and end > self._now else None


class Enough(Exception):
    """The loop has run for as long as the test needs."""


class _Stopping(threading.Event):
    """The event that the clock thread waits on between two ticks."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def wait(self, timeout: float | None = None) -> bool:
        self._loop.wait(lambda: False, timeout or 0.0)
        self._loop.check()
        return self.is_set()


class _Done(threading.Condition):
    """The condition that the clock thread waits on for the end of reads."""

    def __init__(self, loop: Loop, lock: threading.Lock) -> None:
        super().__init__(lock)
        self._loop = loop

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        self.release()
        try:
            return self._loop.wait(predicate, timeout or 0.0)
        finally:
            self.acquire()


class Loop:
    """The loop of a collector. `run` does the work of the clock thread in the test's thread."""

    def __init__(self, collector: Collector, clock: Clock) -> None:
        self._collector, self._clock = collector, clock
        self._enough: Callable[[], object] = bool
        self._ticks = 0
        collector.stopping = collector.connection.stopping = _Stopping(self)
        collector._workers._finished = _Done(self, collector._workers._lock)

    def start(self) -> None:
        """Connect, and wait until each GPU has its worker."""
        assert self._collector.connect(PATIENCE), "the source was not opened"

    def run(self, until: Callable[[], object], ticks: int = 1000) -> None:
        """Tick until a condition is true; fail if it is not after a number of waits of the loop."""
        self._enough, self._ticks = until, ticks
        try:
            self._collector._run_clock()
        except Enough:
            return

    def check(self) -> None:
        """Raise Enough if the condition of the test is true."""
        if self._enough():
            raise Enough
        self._ticks -= 1
        assert self._ticks > 0, "it never came true"

    def wait(self, holds: Callable[[], T], seconds: float) -> T:
        """Advance the time until `holds`, at most for these seconds, after all threads have done their work."""
        end = self._clock.monotonic() + seconds
        while True:
            wakes = self._settled()
            if (answer := holds()) or self._clock.monotonic() >= end:
                return answer
            self._clock.pass_until(min([*wakes, end]))

    def _settled(self) -> list[float]:
        """Wait until every thread that reads is idle or asleep in virtual time; return when the latter wake up."""
        limit, workers = time.monotonic() + PATIENCE, self._collector._workers
        while True:
            with workers._lock:
                wakes = [wake for thread in workers._threads if (wake := self._clock.wakes(thread.ident)) is not None]
                if len(workers._threads) == len(wakes) + workers._idle and not (workers._queue and workers._idle):
                    return wakes
            assert time.monotonic() < limit, "a read does not end"
            time.sleep(0.0005)


@contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Make the loop use this clock."""
    with ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(patch.object(module, "time", clock))
        yield
