"""Connections: at most so many, and with a TLS handshake first if there is TLS."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import SSLIOStream

from gpu_exporter.serving.security.guard import Web
from gpu_exporter.serving.security.login import Seldom
from gpu_exporter.serving.security.tls import admits

log = logging.getLogger(__name__)


class BoundedServer(HTTPServer):
    """Closes connections beyond a limit at once, so that the process never runs out of descriptors."""

    def serve(self, sockets: list[socket.socket], web: Web, most: int, seconds: float) -> None:
        """Accept at most so many connections; a TLS handshake may take so many seconds."""
        self._web, self._most, self._seconds = web, most, seconds
        self._greeted: set[SSLIOStream] = set()
        self._seldom = Seldom()
        # It would log each failed handshake and each bad request, and so let anybody fill the log.
        logging.getLogger("tornado.general").addFilter(self._worth_a_line)
        self.add_sockets(sockets)

    def _worth_a_line(self, record: logging.LogRecord) -> bool:
        said = str(record.msg)
        return "SSL Error" not in said and (record.levelno >= logging.ERROR or self._seldom(said))

    def handle_stream(self, stream: Any, address: Any) -> Any:
        if len(self._connections) + len(self._greeted) >= self._most:
            stream.close()
        elif self._web.context is None:
            super().handle_stream(stream, address)
        else:
            try:
                plain = stream.socket
                connection = self._web.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it is gone already
                stream.close()
            else:
                secured = SSLIOStream(connection)
                self._greeted.add(secured)
                return self._greet(secured, address)
        return None

    async def _greet(self, stream: SSLIOStream, address: Any) -> None:
        """The TLS handshake: in the time that a request has, and without a word to who may not ask."""
        tls = self._web.config.tls
        try:
            await asyncio.wait_for(stream.wait_for_handshake(), self._seconds)
            if tls and not admits(tls, stream.socket.getpeercert()):
                raise ssl.SSLError(
                    ssl.SSL_ERROR_SSL, "no name of the client's certificate is among client_allowed_sans"
                )
            super().handle_stream(stream, address)
        except (OSError, asyncio.TimeoutError) as error:
            stream.close()
            if isinstance(error, ssl.SSLError) and self._seldom(address[0]):
                log.info("TLS handshake with %s failed: %s", address[0], getattr(error, "reason", None) or error)
        finally:
            self._greeted.discard(stream)
