"""Sends messages from a thread, so that a loop that hangs stays visible and never pays for sending."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpu_exporter.training.transport import Transport


class Sender:
    """Sends what `message` returns every `seconds`, and once more at the end.

    A loop that waits for the GPU or for other ranks releases the interpreter, so the thread goes on. If it does not,
    the exporter sees silence instead.
    """

    def __init__(self, transport: Transport, message: Callable[[], dict[str, Any]], seconds: float) -> None:
        self._transport, self._message, self._seconds = transport, message, seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, which does not keep the program from ending."""
        self._thread = threading.Thread(target=self._run, name="gpu-exporter-steps", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._transport.send(self._message())

    def close(self) -> None:
        """Stop, and send the last message."""
        if self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._seconds)  # a textfile may be on a disk that hangs
            if self._thread.is_alive():
                return
        self._transport.send(self._message())
        self._transport.close()
