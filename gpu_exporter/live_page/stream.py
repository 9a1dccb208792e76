"""Server-sent events: the newest state for each open page. A page that does not read never holds up another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

# More open pages than this get 503, in all and of one client; each holds a connection.
MOST_STREAMS, MOST_PER_CLIENT = 64, 16
TOO_MANY = f"too many open pages: {MOST_STREAMS} at a time; close some, and reload this one"
TOO_MANY_OF_CLIENT = (
    f"too many open pages of your address: {MOST_PER_CLIENT} at a time; close some, and reload this one"
)
# An event is sent to the open pages over this time, one by one, so that a scrape does not wait for all of them.
SPREAD_SECONDS = 0.5


class StreamListener:
    """One open page: what it has not been sent yet. A newer event of a kind replaces an older one. It is `replaced` if
    it must close, in favour of a page of another client. `trusted` clients may see profiles.
    """

    def __init__(self, client: str, *, trusted: bool = False) -> None:
        self.client, self.trusted, self.replaced = client, trusted, False
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
        self._listeners: dict[StreamListener, None] = {}  # the oldest one first
        self._loop: asyncio.AbstractEventLoop | None = None
        # The newest `gpus` event for clients that may see profiles, and for those that may not.
        self._last: dict[bool, bytes] = {}

    @property
    def is_open(self) -> bool:
        """Whether a page is open."""
        return bool(self._listeners)

    @property
    def audiences(self) -> set[bool]:
        """Whether there are open pages of clients that may see profiles, and of others."""
        return {listener.trusted for listener in list(self._listeners)}

    @property
    def has_posted(self) -> bool:
        """Whether the open pages have got the GPUs since the first of them was opened."""
        return self.audiences <= self._last.keys()

    def add(self, client: str, *, trusted: bool = False) -> StreamListener | str:
        """Return a listener for a page that was opened, or why there are too many.

        If there are too many in all, the oldest page of the client with the most pages gives way to a client that has
        fewer, also with this one.
        """
        pages = Counter(listener.client for listener in self._listeners)
        if pages[client] >= MOST_PER_CLIENT:
            return TOO_MANY_OF_CLIENT
        if len(self._listeners) >= MOST_STREAMS:
            greediest, most = pages.most_common(1)[0]
            if most <= pages[client] + 1:
                return TOO_MANY
            self._replace(next(listener for listener in self._listeners if listener.client == greediest))
        self._loop = asyncio.get_running_loop()
        listener = StreamListener(client, trusted=trusted)
        if trusted in self._last:
            listener.offer("gpus", self._last[trusted])
        self._listeners[listener] = None
        return listener

    def _replace(self, listener: StreamListener) -> None:
        listener.replaced = True
        listener.wake()
        del self._listeners[listener]

    def remove(self, listener: StreamListener) -> None:
        """Forget a page that was closed."""
        self._listeners.pop(listener, None)
        for gone in self._last.keys() - self.audiences:
            del self._last[gone]

    def post(self, kind: str, body: bytes, at: float, *, trusted: bool | None = None) -> None:
        """Send an event to all open pages, or to those of clients that may see profiles or may not, from any thread."""
        event = b"event: %s\nid: %.3f\ndata: %s\n\n" % (kind.encode(), at, body)
        self._call(lambda: self._offer(kind, event, trusted))

    def _call(self, what: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and self._listeners:
            try:
                loop.call_soon_threadsafe(what)
            except RuntimeError:  # the server has stopped
                self._loop = None

    def _offer(self, kind: str, event: bytes, trusted: bool | None) -> None:
        if trusted is not None:  # a page that opens now need not wait for the next one
            self._last[trusted] = event
        pause = SPREAD_SECONDS / max(len(self._listeners), 1)
        for place, listener in enumerate(self._listeners):
            if trusted not in (None, listener.trusted):
                continue
            asyncio.get_running_loop().call_later(place * pause, listener.offer, kind, event)
