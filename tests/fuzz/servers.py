"""HTTP servers and clients for fuzzing."""

from __future__ import annotations

import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress

Answer = Callable[[str], bytes | None]


class BodyServer:
    """Answers each GET with the body that `answer` returns for its path, or with 404, and closes the connection.

    For one body in ten that is not in `whole`, Content-Length is wrong.
    """

    def __init__(self, answer: Answer, whole: Collection[bytes], tls: ssl.SSLContext | None = None) -> None:
        self._answer, self._whole, self._tls = answer, frozenset(whole), tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def stop(self) -> None:
        """Stop to accept connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                with client, suppress(OSError):
                    client.settimeout(5)
                    if self._tls:
                        with self._tls.wrap_socket(client, server_side=True) as encrypted:
                            self._respond(encrypted)
                    else:
                        self._respond(client)

    def _respond(self, client: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            data = client.recv(1 << 16)
            if not data:
                return
            request += data
        body = self._answer(request.split(b" ", 2)[1].decode())
        status, content = ("404 Not Found", b"") if body is None else ("200 OK", body)
        length = len(content)
        if zlib.crc32(content) % 10 == 0 and content not in self._whole:
            length += 100
        client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode() + content)


def exchanged(port: int, request: bytes) -> bytes:
    """Send a request, and nothing after it, and return the response."""
    response = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        with suppress(ConnectionError):
            client.sendall(request)
            with suppress(OSError):  # the server has closed it already
                client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := client.recv(1 << 16):
                response += data
    return response
