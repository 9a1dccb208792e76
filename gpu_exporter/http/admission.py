"""Limits on open connections: how many at a time, and how many of them from one client address."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

MOST_CONNECTIONS = 512
# However few file descriptors there are, this many connections are allowed.
FEWEST_CONNECTIONS = 4
# File descriptors that are left to the rest of the exporter: drivers, sources, files, logs. If fewer than twice
# that many are free, half of the free ones are left.
RESERVED_DESCRIPTORS = 256
# How many are assumed to be open if they cannot be counted.
ASSUMED_DESCRIPTORS = 64
# One address may have a quarter of the connections, or FEW_PER_ADDRESS if that is more, but never more than half.
ADDRESS_DIVISOR = 4
FEW_PER_ADDRESS = 16
# A request that takes longer than this may be cut off in favour of a new connection.
BUSY_SECONDS = 1.0

ADDRESS, TOTAL, DESCRIPTORS, BYTES = "address", "total", "descriptors", "bytes"


def most_connections() -> int:
    """Return how many connections RLIMIT_NOFILE allows, given the file descriptors that are open now."""
    try:
        import resource
    except ImportError:  # no such limit on this system
        return MOST_CONNECTIONS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = ASSUMED_DESCRIPTORS
    free = max(0, limit - used)
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, free - min(RESERVED_DESCRIPTORS, free // 2)))


@dataclass(eq=False, slots=True)
class Connection:
    """An open connection. Busy from a complete request to the end of the response, else idle; `since` is when that
    state began. `has_input` returns whether the client has sent something that was not read yet, `has_arrived` is
    whether the headers of a request were read. `client` is the peer, or during a request that a proxy forwards, the
    client of the proxy.
    """

    client: str
    close: Callable[[], None]
    has_input: Callable[[], bool]
    since: float
    busy: bool = False
    has_arrived: bool = False
    peer: str = field(init=False)

    def __post_init__(self) -> None:
        self.peer = self.client


@dataclass(slots=True)
class _Client:
    """The connections of one client address, each group with the oldest `since` first."""

    idle: dict[Connection, None] = field(default_factory=dict)
    busy: dict[Connection, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.idle) + len(self.busy)


class Admission:
    """Decides which connections stay open.

    A connection beyond a limit replaces another one: of the same address if that has used up its share, else of the
    address with the most connections, then of the next. Of an address, the connection that is idle for longest is
    closed, if possible one that has sent nothing; if none is idle, the oldest request is cut off if it already takes
    long. If all connections of an address are being answered, which takes milliseconds, it may have as many again for
    the moment. If nothing can be closed, the new connection is refused. `dropped` counts replaced and refused
    connections, by limit.
    """

    def __init__(self, most: int = MOST_CONNECTIONS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: dict[str, _Client] = {}
        self._count = 0
        self.dropped = Counter({ADDRESS: 0, TOTAL: 0, DESCRIPTORS: 0, BYTES: 0})
        self.resize(most)

    def resize(self, most: int) -> None:
        """Set the limit on all connections, and so the share of one address."""
        self.most = most
        self.share = max(1, most // ADDRESS_DIVISOR, min(FEW_PER_ADDRESS, most // 2))

    def admit(
        self, client: str, close: Callable[[], None], has_input: Callable[[], bool] = lambda: False
    ) -> Connection | None:
        """Return a new connection, which may replace another one; None if it must be refused."""
        if not self._has_room(client):
            return None
        if self._count >= self.most and not self._close_one(self._largest_first(), TOTAL):
            self.dropped[TOTAL] += 1
            return None
        connection = Connection(client, close, has_input, self._clock())
        self._add(connection)
        return connection

    def assign(self, connection: Connection, client: str) -> None:
        """Count a connection as one of the client whose request it forwards, until the end of the request. It may
        replace another one of this client; if it must be refused, it is closed."""
        if connection.client == client or not self.remove(connection):
            return
        if self._has_room(client):
            connection.client = client
            self._add(connection)
        else:
            connection.close()

    def make_room(self) -> bool:
        """Close one connection, because no file descriptor is free. Return whether there was one to close."""
        closed = self._close_one(self._largest_first(), DESCRIPTORS)
        self.dropped[DESCRIPTORS] += not closed
        return closed

    def drop(self, connection: Connection, limit: str) -> None:
        """Close a connection, and count it under this limit."""
        self.dropped[limit] += 1
        self.remove(connection)
        connection.close()

    def mark_busy(self, connection: Connection) -> None:
        """Note that a request is complete."""
        self._turn(connection, busy=True)

    def mark_idle(self, connection: Connection) -> None:
        """Note that the next request is awaited."""
        connection.has_arrived = False
        self._turn(connection, busy=False)
        if connection.client != connection.peer and self.remove(connection):
            connection.client = connection.peer
            self._add(connection)

    def remove(self, connection: Connection) -> bool:
        """Forget a connection that is closed; return whether it was open."""
        client = self._clients.get(connection.client, _Client())
        group = client.busy if connection.busy else client.idle
        if connection not in group:
            return False
        del group[connection]
        self._count -= 1
        if not client:
            del self._clients[connection.client]
        return True

    def _has_room(self, client: str) -> bool:
        """Return whether this client may have another connection, after replacing those beyond its share."""
        own = self._clients.get(client, _Client())
        while len(own) >= self.share and self._close_one([own], ADDRESS):
            pass
        refused = len(own) >= 2 * self.share
        self.dropped[ADDRESS] += refused
        return not refused

    def _add(self, connection: Connection) -> None:
        client = self._clients.setdefault(connection.client, _Client())
        (client.busy if connection.busy else client.idle)[connection] = None
        self._count += 1

    def _turn(self, connection: Connection, *, busy: bool) -> None:
        client = self._clients.get(connection.client, _Client())
        before, after = (client.busy if state else client.idle for state in (connection.busy, busy))
        if connection in before:
            del before[connection]
            connection.busy, connection.since = busy, self._clock()
            after[connection] = None

    def _largest_first(self) -> Iterator[_Client]:
        if self._clients:
            yield max(self._clients.values(), key=len)  # nearly always suffices
        yield from sorted(self._clients.values(), key=len, reverse=True)

    def _close_one(self, clients: Iterable[_Client], limit: str) -> bool:
        """Close one connection of the first of these clients that has one to close; return whether one has."""
        for client in clients:
            connection = _longest_idle(client.idle) or next(iter(client.busy), None)
            if connection and (not connection.busy or self._clock() - connection.since > BUSY_SECONDS):
                self.drop(connection, limit)
                return True
        return False


def _longest_idle(idle: Iterable[Connection]) -> Connection | None:
    """Return the connection to close first.

    While many requests arrive, a new connection is soon idle for longest: its request waits until those of others are
    answered, after which these count as idle from then on. So its input decides.
    """
    silent = (connection for connection in idle if not connection.has_arrived and not connection.has_input())
    return next(silent, None) or next(iter(idle), None)
