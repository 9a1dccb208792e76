"""One connection to a host engine, and the thread on which every call into DCGM's library is made.

Each call has a deadline, because none can be interrupted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.sources.dcgm.bindings import Bindings
from gpu_exporter.sources.dcgm.errors import SEE_LOG, SOURCE_LOST, DcgmError, hung_fix, source_lost
from gpu_exporter.sources.dcgm.values import Entity, FieldAnswer

T = TypeVar("T")


class _Call(Generic[T]):
    """A job, and its result or error."""

    def __init__(self, job: Callable[[], T], timeout: float) -> None:
        self.job, self.timeout = job, timeout
        self.begun: float | None = None
        self.done = self.abandoned = False
        self.result: T | None = None
        self.error: BaseException | None = None


class CallThread:
    """Makes one call after the other. While one is stuck, every other call fails at once.

    `name` is that of the host engine, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[_Call[Any]] = deque()
        self._current: _Call[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def stuck(self) -> float:
        """Seconds for which an abandoned call has been stuck; 0 if none is."""
        current = self._current
        begun = current.begun if current and current.abandoned else None
        return 0.0 if begun is None else time.monotonic() - begun

    def heartbeat(self) -> None:
        """Restart the timeout of the current job, which calls this because it makes progress.

        Raises SourceLost to end a job that was abandoned.
        """
        current = self._current
        if current is None:
            return
        if current.abandoned:
            raise SourceLost(f"DCGM: {self._name} answered too late", "stalled")
        current.begun = time.monotonic()

    def call(self, job: Callable[[], T], timeout: float) -> T:
        """Run a job on the thread, after the earlier ones, with at most `timeout` seconds between two heartbeats.

        Raises what the job raises, or SourceLost if it, or the one before it, takes too long.
        """
        call = _Call(job, timeout)
        with self._changed:
            self._refuse_if_stuck()
            if self._thread is None:
                self._thread = self._started()
            self._waiting.append(call)
            self._changed.notify_all()
            while not call.done:
                self._changed.wait(self._remaining())
                if not call.done:
                    self._abandon_if_late(call)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="dcgm", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            fix = "raise the limit on processes (ulimit -u, pids.max) or on memory"
            raise SourceLost(f"DCGM: {error}", "no_thread", fix=fix) from error
        return thread

    def _remaining(self) -> float | None:
        current = self._current
        if current is None or current.begun is None:
            return None
        return max(0.0, current.begun + current.timeout - time.monotonic())

    def _abandon_if_late(self, call: _Call[Any]) -> None:
        current = self._current
        if current is None or current.begun is None or time.monotonic() < current.begun + current.timeout:
            return
        current.abandoned = True
        if call is not current and call in self._waiting:
            self._waiting.remove(call)
        self._refuse_if_stuck()

    def _refuse_if_stuck(self) -> None:
        if self.stuck:
            raise SourceLost(f"DCGM: {self._name} does not answer", "stalled", fix=hung_fix(self._name))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if not self._changed.wait(IDLE_SECONDS) and not self._waiting:
                        self._thread = None
                        return
                call = self._current = self._waiting.popleft()
                call.begun = time.monotonic()
                self._changed.notify_all()
            try:
                call.result = call.job()
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                call.error = error
            with self._changed:
                self._current = None
                call.done = True
                self._changed.notify_all()


# The thread ends after so long without a job, so that nothing is left of a source that was closed.
IDLE_SECONDS = 60.0


P = ParamSpec("P")


class EngineConnection:
    """A handle of a host engine. `bindings` has the calls, each of which takes the handle first."""

    def __init__(self, bindings: Bindings, to: Hostengine, timeout: float, heartbeat: Callable[[], None]) -> None:
        """Connect. `heartbeat` is called before each call, so that the deadline applies to a single call.

        Raises DcgmError, SourceLost.
        """
        self.where = str(to)
        self.bindings = bindings
        self._to, self._heartbeat = to, heartbeat
        self.dead = False
        self._handle = self._checked(lambda: bindings.connect(to, timeout))

    def call(self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the bindings. Raises SourceLost if the connection is broken, DcgmError otherwise."""
        return self._checked(lambda: function(self._handle, *args, **kwargs))

    def _checked(self, call: Callable[[], T]) -> T:
        self._heartbeat()
        try:
            return call()
        except DcgmError as error:
            if error.code in SOURCE_LOST:
                self.dead = True
                raise source_lost(error.code, self.where) from error
            raise

    def release(self, function: Callable[Concatenate[Any, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function that releases something. Does nothing on a dead connection, where each call may hang again.

        Never raises.
        """
        if not self.dead:
            with suppress(DcgmError, SourceLost):
                self.call(function, *args, **kwargs)

    def latest(self, entities: Sequence[Entity], fields: Sequence[int]) -> Mapping[tuple[Entity, int], FieldAnswer]:
        """Return the last samples of some fields. Raises SourceLost."""
        try:
            return self.call(self.bindings.latest, entities, fields)
        except DcgmError as error:
            raise SourceLost(f"DCGM: {self.where}: values cannot be read: {error}", fix=SEE_LOG) from error

    def live(self, links: Sequence[Entity], fields: Sequence[int]) -> Mapping[tuple[Entity, int], FieldAnswer]:
        """Return the values of fields of NVLinks now; a link that cannot be read has none. Raises SourceLost.

        The host engine returns too many values for such a link, and so fails the whole call.
        """
        try:
            return self.call(self.bindings.latest, links, fields, live=True)
        except DcgmError:
            middle = len(links) // 2
            return {**self.live(links[:middle], fields), **self.live(links[middle:], fields)} if middle else {}

    def close(self) -> None:
        """Disconnect. The host engine then drops this connection's groups and watches."""
        with suppress(DcgmError):  # it was gone already
            self.bindings.disconnect(self._handle, self._to)
