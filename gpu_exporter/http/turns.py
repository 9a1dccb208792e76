"""Clients take turns: so one that sends many requests, or many at a time, hardly delays those of others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

# Requests that begin at once. One by one, each would wait until other threads let the event loop continue.
AT_ONCE = 32


class Turns:
    """Lets some requests begin at a time, in each round one of each client. Used on the thread of the event loop.

    In between, the event loop accepts connections and reads. So another client waits for as many requests as there are
    clients, however many requests each has sent.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], Callable[[], bool]]]] = {}
        self._begun = 0

    def may_begin(self) -> bool:
        """Return whether a request that takes hardly any time may begin without waiting: none waits, and few have begun
        since the last round.
        """
        if self._waiting or self._begun >= self._at_once:
            return False
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._next_round)
        self._begun += 1
        return True

    def _next_round(self) -> None:
        self._begun = 0

    async def wait(self, client: str, has_left: Callable[[], bool]) -> None:
        """Return when it is the turn of this client, or it has left by then."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next, loop)
        self._waiting.setdefault(client, deque()).append((turn, has_left))
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        begun = 0
        while self._waiting and begun < self._at_once:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn, has_left = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.done():  # or else it was cancelled
                turn.set_result(None)
                begun += not has_left()
        if self._waiting:
            loop.call_soon(self._next, loop)
