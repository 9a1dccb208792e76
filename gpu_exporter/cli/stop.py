"""The end of what runs until it is told to end."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue


def stop_event() -> threading.Event:
    """An event that SIGTERM and SIGINT set. To be called by the main thread.

    Their handler does not set it: it runs amid whatever the main thread does, which may hold the event's lock just then
    and would wait for itself. To put into this kind of queue is safe there.
    """
    stop, told = threading.Event(), SimpleQueue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: told.put(number))

    def follow() -> None:
        told.get()
        stop.set()

    threading.Thread(target=follow, name="stop", daemon=True).start()
    return stop
