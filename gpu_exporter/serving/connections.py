"""An HTTP server with a limit on connections, and on the duration of TLS handshakes."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import SSLIOStream

from gpu_exporter.serving.security.guard import Guard
from gpu_exporter.serving.security.login import OncePerMinute
from gpu_exporter.serving.security.tls import admits

log = logging.getLogger(__name__)


class BoundedServer(HTTPServer):
    """Closes connections beyond a limit at once, so that the process never runs out of file descriptors."""

    def serve(self, sockets: list[socket.socket], guard: Guard, most: int, seconds: float) -> None:
        """Accept at most `most` connections; a TLS handshake may take `seconds`."""
        self._guard, self._most, self._seconds = guard, most, seconds
        self._handshaking: set[SSLIOStream] = set()
        self._once_per_minute = OncePerMinute()
        # Tornado would log every failed handshake and every bad request, so anybody could fill the log.
        logging.getLogger("tornado.general").addFilter(self._is_logged)
        self.add_sockets(sockets)

    def _is_logged(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        return "SSL Error" not in message and (record.levelno >= logging.ERROR or self._once_per_minute(message))

    def handle_stream(self, stream: Any, address: Any) -> Any:
        if len(self._connections) + len(self._handshaking) >= self._most:
            stream.close()
        elif self._guard.context is None:
            super().handle_stream(stream, address)
        else:
            try:
                plain = stream.socket
                connection = self._guard.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the client is gone already
                stream.close()
            else:
                secured = SSLIOStream(connection)
                self._handshaking.add(secured)
                return self._handshake(secured, address)
        return None

    async def _handshake(self, stream: SSLIOStream, address: Any) -> None:
        """Do the TLS handshake within the time limit; close the connection of a client that may not connect."""
        tls = self._guard.config.tls
        try:
            await asyncio.wait_for(stream.wait_for_handshake(), self._seconds)
            if tls and not admits(tls, stream.socket.getpeercert()):
                raise ssl.SSLError(
                    ssl.SSL_ERROR_SSL, "no name of the client's certificate is among client_allowed_sans"
                )
            super().handle_stream(stream, address)
        except (OSError, asyncio.TimeoutError) as error:
            stream.close()
            if isinstance(error, ssl.SSLError) and self._once_per_minute(address[0]):
                log.info("TLS handshake with %s failed: %s", address[0], getattr(error, "reason", None) or error)
        finally:
            self._handshaking.discard(stream)
