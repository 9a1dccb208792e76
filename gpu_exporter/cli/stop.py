"""The event on which the process stops."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

# How long a reader of stderr may take for the last line.
LAST_LINE_SECONDS = 1.0


def stop_event(hang_up: Callable[[], None] | None = None) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; SIGHUP calls `hang_up`. Must be called by the main thread.

    A thread reads the signals from a pipe that the interpreter writes them to at once. A handler would run only when
    the main thread gets to it, which may hang in a system call. A handler that set the event could also deadlock: it
    interrupts the main thread, which may hold the event's lock.
    """
    stop, ends = threading.Event(), {signal.SIGTERM, signal.SIGINT}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in ends | ({signal.SIGHUP} if hang_up else set()):
        signal.signal(number, lambda *_: None)

    def follow() -> None:
        while ends.isdisjoint(numbers := os.read(reader, 64)):
            if hang_up and signal.SIGHUP in numbers:
                hang_up()
        stop.set()

    threading.Thread(target=follow, name="stop", daemon=True).start()
    return stop


def exit_after(
    stop: threading.Event, seconds: float, code: int = 0, line: str = "", done: threading.Event | None = None
) -> None:
    """End the process so many seconds after `stop`, whatever hangs then: a driver call, a file, a reader of the log.

    It ends with this exit code, after printing `line` to stderr; not if `done` is set by then.
    """

    def write() -> None:
        with suppress(OSError):  # not through sys.stderr, whose lock a stuck thread may hold
            os.write(2, f"gpu-exporter: {line}\n".encode())

    def watch() -> None:
        stop.wait()
        time.sleep(seconds)
        if done and done.is_set():
            return
        if line:
            with suppress(RuntimeError):  # no thread can be started
                printing = threading.Thread(target=write, daemon=True)
                printing.start()
                printing.join(LAST_LINE_SECONDS)
        os._exit(code)

    threading.Thread(target=watch, name="deadline", daemon=True).start()


def leave(code: int, clean: bool) -> None:
    """End the process. If a thread is stuck in a driver, no destructor runs, since it could wait for that thread."""
    if clean:
        sys.exit(code)
    sys.stdout.flush()
    os._exit(code)
