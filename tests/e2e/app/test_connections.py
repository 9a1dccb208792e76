"""Clients that hold many connections or much memory, and an exporter without free file descriptors: others are still
served.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import ssl
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gpu_exporter.http.admission import MOST_CONNECTIONS, Admission
from gpu_exporter.http.backlog import MOST_BYTES
from gpu_exporter.http.listener import SEND_BYTES
from tests.conftest import Exporter, Page, Serve, command, free_port
from tests.e2e.app.test_http import resident
from tests.e2e.app.test_web import TLS, Pki, cpu_seconds
from tests.support.tools import LIMIT, until

REPLAY = ("--source", "replay", "--recording", "h200_workloads", "--interval", "200ms")
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
DROPPED = "gpu_exporter_http_connections_dropped_total"
SHARE = Admission().share
PROMETHEUS = "127.0.0.2"


@contextmanager
def connected(exporter: Exporter, count: int, *addresses: str) -> Iterator[list[socket.socket]]:
    """Open this many connections from each of these addresses."""
    with ExitStack() as stack:
        to = ("127.0.0.1", exporter.port)
        yield [
            stack.enter_context(socket.create_connection(to, LIMIT, source_address=(address, 0)))
            for _ in range(count)
            for address in addresses or ("127.0.0.1",)
        ]


def ended(connections: Iterable[socket.socket]) -> int:
    """Return how many of these connections the server has closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLRDHUP)
    return len(poll.poll(0))


def scrape(exporter: Exporter, address: str = PROMETHEUS) -> Page:
    """Scrape once on a new connection from this address."""
    plain = socket.create_connection(("127.0.0.1", exporter.port), LIMIT, source_address=(address, 0))
    with exporter.tls.wrap_socket(plain, server_hostname="127.0.0.1") if exporter.tls else plain as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    return Page(body.decode())


def test_idle_connections_do_not_block_scrapes(serve: Serve) -> None:
    """One client keeps 600 connections open, each after a request; every scrape succeeds, from its address, too."""
    exporter = serve(*REPLAY)
    with connected(exporter, 600) as idle:
        for connection in idle:
            with suppress(ConnectionError):  # it was closed in favour of a newer one
                connection.sendall(REQUEST)
        for address in (PROMETHEUS, "127.0.0.1") * 5:
            scrape(exporter, address)
        until(lambda: ended(idle) >= 600 - SHARE, 5, "the end of those beyond the share of an address")
        page = scrape(exporter)
        assert [page.value(DROPPED, limit=limit) for limit in ("total", "descriptors")] == [0, 0]
        until(lambda: scrape(exporter).value(DROPPED, limit="address") >= 600 - SHARE, 5, "the count")


def test_idle_connections_of_many_addresses(serve: Serve) -> None:
    """At the limit of all connections, the longest idle ones are closed."""
    exporter = serve(*REPLAY)
    addresses = [f"127.0.1.{number}" for number in range(1, 8)]
    with connected(exporter, 100, *addresses) as idle:
        until(lambda: ended(idle) == len(idle) - MOST_CONNECTIONS, 5, "the end of those beyond the limit")
        for _ in range(5):
            scrape(exporter)
        until(lambda: scrape(exporter).value(DROPPED, limit="total") >= len(idle) - MOST_CONNECTIONS, 5, "the count")


def test_silent_connections_over_tls(serve: Serve, tmp_path: Path) -> None:
    """They count as soon as they are accepted; at a limit, the one that is idle for longest is closed."""
    pki = Pki(tmp_path)
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=pki.context())
    addresses = [f"127.0.1.{number}" for number in range(1, 8)]
    with connected(exporter, 100, *addresses) as silent:
        until(lambda: ended(silent) == len(silent) - MOST_CONNECTIONS, 5, "the end of those beyond the limit")
        for _ in range(5):
            scrape(exporter)
    with connected(exporter, 600) as silent:
        until(lambda: ended(silent) == 600 - SHARE, 5, "the end of those beyond the share of an address")
        for _ in range(5):
            scrape(exporter, "127.0.0.1")
    assert "Traceback" not in exporter.log.read_text()


def test_half_a_handshake(serve: Serve, tmp_path: Path) -> None:
    """Clients that stop in the middle of the TLS handshake are disconnected, too."""
    pki = Pki(tmp_path)
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=pki.context())
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = pki.context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    greeting = outgoing.read()
    with connected(exporter, 300) as slow:
        for connection in slow:
            with suppress(ConnectionError):
                connection.sendall(greeting)
        until(lambda: ended(slow) == 300 - SHARE, 10, "the end of those beyond the share of an address")
        scrape(exporter, "127.0.0.1")


