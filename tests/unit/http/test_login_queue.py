"""How long a password waits for its check while others guess, in virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import count

import pytest

from gpu_exporter.http.login_queue import WAITING, WAITING_EACH, LoginQueue


@dataclass(eq=False)
class Check:
    """A password that waits."""

    client: str
    digest: bytes
    since: float


class Desk:
    """A queue, and clients that guess: each sends its next passwords at once. The time is counted in checks: with
    bcrypt's cost 10, one takes 0.3 s with the pause after it."""

    def __init__(self, guessers: int, each: int = 1) -> None:
        self.guesses = Counter[str]()
        self.queue = LoginQueue[Check](self.guesses.__getitem__)
        self.passwords = count()
        self.now = 0
        self.guessers, self.each = guessers, each

    def send(self, client: str, since: float | None = None) -> Check | None:
        """Return the check of a new password, or None if it is turned away."""
        check = Check(client, b"%d" % next(self.passwords), self.now if since is None else since)
        has_room, _ = self.queue.make_room(client, check.since)
        if has_room:
            self.queue.add(check)
        return check if has_room else None

    def guess(self) -> None:
        """Let each guesser have its passwords in the queue."""
        for number in range(self.guessers):
            while len(self.queue._waiting.get(f"g{number}", ())) < self.each and self.send(f"g{number}"):
                pass

    def work(self) -> Check:
        """Return the next check, after its time."""
        self.guess()
        check = self.queue.next()
        assert check
        self.now += 1
        self.guesses[check.client] += check.client.startswith("g")
        return check

    def login(self, client: str = "new", most: int = 300) -> int:
        """Return how long the check of a new client takes, with retries."""
        begin, check = self.now, self.send(client)
        for _ in range(most):
            if self.work() is check:
                return self.now - begin
            check = check or self.send(client, begin)
        raise AssertionError("the check never came")


@pytest.mark.parametrize(
    ("guessers", "before"), [(1, 0), (1, 5), (24, 0), (24, 5), (24, 300), (60, 0), (60, 5), (200, 300)]
)
@pytest.mark.parametrize("each", [1, 8])
def test_a_new_client_does_not_wait_for_those_that_guess(guessers: int, each: int, before: int) -> None:
    """At most for one that has its turn: also at the beginning, when no guess is known to be one. More addresses than
    may wait must have guessed once."""
    desk = Desk(guessers, each)
    for _ in range(before):
        desk.work()
    assert desk.login() <= 3


def test_clients_that_guess_take_turns() -> None:
    """So that a right password gets through from an address that others guess from, too."""
    desk = Desk(20, 3)
    for _ in range(200):
        desk.work()
    desk.guesses.clear()
    for _ in range(200):
        desk.work()
    assert set(desk.guesses.values()) == {10}


def test_new_clients_do_not_starve_the_others() -> None:
    """Each second check is that of the client whose turn it is, however many new clients come."""
    desk = Desk(0)
    desk.guesses["old"] = 1
    first = desk.send("old")
    for number in range(10):
        desk.send(f"new{number}")
    checks = [desk.queue.next() for _ in range(4)]
    assert [check.client for check in checks if check] == ["new9", "old", "new8", "new0"]
    assert checks[1] is first


def test_limits() -> None:
    """Of one client, the passwords that came first stay, and a new one that was sent before them takes a place."""
    desk = Desk(0)
    sent = [desk.send("a", float(number)) for number in range(WAITING_EACH + 1)]
    assert sent.index(None) == WAITING_EACH
    assert desk.queue.make_room("a", 6.5) == (True, sent[7])
    assert desk.queue.make_room("a", 6.5) == (True, None)
    for number in range(2 * WAITING):
        desk.send(f"c{number}", 10.0)
    assert len(desk.queue) == WAITING
    assert desk.queue.make_room("z", 11.0) == (False, None)
    assert desk.queue.make_room("z", 9.0)[0]
