"""`gpu-exporter serve` that prints the modules it has imported, as JSON, once each of its parts has done its work.

python -m tests.counts.serve OPTION…
"""

from __future__ import annotations

import sys

OF_PYTHON = frozenset(sys.modules)  # what an interpreter imports at its start, and so what its packages hook into it

# ruff: noqa: E402
import json
import os
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from gpu_exporter.app import run
from gpu_exporter.cli.main import main

REQUEST = b"GET /metrics HTTP/1.0\r\nAccept-Encoding: gzip\r\nAuthorization: Basic bWU6c2VjcmV0\r\n\r\n"  # me:secret
PATIENCE_SECONDS = 120.0


def report(node: Any, port: int, *, tls: bool) -> None:
    """Let the threads of a node do their work, scrape, and print the modules."""
    if node.live:
        node.live.follow()
    for lookup in node._attributor._lookups.configured() if node._attributor else ():
        assert lookup.settled.wait(PATIENCE_SECONDS), f"{lookup.source} does not answer"
    for part in node._host.parts if node._host else ():
        part.poll(0.0)
    for part in node._telemetry:
        if hasattr(part, "take"):
            from gpu_exporter.jobs.connections import SocketPeer

            part.take(b"{}", SocketPeer(0, 0))
    assert node.endpoint.pages.made.wait(PATIENCE_SECONDS), "no page is made"
    client = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    if tls:
        client = ssl._create_unverified_context().wrap_socket(client)
    client.sendall(REQUEST)
    status = client.recv(64).split(b"\r\n")[0]
    assert b" 200 " in status, f"the scrape fails: {status!r}"
    print(json.dumps(sorted(set(sys.modules) - OF_PYTHON)))
    sys.stdout.flush()


def serve(nodes: Sequence[Any], server: Any, config: Any, stop: threading.Event, *, tls: bool) -> None:
    """Do as `run` does, but report once everything is started, which is when the main thread first waits."""
    wait = stop.wait

    def reporting(timeout: float | None = None) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return wait(timeout)
        code = 1
        try:
            report(nodes[0], server.port, tls=tls)
            code = 0
        finally:
            os._exit(code)

    stop.wait = reporting  # type: ignore[method-assign]
    serve_until_stopped(nodes, server, config, stop, tls=tls)


serve_until_stopped = run._serve

if __name__ == "__main__":
    run._serve = serve
    sys.argv[1:1] = ["serve", "--address", "127.0.0.1:0", "--log-level", "error"]
    main()
