"""What clients have not read yet: the streams that report it, and limits on its bytes and on how long it may wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from tornado.iostream import BaseIOStream, IOStream, SSLIOStream, StreamClosedError

from gpu_exporter.http.admission import ADDRESS_DIVISOR, BYTES, Admission, Connection

# An eighth of the memory limit that the chart sets. It is enough for two profiles of 16 MiB, the largest responses, and
# for a page of 2 MiB every second, because slow readers are cut off after 10 s.
MOST_BYTES = 32 << 20
SHARE_BYTES = MOST_BYTES // ADDRESS_DIVISOR
# The end of the headers of a request.
END = b"\r\n\r\n"
# A pattern of Tornado, and one that ends at the same bytes, which Python finds without trying each byte of the headers.
FASTER = {b"\r?\n\r?\n": b"\n\r?\n"}


class ClientStream(BaseIOStream):
    """A stream that calls `keep` with what cannot be sent at once, and with the future that ends when it is sent.

    When the client sends something, it sets `has_input`. If that does not end the headers of a request, it calls
    `on_input` with itself, once. `answer` is called with itself and the head of each request, and returns whether it
    has answered it. When it is closed, nothing is read from it any more, not even requests that were received before.
    """

    keep: Callable[[bytes | memoryview, asyncio.Future[None]], None]
    answer: Callable[[ClientStream, bytes], Awaitable[bool]] | None = None
    # Of the request that `answer` has left to others.
    head = b""
    has_input = False
    on_input: Callable[[ClientStream], None] | None = None

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read what the client has sent."""
        count = super().read_from_fd(buf)
        if count:
            self.has_input = True
            if self.on_input and bytes(buf[count - len(END) : count]) != END:
                on_input, self.on_input = self.on_input, None
                on_input(self)
        return count

    def write(self, data: bytes | memoryview) -> asyncio.Future[None]:
        """Send as much as the kernel takes now, and the rest later. Data of more than 2 KiB is not copied."""
        written = super().write(data)
        if not written.done():
            self.keep(data, written)
        return written

    def keep_nodelay(self) -> None:
        """Send what is written without delay, from now on."""
        super().set_nodelay(True)

    def set_nodelay(self, value: bool) -> None:
        """Change nothing. Tornado would switch the delay off and on for each response, with two system calls."""

    def close(self, exc_info: Any = False) -> None:
        """Close the stream. The frames in the traceback of an error would keep the response in memory, in cycles that
        are collected late.
        """
        super().close(exc_info)
        if self.error is not None:
            self.error = self.error.with_traceback(None)

    async def read_until_regex(self, regex: bytes, max_bytes: int | None = None) -> bytes:
        """Return the head of the next request that `answer` does not answer. Raises StreamClosedError."""
        while True:
            if self.closed():
                raise StreamClosedError(self.error)
            # No variable refers to the future: its exception would refer to the variable, in a cycle.
            head = await super().read_until_regex(FASTER.get(regex, regex), max_bytes)
            if self.answer is None or not await self.answer(self, head):
                return head


class PlainStream(ClientStream, IOStream):
    """The stream of a client without TLS.

    A read that does not fill the buffer has read all there was. The next one is left to the event loop: Tornado would
    try it after each response, in vain.
    """

    _is_drained = False

    def read_from_fd(self, buf: bytearray | memoryview) -> int | None:
        """Read what the client has sent."""
        if self._is_drained:
            self._is_drained = False
            return None
        count = super().read_from_fd(buf)
        self._is_drained = 0 < (count or 0) < len(buf)
        return count


class TlsStream(ClientStream, SSLIOStream):
    """The stream of a client with TLS."""


class TimerHandle(Protocol):
    """A call that was scheduled."""

    def cancel(self) -> None:
        """Do not make the call."""


class _Write(NamedTuple):
    """Data that a connection's client has not read completely."""

    connection: Connection
    data: bytes | memoryview
    timeout: TimerHandle


class _Size:
    """The bytes of distinct objects: data that waits for several connections counts once."""

    def __init__(self) -> None:
        self.bytes = 0
        self._counts: dict[int, int] = {}

    def add(self, data: bytes | memoryview) -> None:
        """Count data, which must exist until it is removed."""
        count = self._counts.get(id(data), 0)
        self._counts[id(data)] = count + 1
        if not count:
            self.bytes += len(data)

    def remove(self, data: bytes | memoryview) -> None:
        """Count this data once less."""
        self._counts[id(data)] -= 1
        if not self._counts[id(data)]:
            del self._counts[id(data)]
            self.bytes -= len(data)


class _ClientBacklog:
    """What waits for the connections of one client address, the oldest first."""

    def __init__(self) -> None:
        self.writes: dict[asyncio.Future[None], _Write] = {}
        self.size = _Size()


class Backlog:
    """Counts the bytes that wait for clients, and closes connections beyond a limit.

    Beyond the share of one address, its connections that wait for longest are closed, but never the newest. Beyond the
    limit on all bytes, those of the address with the most bytes are; of equals, of the one that waits for longest. A
    connection that waits for more than `seconds` is closed, too.
    """

    def __init__(
        self,
        admission: Admission,
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        seconds: float,
        most: int = MOST_BYTES,
        share: int = SHARE_BYTES,
    ) -> None:
        self._admission, self._call_later, self._seconds = admission, call_later, seconds
        self._most, self._share = most, share
        self._clients: dict[str, _ClientBacklog] = {}
        self._waiting = _Size()

    @property
    def size(self) -> int:
        """How many bytes wait."""
        return self._waiting.bytes

    def keep(self, connection: Connection, data: bytes | memoryview, written: asyncio.Future[None]) -> None:
        """Count this data until it is written, and close connections if it is too much."""
        address = connection.client
        client = self._clients.setdefault(address, _ClientBacklog())
        client.writes[written] = _Write(connection, data, self._call_later(self._seconds, connection.close))
        client.size.add(data)
        self._waiting.add(data)
        written.add_done_callback(partial(self._forget, address))
        while client.size.bytes > self._share and self._drop_oldest(address, connection):
            pass
        while self.size > self._most:
            greediest = max(self._clients, key=lambda each: self._clients[each].size.bytes)
            if not self._drop_oldest(greediest, None if len(self._clients) > 1 else connection):
                break

    def _drop_oldest(self, address: str, spared: Connection | None) -> bool:
        """Close the connection of this address that waits for longest; return whether there is one to close."""
        writes = self._clients[address].writes
        oldest = next((write.connection for write in writes.values() if write.connection is not spared), None)
        if oldest is None:
            return False
        for written in [written for written, write in writes.items() if write.connection is oldest]:
            self._forget(address, written)
        self._admission.drop(oldest, BYTES)
        return True

    def _forget(self, address: str, written: asyncio.Future[None]) -> None:
        client = self._clients.get(address)
        write = client.writes.pop(written, None) if client else None
        if client is None or write is None:
            return
        write.timeout.cancel()
        client.size.remove(write.data)
        self._waiting.remove(write.data)
        if not client.writes:
            del self._clients[address]
