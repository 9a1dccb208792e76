"""A server for the tests of responses that are ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpu_exporter.http.admission import Admission
from gpu_exporter.http.guard import Guard
from gpu_exporter.http.ready import FindReady
from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address


@contextmanager
def running(
    handlers: Sequence[tuple[str, Any, dict[str, Any]]],
    ready: FindReady,
    guard: Guard | None,
    admission: Admission | None,
) -> Iterator[Server]:
    """Run a server with these handlers and responses that are ready, on a free port."""
    server = Server(
        Address("127.0.0.1", 0),
        handlers,
        program="test",
        option="--at",
        guard=guard,
        admission=admission,
        ready=ready,
    )
    server.start()
    yield server
    server.stop()
