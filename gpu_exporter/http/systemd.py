"""Socket activation: take over the sockets that systemd listens on, as `sd_listen_fds(3)` describes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from gpu_exporter.model.errors import GpuExporterError

# The first descriptor that is passed; 0 to 2 are the standard ones.
FIRST = 3


def listening(environ: Mapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the sockets that systemd passed, ready for the server. Raises GpuExporterError if there are none."""
    passed = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not passed.isdecimal() or not int(passed):
        raise GpuExporterError(
            "--web-systemd-socket: systemd passed no socket; start gpu-exporter by a .socket unit, or omit this flag"
        )
    sockets = []
    for number in range(FIRST, FIRST + int(passed)):
        try:
            passed_socket = socket.socket(fileno=number)
        except OSError as error:
            raise GpuExporterError(
                f"--web-systemd-socket: file descriptor {number} is not a socket; check the .socket unit"
            ) from error
        if not passed_socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            passed_socket.close()
            raise GpuExporterError(
                f"--web-systemd-socket: file descriptor {number} does not listen for connections; the .socket unit "
                "needs ListenStream= and Accept=no"
            )
        passed_socket.setblocking(False)
        os.set_inheritable(number, False)
        sockets.append(passed_socket)
    return sockets
