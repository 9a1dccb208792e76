"""Server-sent events: the newest state for each open page. A page that does not read never holds up another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# More open pages than this get 503; each holds a connection.
MOST_STREAMS = 64
# An event is sent to the open pages over this time, one by one, so that a scrape does not wait for all of them.
SPREAD_SECONDS = 0.5


class StreamListener:
    """One open page: what it has not been sent yet. A newer event of a kind replaces an older one."""

    def __init__(self) -> None:
        self._pending: dict[str, bytes] = {}
        self._there = asyncio.Event()

    def offer(self, kind: str, event: bytes) -> None:
        """Keep an event until it is taken."""
        self._pending[kind] = event
        self._there.set()

    def wake(self) -> None:
        """Let `next` return although there is no event, because the page was closed."""
        self._there.set()

    async def next(self, timeout: float) -> bytes:
        """Return the events that have come, as one text; empty if none has come within `timeout` seconds."""
        try:
            await asyncio.wait_for(self._there.wait(), timeout)
        except asyncio.TimeoutError:
            return b""
        self._there.clear()
        events, self._pending = b"".join(self._pending.values()), {}
        return events


class Stream:
    """The open pages of one node. Any thread may call `post` and read the properties, the event loop the rest."""

    def __init__(self) -> None:
        self._listeners: set[StreamListener] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last: dict[str, bytes] = {}

    @property
    def is_open(self) -> bool:
        """Whether a page is open."""
        return bool(self._listeners)

    @property
    def has_posted(self) -> bool:
        """Whether the open pages have got the GPUs since the first of them was opened."""
        return bool(self._last)

    def add(self) -> StreamListener | None:
        """Return a listener for a page that was opened; None if there are too many."""
        if len(self._listeners) >= MOST_STREAMS:
            return None
        self._loop = asyncio.get_running_loop()
        listener = StreamListener()
        for kind, event in self._last.items():
            listener.offer(kind, event)
        self._listeners.add(listener)
        return listener

    def remove(self, listener: StreamListener) -> None:
        """Forget a page that was closed."""
        self._listeners.discard(listener)
        if not self._listeners:
            self._last.clear()

    def post(self, kind: str, body: bytes, at: float) -> None:
        """Send an event to all open pages, from any thread."""
        event = b"event: %s\nid: %.3f\ndata: %s\n\n" % (kind.encode(), at, body)
        self._call(lambda: self._offer(kind, event))

    def _call(self, what: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and self._listeners:
            try:
                loop.call_soon_threadsafe(what)
            except RuntimeError:  # the server has stopped
                self._loop = None

    def _offer(self, kind: str, event: bytes) -> None:
        if kind == "gpus":  # a page that opens now need not wait for the next one
            self._last[kind] = event
        pause = SPREAD_SECONDS / max(len(self._listeners), 1)
        for place, listener in enumerate(self._listeners):
            asyncio.get_running_loop().call_later(place * pause, listener.offer, kind, event)