def test_clients_that_leave_right_after_the_handshake(serve: Serve, tmp_path: Path) -> None:
    """Such as port checks. None of them stays counted."""
    pki = Pki(tmp_path)
    exporter = serve(*REPLAY, "--web.config.file", pki.config(TLS), tls=pki.context())
    for _ in range(3 * SHARE):
        plain = socket.create_connection(("127.0.0.1", exporter.port), LIMIT)
        pki.context().wrap_socket(plain, server_hostname="127.0.0.1").close()
    page = scrape(exporter)
    assert page.value(DROPPED, limit="address") == 0
    assert "Traceback" not in exporter.log.read_text()


def unsent(exporter: Exporter) -> list[int]:
    """Return how many bytes the kernel keeps for each client of the exporter: see proc_net_tcp(5)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(f":{exporter.port:04X}")]


def test_slow_readers_of_large_pages(serve: Serve) -> None:
    """They share each page, and are closed when they keep too many of them; memory stays bounded."""
    exporter = serve("--source", "simulated", "--gpus", "32", "--metrics", "full")
    until(lambda: len(scrape(exporter).samples) > 5000, what="a large page")
    before, rounds, at = resident(exporter), 0, 0.0
    with ExitStack() as stack:

        def closed_for_bytes() -> bool:
            """Open some more slow readers of a new page, in both formats; return whether any was closed."""
            nonlocal rounds, at
            page = scrape(exporter)
            if page.value("gpu_exporter_snapshot_timestamp_seconds") != at:
                at, rounds = page.value("gpu_exporter_snapshot_timestamp_seconds"), rounds + 1
                for number in range(64):
                    slow = stack.enter_context(socket.socket())
                    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    slow.bind((f"127.0.1.{number % 4 + 1}", 0))
                    slow.connect(("127.0.0.1", exporter.port))
                    accept = "application/openmetrics-text;version=1.0.0" if number & 4 else "*/*"
                    slow.sendall(f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
            return page.value(DROPPED, limit="bytes") > 0

        until(closed_for_bytes, what="the end of a slow reader")
        assert rounds > 1
        assert resident(exporter) - before < 2 * MOST_BYTES / (1 << 20)
        kept = unsent(exporter)
        assert len(kept) > 64
        assert SEND_BYTES / 2 < max(kept) < 4 * SEND_BYTES
        scrape(exporter)
    assert "Traceback" not in exporter.log.read_text()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Exporter]:
    """An exporter with a limit of 64 open files."""
    port, log = free_port(), tmp_path / "log"
    arguments = ["prlimit", "--nofile=64:64", *command("serve", "--address", f"127.0.0.1:{port}", *REPLAY)]
    with log.open("w") as file, subprocess.Popen(arguments, stderr=file, text=True) as process:
        exporter = Exporter(process, port, log)
        try:
            until(lambda: answers(exporter), 20, "an answer")
            yield exporter
        finally:
            process.kill()


def answers(exporter: Exporter) -> bool:
    """Return whether it serves metrics."""
    try:
        return exporter.get()[0].status == 200
    except OSError:
        return False


def test_few_file_descriptors(small: Exporter) -> None:
    """With 104 connections, the exporter keeps serving, logs one line, and uses no CPU."""
    with connected(small, 104) as idle:
        before, begin = cpu_seconds(small), time.monotonic()
        until(lambda: ended(idle) >= 104 - 32, 5, "the end of those beyond the limit")
        for _ in range(5):
            scrape(small)
        time.sleep(2)
        assert cpu_seconds(small) - before < 0.5 * (time.monotonic() - begin)
        page = scrape(small)
    assert page.value(DROPPED, limit="descriptors") == 0
    assert page.value(DROPPED, limit="address") > 60
    log = small.log.read_text()
    assert log.count("the limit on open files is low; raise it (ulimit -n)") == 1
    assert "Traceback" not in log
    assert log.count("\n") < 15


def test_no_file_descriptor_is_free(serve: Serve) -> None:
    """Idle connections are closed, or accepting pauses, with one log line and little CPU."""
    exporter = serve(*REPLAY, new=True)
    opened = Path(f"/proc/{exporter.process.pid}/fd")
    with connected(exporter, 20) as idle:
        until(lambda: len(os.listdir(opened)) >= 24, 5, "20 connections")
        limit = len(os.listdir(opened)) - 8  # the oldest connections have lower descriptors than this
        resource.prlimit(exporter.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        for _ in range(5):
            scrape(exporter)
        assert ended(idle) >= 1
    resource.prlimit(exporter.process.pid, resource.RLIMIT_NOFILE, (3, 3))  # not even one connection
    with connected(exporter, 20):
        before = cpu_seconds(exporter)
        time.sleep(3)
        assert cpu_seconds(exporter) - before < 1
    log = exporter.log.read_text()
    assert log.count("cannot accept connections: Too many open files; raise the limit") == 1
    assert log.count("\n") < 60
