"""A TCP proxy in front of a server with TLS: it can refuse, cut and hold back connections, and counts them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

APPLICATION_DATA = 23


class Gate:
    """Forwards connections to a port of this machine until `close`.

    While `is_open` is False, connections are closed as soon as they are accepted, as by a load balancer without a
    server. Of each connection made after `hold(n)`, it forwards only the first n records of the client that carry
    data, until `release`; if the server ends such a connection, the client learns it then. With TLS 1.3, the first
    record ends the handshake, and each other one is a request.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.is_open = True
        self.accepted = 0
        self._most: int | None = None
        self._released = threading.Event()
        # Set when a connection waits for `release`.
        self.holding = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """Cut all connections, and refuse others."""
        self.is_open = False
        self.cut()

    def open(self) -> None:
        """Forward connections again."""
        self.is_open = True

    def cut(self) -> None:
        """Close all connections."""
        for connection in self._sockets:
            _end(connection)
        self._sockets = []

    def hold(self, records: int) -> None:
        """Hold back what follows this many records of each new connection."""
        self.holding.clear()
        self._released.clear()
        self._most = records

    def release(self) -> None:
        """Forward what was held back."""
        self._most = None
        self._released.set()

    def close(self) -> None:
        """Stop."""
        self.shut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.is_open:
                    client.close()
                    continue
                self.accepted += 1
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            answers = threading.Thread(target=self._forward_answers, args=(server, client), daemon=True)
            answers.start()
            self._forward_requests(client, server)
            answers.join()

    def _forward_answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        if self.holding.is_set():
            self._released.wait()
        _end(client)

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        most, records = self._most, 0
        with client.makefile("rb") as stream, suppress(OSError):
            while len(head := stream.read(5)) == 5:
                content = stream.read(int.from_bytes(head[3:], "big"))
                records += head[0] == APPLICATION_DATA
                if most is not None and records > most:
                    self.holding.set()
                    self._released.wait()
                server.sendall(head + content)
        _end(server)


def _end(connection: socket.socket) -> None:
    """Tell the other side that nothing follows, also while another thread reads."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
