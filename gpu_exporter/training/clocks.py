"""Two clocks for sections of a step: that of the CPU, and that of the GPU, which the CPU runs ahead of.

A kernel launch returns at once, so on a GPU the CPU's clock tells only when work was queued. A CUDA event tells when
the GPU arrived there. Nothing here waits for the GPU: an event is read later, when it is over.
"""

from __future__ import annotations

import sys
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Clock(Protocol):
        """Marks moments in the order of work, to be compared when they are over."""

        def mark(self) -> Any:
            """Return a mark of this moment."""

        def cut(self) -> list[Any]:
            """Return the marks since the last cut, without the last one, with which the next step begins."""

        def reuse(self, marks: list[Any]) -> None:
            """Take back marks that nobody needs any more."""

        def passed(self, mark: Any) -> bool:
            """Return whether a mark has been passed."""

        def separate(self) -> None:
            """Let the next mark be another one than the last, however soon it comes."""

        def between(self, begin: Any, end: Any) -> float:
            """Return the seconds between marks. Raises RuntimeError if one has not been passed."""


# Two marks within this time are the same event. It is the time from one `with` statement to the next: no kernel is
# launched within it.
SAME_SECONDS = 4e-6
MOST_STREAMS = 64


class HostClock:
    """The clock of the CPU."""

    __slots__ = ()
    mark = staticmethod(perf_counter)

    def cut(self) -> list[float]:
        """Return nothing: these marks are not used again."""
        return []

    def reuse(self, marks: list[float]) -> None:
        """Do nothing."""

    def separate(self) -> None:
        """Do nothing."""

    def passed(self, mark: float) -> bool:
        """Return True."""
        return True

    def between(self, begin: float, end: float) -> float:
        """Return the seconds between marks."""
        return end - begin


class CudaClock:
    """The clock of the GPU: a mark is a CUDA event on the current stream, or None while a graph is captured.

    During a capture, events with times are illegal, and a query from any thread would break it. So this is used only
    in the threads of the loop. After an error of the GPU, each call raises it: that is for the loop's own calls to do.
    """

    __slots__ = ("_capturing", "_driver", "_event", "_marked_at", "_marks", "_pool")

    def __init__(self, cuda: Any) -> None:
        self._event, self._capturing = cuda.Event, cuda.is_current_stream_capturing
        self._driver = _driver(cuda)
        self._pool: list[Any] = []
        self._marks: list[Any] = []
        self._marked_at = 0.0

    def mark(self) -> Any:
        """Record an event and return it. It keeps when the CPU queued it."""
        now = perf_counter()
        if now - self._marked_at < SAME_SECONDS and self._marks:
            return self._marks[-1]
        driver = self._driver
        stream = driver.stream()
        if stream is not driver.default and self._capturing():
            return None
        event = self._pool.pop() if self._pool else self._event(enable_timing=True)
        try:
            driver.record(event, stream)
        except RuntimeError:
            return None
        self._marks.append(event)
        event.queued_at = self._marked_at = perf_counter()
        return event

    def cut(self) -> list[Any]:
        """Return the events since the last cut, without the last one, with which the next step begins."""
        marks, self._marks = self._marks[:-1], self._marks[-1:]
        return marks

    def reuse(self, marks: list[Any]) -> None:
        """Keep events to record them again: making one costs as much as recording it."""
        self._pool.extend(marks)

    def separate(self) -> None:
        """Let the next mark be an event of its own: the GPU may wait in between, which the CPU does not."""
        self._marked_at = 0.0

    def passed(self, mark: Any) -> bool:
        """Return whether the GPU has passed an event. What was not recorded is nothing to wait for."""
        if mark is None:
            return True
        try:
            driver = self._driver
            capturing = driver.stream() is not driver.default and self._capturing()
            return not capturing and bool(driver.query(mark))
        except RuntimeError:
            return True

    def between(self, begin: Any, end: Any) -> float:
        """Return the seconds between events. Raises RuntimeError if the GPU has not passed both."""
        if begin is None or end is None:
            raise RuntimeError("not recorded, because a graph was being captured")
        seconds: float = self._driver.elapsed(begin, end) / 1000
        return seconds


class _PublicDriver:
    """Events through the public API of PyTorch."""

    def __init__(self, cuda: Any) -> None:
        self.stream, self.default = cuda.current_stream, object()

    def record(self, event: Any, stream: Any) -> None:
        """Record an event on a stream."""
        event.record(stream)

    def query(self, event: Any) -> Any:
        """Return whether the GPU has passed an event."""
        return event.query()

    def elapsed(self, begin: Any, end: Any) -> Any:
        """Return the milliseconds between events."""
        return begin.elapsed_time(end)


class _Driver:
    """Events through the functions in C below the public API, which takes longer than the driver.

    `Event.record` asks for the current device, then for its current stream, and makes an object for it. Here, the
    object of each stream is kept: a stream is known by its address. That of the default stream is 0; it cannot be part
    of a graph.
    """

    __slots__ = ("_address", "_current", "_device", "_streams", "default", "elapsed", "query", "record")

    def __init__(self, cuda: Any, c: Any) -> None:
        event = c._CudaEventBase
        self.record, self.query, self.elapsed = event.record, event.query, event.elapsed_time
        self._address, self._device, self._current = c._cuda_getCurrentRawStream, c._cuda_getDevice, cuda.current_stream
        self._streams: dict[tuple[int, int], Any] = {}
        self.default: Any = None

    def stream(self) -> Any:
        """Return the current stream of the current device."""
        device = self._device()
        address = self._address(device)
        stream = self._streams.get((device, address))
        if stream is None:
            if len(self._streams) >= MOST_STREAMS:
                self._streams.clear()
            stream = self._streams[device, address] = self._current()
        if not address:
            self.default = stream
        return stream


def _driver(cuda: Any) -> Any:
    """Return the fast way to the driver; the public one where this version of PyTorch lacks a part of it."""
    try:
        return _Driver(cuda, sys.modules["torch"]._C)
    except AttributeError:
        return _PublicDriver(cuda)


def cuda() -> Any:
    """Return `torch.cuda` if the job uses it already, else None. Never imports PyTorch or starts CUDA."""
    torch = sys.modules.get("torch")
    module = getattr(torch, "cuda", None)
    return module if module is not None and module.is_initialized() else None


def gpu_uuid(module: Any) -> str:
    """Return the UUID of the current GPU as NVML prints it; "" if this version of PyTorch does not say."""
    uuid = str(getattr(module.get_device_properties(module.current_device()), "uuid", ""))
    return uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
