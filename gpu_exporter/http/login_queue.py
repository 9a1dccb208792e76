"""The passwords that wait to be checked: which one is next, and which one gives way if there are too many. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

# Checks that may wait: of one client, and of all.
WAITING_EACH, WAITING = 8, 64


class Waiting(Protocol):
    """A password that waits to be checked; `since` is when it was first sent."""

    client: str
    digest: bytes
    since: float


C = TypeVar("C", bound=Waiting)


class LoginQueue(Generic[C]):
    """The checks that wait. `guesses` returns how many wrong passwords a client has sent lately."""

    def __init__(self, guesses: Callable[[str], int]) -> None:
        self._guesses = guesses
        self._waiting: dict[str, dict[bytes, C]] = {}  # in the order of their turns
        self._was_new = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def get(self, client: str, digest: bytes) -> C | None:
        """Return the check of a client that waits already."""
        return self._waiting.get(client, {}).get(digest)

    def add(self, check: C) -> None:
        """Add a check, for which there is room."""
        self._waiting.setdefault(check.client, {})[check.digest] = check

    def make_room(self, client: str, since: float) -> tuple[bool, C | None]:
        """Return whether another check of this client may wait, and the check that gave way to it.

        The age of a check counts from its first attempt. A guesser sends a new password each time, a configured client
        always the same one, so the latter gets through even if guessers at its address keep the queue full. A client
        that has not guessed takes the place of a guess.
        """
        mine = self._waiting.get(client, {})
        if len(mine) >= WAITING_EACH:
            return self._drop_newest([mine], since)
        if len(self) < WAITING:
            return True, None
        greediest = max(self._waiting.values(), key=len)
        if len(greediest) > len(mine) + 1:
            return self._drop_newest([greediest])
        guessed = [] if mine or self._guesses(client) else [c for c in self._waiting if self._guesses(c)]
        if guessed:
            return self._drop_newest([self._waiting[guesser] for guesser in guessed])
        return self._drop_newest(list(self._waiting.values()), since)

    def _drop_newest(self, groups: list[dict[bytes, C]], since: float = -1.0) -> tuple[bool, C | None]:
        """Drop the newest check of these groups if it is newer than `since`."""
        newest = max((check for checks in groups for check in checks.values()), key=lambda check: check.since)
        if newest.since <= since:
            return False, None
        self._take(newest)
        return True, newest

    def next(self) -> C | None:
        """Return the next check: every other one is of the newest client that has not guessed, if there is one. Else
        clients take turns, and the oldest check of a client goes first.
        """
        new = None if self._was_new else next((c for c in reversed(self._waiting) if not self._guesses(c)), None)
        self._was_new = new is not None
        client = new or next(iter(self._waiting), None)
        if client is None:
            return None
        check = min(self._waiting[client].values(), key=lambda check: check.since)
        self._take(check)
        if client in self._waiting:  # its turn is over
            self._waiting[client] = self._waiting.pop(client)
        return check

    def _take(self, check: C) -> None:
        checks = self._waiting[check.client]
        del checks[check.digest]
        if not checks:
            del self._waiting[check.client]
