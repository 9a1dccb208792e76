"""Which connections are closed at a limit, and how the limit follows from RLIMIT_NOFILE."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from functools import partial

import pytest

from gpu_exporter.http.admission import (
    BUSY_SECONDS,
    FEWEST_CONNECTIONS,
    MOST_CONNECTIONS,
    Admission,
    Connection,
    most_connections,
)


class Door:
    """An admission of 8 connections, 4 per address, with a clock of the test and the closed connections."""

    def __init__(self, most: int = 8) -> None:
        self.now = 0.0
        self.closed: list[str] = []
        self.admission = Admission(most, lambda: self.now)

    def open(self, name: str) -> Connection | None:
        """Open a connection of the address `name[0]`, a second after the last one."""
        self.now += 1
        return self.admission.admit(name[0], lambda: self.closed.append(name))


def test_an_address_replaces_its_own_longest_idle_connection() -> None:
    """Whatever other addresses do."""
    door = Door()
    for name in ("b1", "a1", "a2", "a3", "a4", "a5", "a6"):
        assert door.open(name)
    assert door.closed == ["a1", "a2"]
    assert door.admission.dropped == {"address": 2, "total": 0, "descriptors": 0, "bytes": 0}


def test_a_new_address_replaces_a_connection_of_the_largest() -> None:
    """If the limit of all connections is reached."""
    door = Door()
    for name in ("b1", "a1", "a2", "a3", "b2", "c1", "d1", "e1", "f1"):
        assert door.open(name)
    assert door.closed == ["a1"]
    assert door.admission.dropped["total"] == 1


def test_idle_time_restarts_with_each_request() -> None:
    """It counts from the end of the last response."""
    door = Door()
    first, *_ = [door.open(f"a{number}") for number in range(1, 5)]
    assert first
    door.now += 1
    door.admission.mark_busy(first)
    door.now += 1
    door.admission.mark_idle(first)
    assert door.open("a5")
    assert door.closed == ["a2"]


def test_a_connection_with_unread_input_is_not_closed_for_being_idle() -> None:
    """Its request waits until those of others are answered, which then count as idle for less long."""
    door = Door()
    waiting: set[str] = {"a1"}
    for name in ("a1", "a2", "a3", "a4", "a5"):
        door.now += 1
        close, has_input = partial(door.closed.append, name), partial(waiting.__contains__, name)
        assert door.admission.admit("a", close, has_input)
    assert door.closed == ["a2"]
    waiting.update(("a3", "a4", "a5"))
    assert door.open("a6")  # if all have sent something, the one that is idle for longest is closed
    assert door.closed == ["a2", "a1"]


def test_a_forwarded_request_counts_for_its_client() -> None:
    """From its headers until the next request is awaited; the connections of a proxy are its own in between."""
    door = Door(16)  # 8 per address
    forwarded = [door.open(f"p{number}") for number in range(8)]
    for connection in forwarded:
        assert connection
        door.admission.assign(connection, "a")
        door.admission.mark_busy(connection)
    assert [door.open(f"p{number}") for number in range(10, 16)].count(None) == 0
    assert door.closed == []
    greedy = door.open("p16")
    assert greedy
    door.admission.assign(greedy, "a")
    assert door.closed == ["p0"]  # the oldest request of the client, which takes longer than a second
    second = forwarded[1]
    assert second
    door.admission.mark_idle(second)
    door.open("p17")
    assert door.closed == ["p0"]
    door.open("p18")
    assert door.closed == ["p0", "p10"]


def test_a_client_of_a_proxy_is_refused_beyond_twice_its_share() -> None:
    door = Door(64)  # 16 per address
    for number in range(34):
        door.now -= 1  # all at the same moment, so no request is slow
        connection = door.open(f"{number // 8}{number}")
        assert connection
        door.admission.assign(connection, "a")
        door.admission.mark_busy(connection)
    assert door.closed == ["432", "433"]
    assert door.admission.dropped["address"] == 2


def test_only_slow_requests_are_cut_off() -> None:
    """Otherwise an address has up to twice its share, until the requests are answered."""
    door = Door(16)  # 8 per address
    connections = []
    for number in range(1, 17):
        connections.append(door.admission.admit("a", partial(door.closed.append, f"a{number}")))
        assert connections[-1]
        door.admission.mark_busy(connections[-1])
    assert door.admission.admit("a", lambda: None) is None
    assert door.closed == []
    assert door.admission.dropped == {"address": 1, "total": 0, "descriptors": 0, "bytes": 0}
    for connection in connections[1:]:
        assert connection
        door.admission.mark_idle(connection)
    door.now += BUSY_SECONDS / 2
    assert door.open("a17")
    assert door.closed == [f"a{number}" for number in range(2, 11)]
    assert door.admission.dropped["address"] == 10


def test_connections_are_closed_to_free_descriptors() -> None:
    """One at a time, until none is left."""
    door = Door()
    assert door.open("a1")
    assert door.admission.make_room()
    assert not door.admission.make_room()
    assert door.closed == ["a1"]


def test_closed_connections_are_forgotten() -> None:
    """Also if closed twice, or replaced."""
    door = Door()
    connections = [door.open(f"a{number}") for number in range(9)]
    for connection in [*connections, *connections]:
        assert connection
        door.admission.mark_busy(connection)
        door.admission.remove(connection)
        door.admission.mark_idle(connection)
    assert all(door.open(f"{address}1") for address in "abcdefgh")
    assert len(door.closed) == 5


@pytest.mark.parametrize(("most", "share"), [(512, 128), (64, 16), (25, 12), (4, 2), (1, 1)])
def test_share(most: int, share: int) -> None:
    """A quarter, but at least a few."""
    assert Admission(most).share == share


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set how many file descriptors are allowed, of which 20 are open."""

    def limit(most: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
        monkeypatch.setattr(os, "listdir", lambda _: [""] * 20)

    return limit


@pytest.mark.parametrize(
    ("descriptors", "most"),
    [
        (resource.RLIM_INFINITY, MOST_CONNECTIONS),
        (1 << 20, MOST_CONNECTIONS),
        (1024, MOST_CONNECTIONS),
        (532, 256),
        (64, 22),
        (21, FEWEST_CONNECTIONS),
        (10, FEWEST_CONNECTIONS),
    ],
)
def test_most_connections(limited: Callable[[int], None], descriptors: int, most: int) -> None:
    """The free descriptors without the reserve."""
    limited(descriptors)
    assert most_connections() == most
