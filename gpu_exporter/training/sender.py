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
        """Whether the thread was started, and not closed since."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, which does not keep the program from ending. Again after `close`, too."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="gpu-exporter-steps", daemon=True)
        self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds):
            self._transport.send(self._message())

    def close(self) -> None:
        """Stop, and send the last message. Nothing is sent if it was never started."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join(self._seconds)
        if not thread.is_alive():  # a textfile may be on a disk that hangs
            self._transport.send(self._message())
            self._transport.close()
