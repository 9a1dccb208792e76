"""A unix socket that accepts connections and never completes an answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path


class StuckSocket:
    """Sends `data` on each connection every `pause` seconds, and reads nothing."""

    def __init__(self, path: Path, data: bytes, pause: float) -> None:
        self._data, self._pause, self._end = data, pause, threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(0.2)
            while not self._end.wait(self._pause):
                with suppress(TimeoutError):
                    connection.sendall(self._data)

    def close(self) -> None:
        """Close the socket and its connections."""
        self._end.set()
        self._listener.close()
