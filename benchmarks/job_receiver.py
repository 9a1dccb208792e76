"""Receives what training loops send, like the exporter, but takes everything."""

from __future__ import annotations

import select
import socket
from pathlib import Path

MOST_BYTES = 65536


class Receiver:
    """A Unix socket of packets with all its connections. One that does not read fills up as an exporter that hangs."""

    def __init__(self, path: Path | str, *, backlog: int = 256) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen(backlog)
        self._connections: list[socket.socket] = []

    def receive(self, seconds: float = 0.0) -> list[bytes]:
        """Wait for messages for some seconds at most, and return all that have arrived."""
        readable, _, _ = select.select([self._listener, *self._connections], [], [], seconds)
        if self._listener in readable:
            self._accept()
        return [message for connection in list(self._connections) for message in self._read(connection)]

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._connections, self._listener):
            connection.close()
        self._connections = []

    def _accept(self) -> None:
        try:
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._connections.append(connection)
        except BlockingIOError:
            return

    def _read(self, connection: socket.socket) -> list[bytes]:
        messages: list[bytes] = []
        try:
            while message := connection.recv(MOST_BYTES):
                messages.append(message)
        except BlockingIOError:
            return messages
        except ConnectionError:
            pass
        connection.close()
        self._connections.remove(connection)
        return messages
