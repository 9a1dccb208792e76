"""The connections of training loops: each has its own queue, so that no sender can use up the room of another."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import NamedTuple

from gpu_exporter.jobs.socket_file import JobSocket
from gpu_exporter.model.job_message import MOST_BYTES

# Twice as many as ranks, because a process that was started again connects before the old connection is closed.
MOST_CONNECTIONS, MOST_OF_USER, MOST_OF_PROCESS = 256, 128, 4
MOST_ACCEPTED_AT_ONCE = 256
# Of so many messages of a connection, only the last one is used, because it contains the sums of all others.
MOST_SKIPPED = 64


class Received(NamedTuple):
    """A message, with the process and the user that opened its connection, as the kernel knows them.

    The PID is 0 for a process that is not visible from this PID namespace. A message that is too large is cut off one
    byte after the limit.
    """

    content: bytes
    pid: int
    uid: int


class Connections:
    """Accepts and reads connections, within limits for each process and user. Used by one thread."""

    def __init__(self, listener: JobSocket) -> None:
        self.refused = 0
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener.socket, select.POLLIN)
        self._senders: dict[int, tuple[socket.socket, int, int]] = {}

    def receive(self, seconds: float) -> Iterator[Received]:
        """Wait for messages for some seconds at most, and yield the last one of each connection that has some."""
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor in self._senders:
                yield from self._latest(descriptor)
            else:
                self._accept()

    def close(self) -> None:
        """Close all connections and the socket."""
        for sender, _, _ in self._senders.values():
            sender.close()
        self._senders.clear()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(MOST_ACCEPTED_AT_ONCE):
            accepted = self._listener.accept()
            if accepted is None:
                return
            sender, pid, uid = accepted
            if self._has_room(pid, uid):
                self._senders[sender.fileno()] = accepted
                self._poll.register(sender, select.POLLIN)
            else:
                self.refused += 1
                sender.close()

    def _has_room(self, pid: int, uid: int) -> bool:
        of_user = [opened for _, opened, user in self._senders.values() if user == uid]
        return (
            len(self._senders) < MOST_CONNECTIONS
            and len(of_user) < MOST_OF_USER
            and (not pid or of_user.count(pid) < MOST_OF_PROCESS)
        )

    def _latest(self, descriptor: int) -> Iterator[Received]:
        sender, pid, uid = self._senders[descriptor]
        latest: bytes | None = None
        try:
            for _ in range(MOST_SKIPPED):
                content = sender.recv(MOST_BYTES + 1)
                if not content:  # the end, or an empty message, which is not one
                    self._drop(descriptor)
                    break
                latest = content
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._drop(descriptor)
        if latest is not None:
            yield Received(latest, pid, uid)

    def _drop(self, descriptor: int) -> None:
        sender, _, _ = self._senders.pop(descriptor)
        self._poll.unregister(sender)
        sender.close()
