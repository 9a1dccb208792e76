"""Sockets that systemd passes."""

from __future__ import annotations

import os
import socket

import pytest

from gpu_exporter.http import systemd
from gpu_exporter.model.errors import GpuExporterError


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_passed_socket_that_does_not_listen(kind: socket.SocketKind, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, kind) as passed:
        monkeypatch.setattr(systemd, "FIRST", passed.fileno())
        with pytest.raises(GpuExporterError, match="needs ListenStream="):
            systemd.listening({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
        passed.detach()  # the error closed it
