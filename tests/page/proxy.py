"""A reverse proxy that serves a server below a path prefix."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.tools import LIMIT


@contextmanager
def proxied(target: int, prefix: str) -> Iterator[int]:
    """Forward requests below `prefix` to a port of this machine, without the prefix; yield the proxy's port."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            connection = HTTPConnection("127.0.0.1", target, timeout=LIMIT)
            try:
                connection.request("GET", self.path.removeprefix(prefix), headers=dict(self.headers))
                answer = connection.getresponse()
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() != "transfer-encoding":
                        self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    while part := answer.read1(65536):
                        self.wfile.write(part)
            finally:
                connection.close()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
