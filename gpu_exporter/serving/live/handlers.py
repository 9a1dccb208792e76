"""The handlers of the live page's data: the last hour, and the stream of new values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tornado.iostream import StreamClosedError

from gpu_exporter.serving.handler import CLIENT_SECONDS, TEXT, Handler

if TYPE_CHECKING:
    from gpu_exporter.serving.watch.stream import Listener
    from gpu_exporter.serving.watch.thread import LiveNode

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
PING_SECONDS = 15.0
# After how long a page reconnects.
RETRY = b"retry: 2000\n\n"
OFF = "the live page is off: start the exporter with --live-page true\n"
TOO_MANY = "too many open pages: close some, and reload this one\n"


class _Live(Handler):
    async def live(self, prefix: str) -> LiveNode | None:
        """Return the live view of a node; after an answer, None if there is none."""
        node = self.endpoint(prefix).live
        if node is None:
            await self.send(OFF, TEXT, 503)
        else:
            node.asked()
        return node


class History(_Live):
    """The last hour of each GPU: one point per ten seconds."""

    async def get(self, prefix: str) -> None:
        node = await self.live(prefix)
        if node is not None:
            loop = asyncio.get_running_loop()
            # Not on this thread: scrapes would wait for it.
            self.set_header("Cache-Control", "no-store")
            await self.send(await loop.run_in_executor(None, node.monitor.history_json), JSON)

    head = get


class Stream(_Live):
    """Server-sent events: `gpus` as /api/v1/gpus, `point` with new points of the history."""

    _closed = False
    _listener: Listener | None = None

    async def get(self, prefix: str) -> None:
        node = await self.live(prefix)
        if node is None:
            return
        if self.request.method == "HEAD":
            await self.send(b"", EVENTS)
            return
        listener = node.stream.add()
        if listener is None:
            await self.send(TOO_MANY, TEXT, 503)
            return
        self._listener = listener
        self.set_header("Content-Type", EVENTS)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")
        try:
            self.write(RETRY)
            while not self._closed:
                # A browser that stops reading would keep what it was sent in this process's memory.
                await asyncio.wait_for(self.flush(), CLIENT_SECONDS)
                self.write(await listener.next(PING_SECONDS) or b": ping\n\n")
        except (StreamClosedError, asyncio.TimeoutError):
            self._cut()
        finally:
            node.stream.remove(listener)

    head = get

    def on_connection_close(self) -> None:
        self._closed = True
        if self._listener:
            self._listener.wake()

    def _cut(self) -> None:
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            stream.close()
