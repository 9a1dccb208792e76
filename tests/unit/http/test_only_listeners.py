"""HTTP is served only by the kit in http/, which has the limits; what else listens is named here, with the reason."""

from __future__ import annotations

import ast
import re

from tests import ROOT

PACKAGE = ROOT / "gpu_exporter"
KIT = PACKAGE / "http"
# Unix sockets, whose permissions and the peers' users decide who may connect, and that speak no HTTP.
UNIX_SOCKETS = {
    "jobs/socket_file.py": "training loops send their step times",
    "profiling/sample_server.py": "the exporter asks the sampler for stacks",
    "profiling/kineto_daemon.py": "PyTorch's profiler registers its processes, in datagrams",
}
# Binds a socket only to learn whether an address is free.
PROBES = {"doctor/machine.py"}
SERVERS = re.compile(
    r"\b(\w*HTTPServer|TCPServer|add_sockets|bind_sockets|bind_unix_socket|create_server|start_server|start_unix_server"
    r"|create_unix_server|make_server|start_http_server|serve_forever)$"
)
LIBRARIES = {"http.server", "socketserver", "wsgiref", "wsgiref.simple_server", "xmlrpc.server", "aiohttp", "uvicorn"}


def listens(code: str) -> set[str]:
    """Return what in a module binds, listens or makes a server."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & LIBRARIES
        elif isinstance(node, ast.ImportFrom):
            imported = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            found |= imported & LIBRARIES | {alias.name for alias in node.names if SERVERS.search(alias.name)}
        elif isinstance(node, ast.Attribute) and (node.attr in ("bind", "listen") or SERVERS.search(node.attr)):
            found.add(node.attr)
    return found


def test_only_the_kit_serves_http() -> None:
    """Another server would have none of the limits of docs/security.md."""
    listening = {
        path.relative_to(PACKAGE).as_posix(): listens(path.read_text())
        for path in PACKAGE.rglob("*.py")
        if not path.is_relative_to(KIT)
    }
    allowed = {name: {"bind", "listen"} for name in (*UNIX_SOCKETS, *PROBES)}
    others = {name: found - allowed.get(name, set()) for name, found in listening.items()}
    assert {name: found for name, found in others.items() if found} == {}, "serve it with gpu_exporter/http/server.py"
    assert all(listening[name] for name in allowed), "remove it from the table of this test"
    for name in UNIX_SOCKETS:
        assert "AF_UNIX" in (PACKAGE / name).read_text()


def test_what_is_noticed() -> None:
    for code in (
        "import http.server",
        "from http import server",
        "from http.server import ThreadingHTTPServer",
        "import socketserver",
        "from tornado.httpserver import HTTPServer",
        "from tornado.netutil import bind_sockets",
        "tornado.httpserver.HTTPServer(app)",
        "app.listen(80)",
        "socket.create_server(('', 80))",
        "await asyncio.start_server(take)",
        "prometheus_client.start_http_server(80)",
    ):
        assert listens(code), code
    assert not listens("from gpu_exporter.http.server import Server\nServer(address).start()")
