"""What waits for clients: how it is counted, and which connections are closed when it is too much or waits too long."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.iostream import IOStream, StreamClosedError

from gpu_exporter.http.admission import Admission, Connection
from gpu_exporter.http.backlog import FASTER, Backlog, PlainStream

SECONDS = 10.0
BODIES = {"A": b"AAA", "B": b"BBB", "C": b"CCC", "D": b"DDD", "large": b"l" * 7, "huge": b"h" * 20}


class Timer:
    """A call that is due after some seconds, until it is cancelled."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call, self.cancelled = seconds, call, False

    def cancel(self) -> None:
        """Note that the call is not to be made."""
        self.cancelled = True


class Readers:
    """A backlog of 10 bytes, 6 per address, with timers of the test and the closed connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.closed: list[str] = []
        self.timers: list[Timer] = []
        self.admission = Admission()
        self.backlog = Backlog(self.admission, self._call_later, SECONDS, most=10, share=6)
        self._connections: dict[str, Connection] = {}

    def _call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def send(self, name: str, data: bytes) -> asyncio.Future[None]:
        """Send data to the connection `name` of the address `name[0]`; the future is for the end of this write."""
        if name not in self._connections:
            admitted = self.admission.admit(name[0], partial(self.closed.append, name))
            assert admitted
            self._connections[name] = admitted
        written = self._loop.create_future()
        self.backlog.keep(self._connections[name], data, written)
        return written

    def read(self, *written: asyncio.Future[None]) -> None:
        """End these writes."""
        for each in written:
            each.set_result(None)
        self._loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def readers() -> Iterator[Readers]:
    """A backlog of which the test is the clock."""
    with closing(asyncio.new_event_loop()) as loop:
        yield Readers(loop)


def test_clients_share_a_body(readers: Readers) -> None:
    """It counts once, until the last of them has read it."""
    first, *others = [readers.send(f"{address}{number}", BODIES["A"]) for address in "abcd" for number in range(20)]
    assert readers.backlog.size == 3
    readers.read(*others)
    assert readers.backlog.size == 3
    readers.read(first)
    assert readers.backlog.size == 0
    assert readers.closed == []


@pytest.mark.parametrize(
    ("sent", "closed", "left"),
    [
        pytest.param("a1:A a2:B", "", 6, id="within the share of an address"),
        pytest.param("a1:A a2:B a3:C", "a1", 6, id="beyond the share: the one that waits for longest"),
        pytest.param("a1:A a2:A a3:B a4:C", "a1 a2", 6, id="all that keep the oldest body"),
        pytest.param("a1:A a1:B a2:C", "a1", 3, id="all that a connection keeps"),
        pytest.param("a1:large", "", 7, id="the only connection of an address"),
        pytest.param("a1:A a1:huge", "", 23, id="the only connection of all"),
        pytest.param("a1:A a2:B b1:C c1:D", "a1", 9, id="beyond the limit: of the greediest address"),
        pytest.param("a1:A b1:B b2:C c1:D", "b1", 9, id="whichever began first"),
        pytest.param("a1:A b1:B c1:C d1:D", "a1", 9, id="of equals, the one that waits for longest"),
        pytest.param("a1:A b1:B c1:C d1:huge", "d1", 9, id="the newest, if it is the greediest"),
        pytest.param("a1:A b1:A a2:B c1:C d1:D", "a1 a2", 9, id="more if another address keeps the body"),
    ],
)
def test_closed_at_a_limit(readers: Readers, sent: str, closed: str, left: int) -> None:
    """As few connections as bring the bytes below the limit, counted, and forgotten at once."""
    for each in sent.split():
        name, _, body = each.partition(":")
        readers.send(name, BODIES[body])
    assert readers.closed == closed.split()
    assert readers.backlog.size == left
    assert readers.admission.dropped["bytes"] == len(readers.closed)


def test_slow_readers_are_closed(readers: Readers) -> None:
    """Whoever has read everything in time is not."""
    written = readers.send("a1", BODIES["A"])
    readers.send("b1", BODIES["B"])
    readers.read(written)
    in_time, late = readers.timers
    assert (in_time.cancelled, late.cancelled) == (True, False)
    assert late.seconds == SECONDS
    late.call()
    assert readers.closed == ["b1"]


def test_the_end_of_a_write_that_was_given_up(readers: Readers) -> None:
    """It changes nothing, also if its address waits for other data by then."""
    given_up, *_ = [readers.send(f"a{number}", BODIES[body]) for number, body in enumerate("ABC")]
    assert readers.closed == ["a0"]
    assert readers.timers[0].cancelled
    readers.read(given_up)
    assert readers.backlog.size == 6


def test_a_stream_reports_what_it_keeps() -> None:
    """Not what the kernel takes at once; a large body is the one that was written, not a copy."""

    async def written() -> None:
        near, far = socket.socketpair()
        far.setblocking(False)
        kept: list[tuple[bytes | memoryview, asyncio.Future[None]]] = []
        stream = PlainStream(near)
        stream.keep = lambda data, future: kept.append((data, future))
        with closing(stream), closing(far):
            stream.write(b"small")
            assert kept == []
            body = bytes(4 << 20)
            stream.write(body)
            ((data, future),) = kept
            assert data is body
            loop, received = asyncio.get_running_loop(), 0
            while received < len(b"small") + len(body):
                received += len(await loop.sock_recv(far, 1 << 20))
            await future

    asyncio.run(written())


def test_nothing_is_read_from_a_closed_connection() -> None:
    """Although the requests that its client sent before are there: each would cost as much as one that is awaited."""

    async def requests() -> bytes:
        here, there = socket.socketpair()
        with there:
            there.sendall(b"first\n\nsecond\n\n")
            stream = PlainStream(here)
            first = await stream.read_until_regex(b"\n\n")
            stream.close()
            with pytest.raises(StreamClosedError):
                await stream.read_until_regex(b"\n\n")
        return first

    assert asyncio.run(requests()) == b"first\n\n"


def test_only_what_has_arrived_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop says when there is more, so no system call is in vain."""
    counts, read = list[int | None](), IOStream.read_from_fd

    def recorded(self: IOStream, buf: bytearray | memoryview) -> int | None:
        counts.append(read(self, buf))
        return counts[-1]

    async def requests() -> list[bytes]:
        here, there = socket.socketpair()
        with there, closing(PlainStream(here, read_chunk_size=8)) as stream:
            parts = []
            for sent in (b"first\n\n", b"a longer one\n\n", b"last\n\n"):
                there.sendall(sent)
                parts.append(await stream.read_until_regex(b"\n\n"))
        return parts

    monkeypatch.setattr(IOStream, "read_from_fd", recorded)
    assert asyncio.run(requests()) == [b"first\n\n", b"a longer one\n\n", b"last\n\n"]
    assert counts == [7, 8, 6, 6]


@given(st.lists(st.sampled_from([b"\r", b"\n", b"x"])).map(b"".join))
def test_a_faster_pattern_ends_at_the_same_byte(text: bytes) -> None:
    for pattern, faster in FASTER.items():
        before, now = re.search(pattern, text), re.search(faster, text)
        assert (before and before.end()) == (now and now.end())


class Response:
    """Something that a handler keeps while it sends it."""


def test_an_error_does_not_keep_the_response() -> None:
    """The frames of its traceback would, until Python collects old cycles: of a page of megabytes each second."""

    async def send(stream: PlainStream) -> weakref.ref[Response]:
        response = Response()
        stream.write(b"x")
        return weakref.ref(response)

    async def sent() -> tuple[BaseException | None, Response | None]:
        client, server = socket.socketpair()
        stream = PlainStream(server)
        client.close()
        kept = await send(stream)
        return stream.error, kept()

    gc.disable()
    try:
        error, kept = asyncio.run(sent())
    finally:
        gc.enable()
    assert isinstance(error, BrokenPipeError)
    assert kept is None
