"""Accepts connections on one listening socket, and pauses while the system has no room for more."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from tornado.ioloop import IOLoop

from gpu_exporter.serving.security.login import OncePerMinute

log = logging.getLogger(__name__)

# Connections that are accepted before other events are handled.
BATCH = 64
PAUSE_SECONDS = 0.5
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Errors that concern only the connection that was to be accepted: see accept(2).
OF_ONE_CONNECTION = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
    }
)


class Listener:
    """Calls `take` with each new connection, until `stop`. Must be used on the thread of the event loop.

    If no file descriptor is free, it calls `make_room`, which returns whether one is free now.
    """

    def __init__(
        self, listening: socket.socket, take: Callable[[socket.socket, Any], None], make_room: Callable[[], bool]
    ) -> None:
        self._socket, self._take, self._make_room = listening, take, make_room
        self._loop = IOLoop.current()
        self._once_per_minute = OncePerMinute()
        self._stopped = False
        self._resume()

    def stop(self) -> None:
        """Stop accepting, and close the socket."""
        self._stopped = True
        self._loop.remove_handler(self._socket)
        self._socket.close()

    def _accept(self, *_: object) -> None:
        for _number in range(BATCH):
            try:
                connection, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OF_ONE_CONNECTION:
                    continue
                if error.errno in EXHAUSTED and self._make_room():
                    continue
                if self._once_per_minute(os.strerror(error.errno or 0)):
                    hint = "; raise the limit on open files (ulimit -n)" if error.errno == errno.EMFILE else ""
                    log.error("cannot accept connections: %s%s", error.strerror, hint)
                # The connection stays in the socket's queue, so the event loop would call again and again.
                self._loop.remove_handler(self._socket)
                self._loop.call_later(PAUSE_SECONDS, self._resume)
                return
            self._take(connection, address)

    def _resume(self) -> None:
        if not self._stopped:
            self._loop.add_handler(self._socket, self._accept, IOLoop.READ)
