"""Ways of a message to the exporter: a socket, or a textfile. Neither waits, and neither raises.

The modules that only one of them needs are imported with the first message, in the thread that sends.
"""

from __future__ import annotations

import os
import threading

from gpu_exporter.model.job_message import MOST_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any, Protocol

    class Transport(Protocol):
        """Delivers messages."""

        def send(self, message: dict[str, Any]) -> bool:
            """Deliver a message; False if it was dropped."""

        def close(self) -> None:
            """Release what it holds."""


TEXTFILE_SUFFIX = ".prom"


class MessageSocket:
    """Sends each message as one packet of JSON. It is dropped if the exporter is absent or does not keep up.

    The socket is of the type SEQPACKET: like datagrams, but each connection has its own queue, so that no other sender
    can fill it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket | None = None

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. Connects again if the exporter was restarted, because its socket is another one then."""
        packet = _encoded(message)
        if len(packet) > MOST_BYTES:
            return False
        return self._sent(packet, is_new=self._socket is None)

    def _sent(self, packet: bytes, *, is_new: bool) -> bool:
        import socket

        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
                self._socket.setblocking(False)
                self._socket.connect(self._path)
            self._socket.send(packet, socket.MSG_NOSIGNAL)
            return True
        except BlockingIOError:  # its queue is full: the next message contains these sums as well
            return False
        except OSError:
            self.close()
            return False if is_new else self._sent(packet, is_new=True)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _encoded(message: dict[str, Any]) -> bytes:
    """Return the JSON of a message, without its phases if it would be too large with them."""
    import json

    packet = json.dumps(message, separators=(",", ":")).encode()
    if len(packet) <= MOST_BYTES:
        return packet
    return json.dumps({**message, "phase_seconds": {}}, separators=(",", ":")).encode()


class Textfile:
    """Replaces a file for the textfile collector of node_exporter: `PATH.prom` becomes `PATH.RANK.prom`.

    The file is removed at the end, or its series would never end.
    """

    def __init__(self, path: str, rank: int) -> None:
        self._path = f"{path.removesuffix(TEXTFILE_SUFFIX)}.{rank}{TEXTFILE_SUFFIX}"
        # The collector reads no file with another suffix.
        self._draft = f"{self._path}.draft"

    def send(self, message: dict[str, Any]) -> bool:
        """Replace the file at once, so that no half of it is ever read."""
        from gpu_exporter.training.textfile import render

        try:
            with open(self._draft, "w", encoding="utf-8") as draft:
                draft.write(render(message))
            os.replace(self._draft, self._path)
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Remove the file."""
        for path in (self._draft, self._path):
            try:
                os.unlink(path)
            except OSError:
                continue


def transport(path: str, rank: int) -> Transport | None:
    """Return the way to a destination: a textfile if the path ends in `.prom`, else a socket; None without a path."""
    if not path:
        return None
    return Textfile(path, rank) if path.endswith(TEXTFILE_SUFFIX) else MessageSocket(path)


if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    pass


class SenderThread:
    """Sends what `message` returns every `seconds`, and once more at the end.

    A loop that waits for the GPU or for other ranks releases the interpreter, so the thread goes on. If it does not,
    the exporter sees silence instead.
    """

    def __init__(self, transport: Transport, message: Callable[[], dict[str, Any]], seconds: float) -> None:
        self._transport, self._message, self._seconds = transport, message, seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether the thread was started, and not closed since."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread, which does not keep the program from ending. Again after `close`, too."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="gpu-exporter-steps", daemon=True)
        self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds):
            self._transport.send(self._message())

    def close(self) -> None:
        """Stop, and send the last message. Nothing is sent if it was never started."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        thread.join(self._seconds)
        if not thread.is_alive():  # a textfile may be on a disk that hangs
            self._transport.send(self._message())
            self._transport.close()
