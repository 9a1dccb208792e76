"""What cannot be served ends the start with one line."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from gpu_exporter.app.server import Server
from gpu_exporter.http import systemd
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError


def test_an_event_loop_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start fails, instead of waiting for ever for a thread that has ended."""

    def fail() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", fail)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(Address("", 0), [], sockets=[listening])
        with pytest.raises(GpuExporterError, match=r"^the HTTP server cannot start: Too many open files$"):
            server.start()


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_passed_socket_that_does_not_listen(kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, kind) as passed:
        monkeypatch.setattr(systemd, "FIRST", passed.fileno())
        with pytest.raises(GpuExporterError, match="needs ListenStream="):
            systemd.listening({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
        passed.detach()  # the error closed it
