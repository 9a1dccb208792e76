"""The HTTP server: binds an address, and serves handlers on a thread of its own, within limits on what clients send."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

from tornado.netutil import bind_sockets
from tornado.web import Application

from gpu_exporter.http.admission import FEW_PER_ADDRESS, Admission, most_connections
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import GuardedHandler, NotFound
from gpu_exporter.http.listener import BoundedServer
from gpu_exporter.http.ready import FindReady, none_ready
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError

log = logging.getLogger(__name__)

# A connection is closed if a client takes longer than this to send a request or to read a response.
CLIENT_SECONDS = 10.0
# A connection is closed if it is idle for longer than this between two requests. A scrape every 60 s needs no new
# connection: with TLS, the handshake takes as much CPU time as the scrape.
IDLE_SECONDS = 75.0
MAX_HEADER_BYTES = 16 * 1024
# Connections that wait to be accepted. If a flood fills this queue, the kernel ignores new connections, which clients
# repeat only after a second, then after two and four.
BACKLOG = 1024


class Server:
    """Serves until `stop`. The constructor binds the address, or raises GpuExporterError, which names the program that
    may use it already and the option that sets it.

    If `sockets` are given, which listen already, it serves on these instead. Handlers read `settings`. `ready`
    finds responses that need no handler.
    """

    def __init__(
        self,
        address: Address,
        handlers: Sequence[tuple[str, type[GuardedHandler], dict[str, Any]]],
        *,
        program: str,
        option: str,
        guard: Guard | None = None,
        admission: Admission | None = None,
        sockets: Sequence[socket.socket] = (),
        ready: FindReady = none_ready,
        **settings: Any,
    ) -> None:
        self._admission = admission or Admission()
        self._guard = guard or Guard()
        self._ready = ready
        self._max_body_bytes = max((handler.max_body_bytes for _, handler, _ in handlers), default=0)
        self._application = Application(
            list(handlers),
            default_handler_class=NotFound,
            log_function=lambda handler: None,
            guard=self._guard,
            **settings,
        )
        self._sockets = list(sockets) or _bind(address, program, option)
        name = self._sockets[0].getsockname()
        self.port: int = name[1] if isinstance(name, tuple) else 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: Exception | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Start to serve, and return when requests are answered. Raises GpuExporterError if that is not possible."""
        self._thread.start()
        self._started.wait()
        if self._error:
            why = getattr(self._error, "strerror", None) or self._error
            raise GpuExporterError(f"the HTTP server cannot start: {why}") from self._error

    def stop(self) -> None:
        """Stop at once, and cut open connections."""
        if self._loop:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            self._loop = asyncio.new_event_loop()
            server = self._listen(self._loop)
        except Exception as error:  # noqa: BLE001 - `start` raises it
            self._error = error
            self._started.set()
            return
        self._loop.run_forever()
        server.stop()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> BoundedServer:
        asyncio.set_event_loop(loop)
        server = BoundedServer(
            self._application,
            body_timeout=CLIENT_SECONDS,
            max_header_size=MAX_HEADER_BYTES,
            max_body_size=self._max_body_bytes,
        )
        self._admission.resize(most_connections())
        if self._admission.most < 2 * FEW_PER_ADDRESS:
            log.warning(
                "only %d connections at a time: the limit on open files is low; raise it (ulimit -n)",
                self._admission.most,
            )
        server.serve(self._sockets, self._guard, self._admission, CLIENT_SECONDS, IDLE_SECONDS, self._ready)
        loop.call_soon(self._started.set)
        return server


def _bind(address: Address, program: str, option: str) -> list[socket.socket]:
    try:
        return bind_sockets(address.port, address.host or None, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        code = getattr(error, "errno", None)
        if code == errno.EADDRINUSE:
            why = f"is in use, perhaps by another {program}; choose another one with {option}"
        elif code == errno.EACCES:
            why = f"needs privileges; choose a port above 1023 with {option}"
        else:
            why = f"cannot be used: {getattr(error, 'strerror', None) or error}; check {option}"
        raise GpuExporterError(f"address {address} {why}") from error
