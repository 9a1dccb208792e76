"""An HTTP server with limits on connections, on what waits for their clients, and on the duration of TLS handshakes.

It accepts connections itself, and pauses while the system has no room for more.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from tornado.http1connection import HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.ioloop import IOLoop
from tornado.iostream import StreamClosedError

from gpu_exporter.http.admission import Admission, Connection
from gpu_exporter.http.backlog import Backlog, ClientStream, PlainStream, TlsStream
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.handler import least_body_bytes
from gpu_exporter.http.login import OncePerMinute, client_of
from gpu_exporter.http.ready import FindReady, Ready, is_plain, send, write
from gpu_exporter.http.repeats import Repeats
from gpu_exporter.http.tls import admits
from gpu_exporter.http.turns import Turns

log = logging.getLogger(__name__)

# Connections that are accepted before other events are handled.
BATCH = 256
PAUSE_SECONDS = 0.5
# The kernel's buffers of each connection, of which it allocates twice as much. Without these limits, it might keep
# several MiB of what a client does not read, and of what one sends. Half of this stalls clients on the same machine for
# 40 ms per buffer, because a packet of the loopback interface, 64 KiB, does not fit.
SEND_BYTES, RECEIVE_BYTES = 64 * 1024, 32 * 1024
# How much of what clients send is read at a time.
READ_BYTES = 4 * 1024
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Errors that concern only the connection that was to be accepted: see accept(2).
OF_ONE_CONNECTION = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
    }
)


class Listener:
    """Calls `take` with each new connection, until `stop`. Must be used on the thread of the event loop.

    If no file descriptor is free, it calls `make_room`, which returns whether one is free now.
    """

    def __init__(
        self, listening: socket.socket, take: Callable[[socket.socket, Any], None], make_room: Callable[[], bool]
    ) -> None:
        self._socket, self._take, self._make_room = listening, take, make_room
        self._loop = IOLoop.current()
        self._once_per_minute = OncePerMinute()
        self._stopped = False
        self._resume()

    def stop(self) -> None:
        """Stop accepting, and close the socket."""
        self._stopped = True
        self._loop.remove_handler(self._socket)
        self._socket.close()

    def _accept(self, *_: object) -> None:
        for _number in range(BATCH):
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OF_ONE_CONNECTION:
                    continue
                if error.errno in EXHAUSTED and self._make_room():
                    continue
                if self._once_per_minute(os.strerror(error.errno or 0)):
                    hint = "; raise the limit on open files (ulimit -n)" if error.errno == errno.EMFILE else ""
                    log.error("cannot accept connections: %s%s", error.strerror, hint)
                # The connection stays in the socket's queue, so the event loop would call again and again.
                self._loop.remove_handler(self._socket)
                self._loop.call_later(PAUSE_SECONDS, self._resume)
                return
            self._take(connection, address)

    def _resume(self) -> None:
        if not self._stopped:
            self._loop.add_handler(self._socket, self._accept, IOLoop.READ)


class _Request(HTTPMessageDelegate):
    """Passes a request on to the delegate that `delegate` makes, unless `find` returns what sends a response at once.

    It calls `arrive` with the headers, and whether there is such a response, which returns whether the connection is
    still open when it is the turn of its client, and `begin` when the request is complete. The handler of a request
    with a body begins before it, so that it can refuse the request without reading the body.
    """

    def __init__(
        self,
        delegate: Callable[[], HTTPMessageDelegate],
        find: Callable[[RequestStartLine, HTTPHeaders], Callable[[], None] | None],
        arrive: Callable[[HTTPHeaders, bool], Awaitable[bool]],
        begin: Callable[[], None],
    ) -> None:
        self._delegate, self._find, self._arrive, self._begin = delegate, find, arrive, begin
        self._send: Callable[[], None] | None = None
        self._request: HTTPMessageDelegate | None = None
        self._without_body: tuple[RequestStartLine, HTTPHeaders] | None = None

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, RequestStartLine)
        send = self._find(start_line, headers)
        if not await self._arrive(headers, send is not None):
            return
        if send is None and least_body_bytes(headers):
            self._request = self._delegate()
            received = self._request.headers_received(start_line, headers)
            if received is not None:
                await received
        else:
            # It is complete. A response before `finish` would end the connection.
            self._send, self._without_body = send, (start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._request.data_received(chunk) if self._request else None

    def finish(self) -> None:
        if self._request or self._without_body:
            self._begin()
        if self._send:
            self._send()
        elif self._without_body:
            self._request = self._delegate()
            self._request.headers_received(*self._without_body)
        if self._request:
            self._request.finish()

    def on_connection_close(self) -> None:
        if self._request:
            self._request.on_connection_close()


class BoundedServer(HTTPServer):
    """Closes connections beyond a limit, so that no client can lock out others or use up the file descriptors."""

    def serve(
        self,
        sockets: list[socket.socket],
        guard: Guard,
        admission: Admission,
        seconds: float,
        idle_seconds: float,
        ready: FindReady,
    ) -> None:
        """Accept the connections that `admission` admits. Clients have `seconds` for the TLS handshake, as long for the
        headers of a request, and to read a response; between two requests, a connection may be idle for `idle_seconds`.
        `ready` finds responses that need no handler.
        """
        self._guard, self._admission, self._ready = guard, admission, ready
        self._seconds, self._idle_seconds = seconds, idle_seconds
        self._backlog = Backlog(admission, asyncio.get_event_loop().call_later, seconds)
        self._admitted: dict[ClientStream, Connection] = {}
        # Tornado's timeout takes a tenth of the time of a response, and delays it by a round of the event loop, after
        # which the thread may have to wait for the GIL.
        self.conn_params.header_timeout = None
        self._deadlines: dict[ClientStream, float] = {}
        self._timers: dict[ClientStream, asyncio.TimerHandle] = {}
        self._turns, self._repeats = Turns(), Repeats()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._once_per_minute = OncePerMinute()
        # Tornado would log every failed handshake and every bad request, so anybody could fill the log.
        logging.getLogger("tornado.general").addFilter(self._is_logged)
        self._listeners = [Listener(listening, self._take, admission.make_room) for listening in sockets]

    def stop(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners:
            listener.stop()

    def _is_logged(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        return "SSL Error" not in message and (record.levelno >= logging.ERROR or self._once_per_minute(message))

    def _take(self, connection: socket.socket, address: Any) -> None:
        peer = address[0] if isinstance(address, tuple) else "a Unix socket"
        admitted = self._admission.admit(client_of(peer), connection.close, partial(_has_input, connection.fileno()))
        if admitted is None:
            connection.close()
            return
        context = self._guard.context
        stream: PlainStream | TlsStream
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            if context is None:
                stream = PlainStream(connection, read_chunk_size=READ_BYTES)
            else:
                secured = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                stream = TlsStream(secured, read_chunk_size=READ_BYTES)
            stream.keep_nodelay()
        except OSError:  # the client is gone already
            self._admission.remove(admitted)
            connection.close()
            return
        admitted.close = stream.close
        stream.keep = partial(self._backlog.keep, admitted)
        self._admitted[stream] = admitted
        if isinstance(stream, TlsStream):
            handshake = asyncio.ensure_future(self._handshake(stream, address, peer))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
        else:
            self.handle_stream(stream, address)

    async def _handshake(self, stream: TlsStream, address: Any, peer: str) -> None:
        """Do the TLS handshake within the time limit; close the connection of a client that may not connect."""
        tls = self._guard.config.tls
        try:
            await asyncio.wait_for(stream.wait_for_handshake(), self._seconds)
            if stream.closed():  # meanwhile: until Python 3.12, `wait_for` resumes later than the handshake ends
                raise StreamClosedError
            if tls and not admits(tls, stream.socket.getpeercert()):
                raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the client's certificate has no name of client_allowed_sans")
            self.handle_stream(stream, address)
        except (OSError, asyncio.TimeoutError) as error:
            stream.close()
            self._forget(stream)
            if isinstance(error, ssl.SSLError) and self._once_per_minute(peer):
                log.info("TLS handshake with %s failed: %s", peer, getattr(error, "reason", None) or error)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wait for the next request of a connection that `_answer` leaves to others."""
        stream = _stream(server_conn)
        stream.answer = self._answer
        self._await_request(stream)

        def find(start_line: RequestStartLine, headers: HTTPHeaders) -> Callable[[], None] | None:
            head, stream.head = stream.head, b""
            if not is_plain(start_line, headers):
                return None
            response = self._response(start_line.path, headers)
            if response is None:
                return None
            self._repeats.keep(head, start_line.path, headers)
            return partial(send, request_conn, response, self._guard.config.headers)

        async def arrive(headers: HTTPHeaders, is_ready: bool) -> bool:
            admitted = self._admitted.get(stream)
            peer = getattr(getattr(request_conn, "context", None), "remote_ip", "")
            if admitted and self._guard.proxies.trust(peer):
                client = self._guard.proxies.client(peer, headers.get("X-Forwarded-For", ""))
                self._admission.assign(admitted, client_of(client))
            return await self._arrive(stream, is_ready=is_ready)

        delegate = partial(super().start_request, server_conn, request_conn)
        return _Request(delegate, find, arrive, partial(self._begin, stream))

    async def _answer(self, stream: ClientStream, head: bytes) -> bool:
        """Answer a request that repeats, if its response is ready. Return whether it is; raise StreamClosedError.

        No proxy has forwarded it: it has none of the headers that say so.
        """
        request = self._repeats.get(head) if stream in self._deadlines else None  # or else it is part of a body
        response = self._response(*request) if request else None
        if response is None:
            stream.head = head
            return False
        if await self._arrive(stream, is_ready=True):
            self._begin(stream)
            written = write(stream, response, self._guard.config.headers)
            if not written.done():
                await asyncio.wait([written])
            self._await_request(stream)
        return True

    def _response(self, path: str, headers: Mapping[str, str]) -> Ready | None:
        """Return the response to a plain request, if it is ready and certainly may be sent."""
        return self._ready(path, headers) if self._guard.admits(headers.get("Authorization", "")) else None

    def _await_request(self, stream: ClientStream) -> None:
        """Close the connection if the next request does not arrive in time."""
        admitted = self._admitted.get(stream)
        seconds = self._seconds
        if admitted and admitted.has_arrived and not stream.has_input:
            seconds, stream.on_input = self._idle_seconds, self._await_headers
        self._close_after(seconds, stream)
        if admitted:
            self._admission.mark_idle(admitted)

    async def _arrive(self, stream: ClientStream, *, is_ready: bool) -> bool:
        """Return when it is the turn of a request, whose head has arrived: whether its connection is still open."""
        del self._deadlines[stream]
        stream.on_input = None
        admitted = self._admitted.get(stream)
        if admitted and not stream.closed():
            admitted.has_arrived = True
            if not (is_ready and self._turns.may_begin()):
                await self._turns.wait(admitted.client, stream.closed)
        return not stream.closed()

    def _begin(self, stream: ClientStream) -> None:
        """Note that a request is complete."""
        stream.has_input = False
        admitted = self._admitted.get(stream)
        if admitted:
            self._admission.mark_busy(admitted)

    def on_close(self, server_conn: object) -> None:
        """Forget a closed connection."""
        super().on_close(server_conn)
        self._forget(_stream(server_conn))

    def _await_headers(self, stream: ClientStream) -> None:
        """Close the connection if the rest of the headers of a request does not arrive in time."""
        self._close_after(self._seconds, stream)

    def _close_after(self, seconds: float, stream: ClientStream) -> None:
        """Close the connection after this time, unless a request arrives. A timer that ends earlier is kept: most end
        after many requests, so that few are made.
        """
        loop = asyncio.get_running_loop()
        deadline = self._deadlines[stream] = loop.time() + seconds
        timer = self._timers.get(stream)
        if timer is None or timer.when() > deadline:
            if timer:
                timer.cancel()
            self._timers[stream] = loop.call_at(deadline, self._close_late, stream)

    def _close_late(self, stream: ClientStream) -> None:
        del self._timers[stream]
        deadline = self._deadlines.get(stream)
        if deadline is None:
            return  # a request is being answered
        seconds = deadline - asyncio.get_running_loop().time()
        if seconds > 0:
            self._close_after(seconds, stream)
        else:
            stream.close()

    def _forget(self, stream: ClientStream) -> None:
        self._deadlines.pop(stream, None)
        if stream in self._timers:
            self._timers.pop(stream).cancel()
        admitted = self._admitted.pop(stream, None)
        if admitted:
            self._admission.remove(admitted)
            # It and its stream refer to each other: the buffers would stay in memory until Python collects old cycles.
            admitted.close = lambda: None


def _has_input(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _stream(server_conn: object) -> ClientStream:
    assert isinstance(server_conn, HTTP1ServerConnection)
    stream = server_conn.stream
    assert isinstance(stream, ClientStream)
    return stream
