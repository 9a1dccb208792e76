"""The connections of training loops: each has its own queue, so that no sender can use up the room of another."""

from __future__ import annotations

import select
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpu_exporter.jobs.shares import Claim, yielding
from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.model.job_message import MOST_BYTES

# Twice as many as ranks, because a process that was started again connects before the old connection is closed.
MOST_CONNECTIONS, MOST_OF_USER, MOST_OF_PROCESS = 256, 128, 4
MOST_ACCEPTED_AT_ONCE = 256
# Of so many messages of a connection, only the last one is used, because it contains the sums of all others.
MOST_SKIPPED = 64
# A connection without a valid message is closed after the first time, and gives way to others after the second one.
FIRST_MESSAGE_SECONDS, NEW_SECONDS = 10.0, 1.0
# A connection that sent valid messages is never closed for being silent, but gives way to others after this time.
IDLE_SECONDS = 30.0


@dataclass(slots=True)
class SocketPeer:
    """The process and the user that opened a connection, as the kernel knows them.

    The PID is 0 for a process that is not visible from this PID namespace. `heard_at` is the monotonic time of the last
    valid message, or of the connection if there was none. `verified`: the process is on a GPU. `attempt` is that of the
    last message.
    """

    pid: int
    uid: int
    heard_at: float = 0.0
    valid: bool = False
    verified: bool = False
    attempt: str = ""

    def is_idle(self, now: float) -> bool:
        """Return whether its connection gives way to any other."""
        return now - self.heard_at > (IDLE_SECONDS if self.valid else NEW_SECONDS)


class Received(NamedTuple):
    """A message and its sender. A message that is too large is cut off one byte after the limit."""

    content: bytes
    peer: SocketPeer


# A process and its user, a user, or all.
_Share = tuple[int, ...]


def _shares(peer: SocketPeer) -> Mapping[_Share, int]:
    """Return what a connection counts for, and how many connections may. A process that is not visible is none."""
    of_process: Mapping[_Share, int] = {(peer.pid, peer.uid): MOST_OF_PROCESS} if peer.pid else {}
    return {**of_process, (peer.uid,): MOST_OF_USER, (): MOST_CONNECTIONS}


class Connections:
    """Accepts and reads connections, within limits for each process and user. Used by one thread.

    At a limit, a connection that is idle gives way, then that of an unverified sender to that of a verified one, then
    one of the user that has the most. `is_on_gpu` returns whether a process of a user is verified before it has sent a
    message. `refused` counts connections that were refused or gave way. `closed` are those that their senders closed.
    """

    def __init__(
        self,
        listener: JobSocket,
        is_on_gpu: Callable[[int, int], bool] = lambda _pid, _uid: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused = 0
        self.closed: list[SocketPeer] = []
        self._listener, self._is_on_gpu, self._clock = listener, is_on_gpu, clock
        self._poll = select.poll()
        self._poll.register(listener.socket, select.POLLIN)
        self._senders: dict[int, tuple[socket.socket, SocketPeer]] = {}
        # The connections that count for each limit, the oldest first: a flood of new ones does not look at all others.
        self._held: defaultdict[_Share, dict[int, SocketPeer]] = defaultdict(dict)

    def receive(self, seconds: float) -> Iterator[Received]:
        """Wait for messages for some seconds at most, and yield the last one of each connection that has some."""
        ready = [descriptor for descriptor, _ in self._poll.poll(seconds * 1000)]
        # Those that have sent something are not idle, so they are read before others can replace them.
        for descriptor in ready:
            if descriptor in self._senders:
                yield from self._latest(descriptor)
        self._expire()
        if self._listener.socket.fileno() in ready:
            self._accept()

    def close(self) -> None:
        """Close all connections and the socket."""
        for sender, _ in self._senders.values():
            sender.close()
        self._senders.clear()
        self._held.clear()
        self._listener.close()

    def _accept(self) -> None:
        now = self._clock()
        for _ in range(MOST_ACCEPTED_AT_ONCE):
            accepted = self._listener.accept()
            if accepted is None:
                return
            sender, pid, uid = accepted
            peer = SocketPeer(pid, uid, now)
            if self._make_room(peer, now):
                descriptor = sender.fileno()
                self._senders[descriptor] = sender, peer
                for share in _shares(peer):
                    self._held[share][descriptor] = peer
                self._poll.register(sender, select.POLLIN)
            else:
                self.refused += 1
                sender.close()

    def _make_room(self, new: SocketPeer, now: float) -> bool:
        """Return whether there is room for a connection, for which others may be closed."""
        for share, most in _shares(new).items():
            held = self._held.get(share, {})
            if len(held) >= most:
                new.verified = self._is_on_gpu(new.pid, new.uid)
                descriptor = _yielding(held, new, now)
                if descriptor is None:
                    return False
                self.refused += 1
                self._drop(descriptor)
        return True

    def _expire(self) -> None:
        """Close the connections that have sent nothing valid."""
        before = self._clock() - FIRST_MESSAGE_SECONDS
        for descriptor, (_, peer) in list(self._senders.items()):
            if not peer.valid and peer.heard_at < before:
                self._drop(descriptor)

    def _latest(self, descriptor: int) -> Iterator[Received]:
        sender, peer = self._senders[descriptor]
        latest: bytes | None = None
        try:
            for _ in range(MOST_SKIPPED):
                content = sender.recv(MOST_BYTES + 1)
                if not content:  # the end, or an empty message, which is not one
                    self._drop(descriptor)
                    self.closed.append(peer)
                    break
                latest = content
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(descriptor)
            self.closed.append(peer)
        if latest is not None:
            yield Received(latest, peer)

    def _drop(self, descriptor: int) -> None:
        sender, peer = self._senders.pop(descriptor)
        for share in _shares(peer):
            del self._held[share][descriptor]
            if not self._held[share]:
                del self._held[share]
        self._poll.unregister(sender)
        sender.close()


def _yielding(held: Mapping[int, SocketPeer], new: SocketPeer, now: float) -> int | None:
    """Return the connection that gives way to a new one; of a user, one that has sent nothing valid does first."""
    order = sorted(held, key=lambda descriptor: (held[descriptor].valid, held[descriptor].heard_at))
    idle = next((descriptor for descriptor in order if held[descriptor].is_idle(now)), None)
    if idle is not None:
        return idle
    claims = [Claim(held[descriptor].uid, held[descriptor].verified) for descriptor in order]
    index = yielding(claims, Claim(new.uid, new.verified))
    return None if index is None else order[index]
