"""The event on which the process stops."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue


def stop_event() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. Must be called by the main thread.

    The signal handler does not set it: it interrupts the main thread, which may hold the event's lock, and would wait
    for itself. Only a SimpleQueue is safe to put into from there.
    """
    stop, signals = threading.Event(), SimpleQueue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.put(number))

    def follow() -> None:
        signals.get()
        stop.set()

    threading.Thread(target=follow, name="stop", daemon=True).start()
    return stop
