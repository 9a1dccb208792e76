"""A limit on how many requests a client sends, so that a bug of the client never floods the API server."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimit:
    """A token bucket of `burst` requests that refills at `per_second`. For one thread.

    `wait` blocks for so many seconds; `now` are monotonic seconds.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate, self._burst, self._now, self._wait = per_second, burst, now, wait
        self._tokens, self._at = float(burst), now()

    def take(self) -> None:
        """Take one token; wait until there is one."""
        now = self._now()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        if self._tokens < 0:
            self._wait(-self._tokens / self._rate)
