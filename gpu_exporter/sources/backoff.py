"""How long to wait before retrying something that failed."""

from __future__ import annotations

import time

LONGEST_BACKOFF = 30.0


class Backoff:
    """1, 2, 4 … 30 s between attempts."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start over: the next attempt is due at once."""
        self._next, self.due = 1.0, 0.0

    def failed(self) -> float:
        """Record a failure; return how many seconds to wait."""
        wait, self._next = self._next, min(self._next * 2, LONGEST_BACKOFF)
        self.due = time.monotonic() + wait
        return wait
