"""HTTP: formats, error responses, and clients that are slow, silent, hostile or many."""

from __future__ import annotations

import gzip
import json
import re
import select
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser

from gpu_exporter.app.handlers import OPENMETRICS
from gpu_exporter.app.routes import ROUTES, Needs
from gpu_exporter.http.admission import Admission
from gpu_exporter.http.handler import TEXT
from gpu_exporter.http.server import CLIENT_SECONDS
from tests.conftest import Exporter, Page, Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT, until

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
MIB = 1 << 20
# The answer to GET does not end; tests/e2e/app/test_live.py has its HEAD.
ENDLESS = "/api/v1/stream"
OF_PROFILES = ("/api/v1/profiles", "/debug/pprof/wall")


def of_one_page(serve: Serve) -> Exporter:
    """Serve a replay that makes only one page, so that two scrapes get the same values."""
    exporter = serve("--source", "replay", "--recording", "h200_workloads", "--interval", "1h")
    exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_GPU_TEMP")))
    return exporter


@pytest.fixture(scope="module")
def shared(serve_module: Serve) -> Exporter:
    """The exporter of all requests that are answered at once."""
    return of_one_page(serve_module)


@pytest.fixture
def exporter(serve: Serve) -> Exporter:
    """A new exporter, for tests of its memory and connections."""
    return of_one_page(serve)


def ask(exporter: Exporter, method: str, path: str, body: bytes | None = None) -> tuple[HTTPResponse, bytes]:
    """Send a request of any method."""
    connection = HTTPConnection("127.0.0.1", exporter.port, timeout=LIMIT)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@contextmanager
def connected(exporter: Exporter, count: int = 1) -> Iterator[list[socket.socket]]:
    """Open connections."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", exporter.port), timeout=LIMIT))
            for _ in range(count)
        ]


def rest(connection: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def ended(connections: Iterable[socket.socket]) -> int:
    """Count the silent connections that the server has closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN | select.POLLRDHUP)
    return len(poll.poll(0))


def resident(exporter: Exporter) -> float:
    """Return the resident memory of the exporter in MiB."""
    lines = Path(f"/proc/{exporter.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def assert_served(exporter: Exporter) -> None:
    """Scrape on a new connection."""
    assert exporter.page().values("gpu_up") == [1.0]


def first_ended(connections: Iterable[socket.socket]) -> float:
    """Wait until the server closes one of these silent connections; return when that was."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN | select.POLLRDHUP)
    assert poll.poll(LIMIT * 1000), "the server closed none"
    return time.monotonic()


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0", OPENMETRICS),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text;version=nonsense", TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0,text/plain", TEXT),
        ("application/openmetrics-text;version=", OPENMETRICS),
        (",;=;q=\xff,,", TEXT),
    ],
)
def test_accept(shared: Exporter, accept: str | None, expected: str) -> None:
    """The response has the requested format: OpenMetrics 1.0 if the header asks for it, else text."""
    answer, body = shared.get(headers={} if accept is None else {"Accept": accept})
    assert (answer.status, answer.headers["Content-Type"]) == (200, expected)
    assert body.endswith(b"\n# EOF\n") == (expected == OPENMETRICS)
    assert {"Accept", "Accept-Encoding"} <= set(answer.headers["Vary"].split(", "))


@pytest.mark.parametrize("source", ["replay", "fake driver"])
def test_both_formats_have_the_same_samples(serve: Serve, driver: FakeDriver, source: str) -> None:
    """Names, labels and values of every sample are the same in text and in OpenMetrics, which parses strictly."""
    replay = ("--source", "replay", "--recording", "h200_workloads")
    exporter = serve(
        "--interval", "1h", "--metrics", "full", *(replay if source == "replay" else ()), env=driver.environment
    )
    text = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_GPU_TEMP"))).text
    openmetrics = exporter.get(headers={"Accept": PROMETHEUS_2})[1].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in openmetrics.splitlines() if not line.startswith("#")] == lines
    # prometheus_client's text parser renames counters without _total; its OpenMetrics parser does not.
    families = parser.text_string_to_metric_families(openmetrics)  # type: ignore[no-untyped-call]
    parsed = [(sample.name, sample.value) for family in families for sample in family.samples]
    assert parsed == [(re.split("[{ ]", line)[0], float(line.rpartition(" ")[2])) for line in lines]


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [
        (None, False),
        ("identity", False),
        ("br, deflate", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0, identity", False),
        ("*;q=0", False),
    ],
)
@pytest.mark.parametrize("accept", ["text/plain", PROMETHEUS_2])
def test_accept_encoding(shared: Exporter, accept: str, accepted: str | None, zipped: bool) -> None:
    """gzip is used only if the client accepts it, and has the same content."""
    plain = shared.get(headers={"Accept": accept, "Accept-Encoding": "identity"})[1]
    answer, body = shared.get(headers={"Accept": accept, **({} if accepted is None else {"Accept-Encoding": accepted})})
    assert answer.headers["Content-Encoding"] == ("gzip" if zipped else None)
    assert (gzip.decompress(body) if zipped else body) == plain


@pytest.mark.parametrize(
    "path", [route.path for route in ROUTES if route.needs is Needs.NODE and route.path != ENDLESS]
)
def test_head(shared: Exporter, path: str) -> None:
    """HEAD has the same status and headers as GET, and no body. Profiles are off."""
    (head, nothing), (get, body) = ask(shared, "HEAD", path), ask(shared, "GET", path)
    assert (head.status, nothing) == (get.status, b"")
    assert get.status == (404 if path in OF_PROFILES else 200)
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert int(head.headers["Content-Length"]) == len(body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/metrics/", 404),
        ("GET", "//metrics", 404),
        ("GET", "/foo/metrics", 404),
        ("GET", "/foo/", 404),
        ("GET", "/nodes//metrics", 404),
        ("GET", "/nodes/other/metrics", 404),
        ("GET", "/api/v1/health", 404),
        ("GET", "/api/v1/", 404),
        ("GET", "/sd", 404),
        ("POST", "/-/nowhere", 404),
        ("GET", "/-/quit", 405),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/%ff%00", 404),
        ("POST", "/nowhere", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/healthz", 405),
        ("DELETE", "/", 405),
        ("OPTIONS", "/metrics", 405),
        ("TRACE", "/metrics", 405),
    ],
)
def test_refusals_are_short_plain_text(shared: Exporter, method: str, path: str, status: int) -> None:
    """Wrong paths and methods get one line of plain text that does not reveal the software underneath."""
    answer, body = ask(shared, method, path)
    assert answer.status == status
    assert (answer.headers["Content-Type"].split(";")[0], answer.headers["Server"]) == ("text/plain", "gpu-exporter")
    assert body.startswith(str(status).encode())
    assert len(body) < 100
    assert body.count(b"\n") == 1


def test_health_and_page(shared: Exporter) -> None:
    """The health checks answer ok. The page for people links to the paths."""
    for path in ("/healthz", "/health", "/readyz"):
        answer, body = shared.get(path)
        assert (answer.status, body) == (200, b"ok\n")
    answer, body = shared.get("/")
    assert answer.headers["Content-Type"].startswith("text/html")
    for part in (b'href="metrics"', b'href="healthz"', b'src="static/page.js"'):
        assert part in body


def test_names_from_outside_are_escaped(serve: Serve, tmp_path: Path) -> None:
    """A GPU name with markup, quotes and backslashes breaks neither the metrics nor the JSON."""
    name, path = '<b>"\\n\\</b>', tmp_path / "named.jsonl"
    gpu = {"gpu": 0, "UUID": "GPU-0", "modelName": name}
    header = {"format": "gpu-exporter-recording", "version": 1, "interval_seconds": 1, "gpus": [gpu]}
    tick = {"t": 1, "gpu": 0, "samples": {"DCGM_FI_DEV_GPU_TEMP": 40}}
    path.write_text(f"{json.dumps(header)}\n{json.dumps(tick)}\n")
    exporter = serve("--source", "replay", "--recording", str(path), "--interval", "200ms")
    page = exporter.until(lambda page: bool(page.values("DCGM_FI_DEV_GPU_TEMP")))
    assert page.values("DCGM_FI_DEV_GPU_TEMP", modelName=name) == [40]
    assert json.loads(exporter.get("/api/v1/gpus")[1])["gpus"][0]["modelName"] == name


def test_not_ready_after_the_recording(serve: Serve, tmp_path: Path) -> None:
    """After the end of the recording, the exporter is not ready, but alive, so that nothing restarts it."""
    out = tmp_path / "short.jsonl"
    header = {"format": "gpu-exporter-recording", "version": 1, "interval_seconds": 1, "gpus": [{"gpu": 0}]}
    ticks = [{"t": t, "gpu": 0, "samples": {"DCGM_FI_DEV_GPU_TEMP": 40}} for t in (1, 2)]
    out.write_text("".join(json.dumps(line) + "\n" for line in (header, *ticks)))
    exporter = serve("--source", "replay", "--recording", str(out), "--loop", "false", "--interval", "200ms")
    exporter.until(lambda page: page.values("gpu_down_reason", reason="ended") == [1])
    until(lambda: exporter.get("/readyz")[0].status == 503, what="/readyz' refusal")
    assert b"no GPU has been read" in exporter.get("/readyz")[1]
    assert exporter.get("/healthz")[0].status == 200


@pytest.mark.parametrize(
    "flood",
    [
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (10 * MIB) + bytes(10 * MIB),
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"10000\r\n%b\r\n" % bytes(65536) * 160,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * MIB + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200_000 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"a" * 10 * MIB,
    ],
    ids=["body", "chunks", "header", "headers", "url", "no line end"],
)
def test_floods_are_refused(exporter: Exporter, flood: bytes) -> None:
    """Requests that are far too large are cut off, five times in a row, and use no memory."""
    before = resident(exporter)
    for _ in range(5):
        with connected(exporter) as (connection,):
            with suppress(ConnectionError):  # it was cut off while the test was still sending
                connection.sendall(flood)
            answer = rest(connection)
            refused = (b"400", b"405", b"413", b"414", b"431")
            assert answer[:12] in (b"", *(b"HTTP/1.1 %b" % status for status in refused))
    assert resident(exporter) - before < 20
    assert_served(exporter)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\r\n\r\n\r\n",
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(range(256)),
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET http://[::1/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\x00\xfe\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data\r\nContent-Length: 1\r\n\r\na",
    ],
)
def test_garbage(shared: Exporter, garbage: bytes) -> None:
    """Input that is not HTTP is refused as the client's mistake, without an effect on others."""
    with connected(shared) as (connection,):
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection)[:10] in (b"", b"HTTP/1.1 4")
    assert_served(shared)
    assert "Traceback" not in shared.log.read_text()


def test_idle_connections_are_closed(exporter: Exporter) -> None:
    """Silent connections delay no scrape, and are closed after the timeout, not before."""
    begin = time.monotonic()
    with connected(exporter, Admission().share - 5) as idle:
        assert_served(exporter)
        assert first_ended(idle) - begin > CLIENT_SECONDS - 0.5
        assert {rest(connection) for connection in idle} == {b""}


def test_one_byte_a_second(exporter: Exporter) -> None:
    """A client that sends its request byte by byte is disconnected in time, and delays no other."""
    begin = time.monotonic()
    with connected(exporter) as (slow,):
        for byte in REQUEST:
            slow.send(bytes([byte]))
            assert_served(exporter)
            if select.select([slow], [], [], 1)[0]:
                break
        else:
            raise AssertionError("it could send its whole request")
        assert rest(slow) == b""
    assert time.monotonic() - begin > CLIENT_SECONDS - 0.5


def test_never_reads_the_answer(exporter: Exporter) -> None:
    """A client that sends thousands of requests and reads nothing is disconnected, and uses neither time nor memory."""
    before = resident(exporter)
    with connected(exporter) as (deaf,):
        deaf.settimeout(1)
        with pytest.raises(TimeoutError):
            deaf.sendall(REQUEST * 200_000)
        assert_served(exporter)
        poll = select.poll()
        poll.register(deaf, select.POLLRDHUP)
        assert poll.poll(LIMIT * 1000), "was never cut off"
    assert resident(exporter) - before < 20
    assert_served(exporter)


def test_parallel_scrapers(serve: Serve, tmp_path: Path) -> None:
    """Ten parallel scrapers get complete responses of a large node while it collects."""
    # On a busy machine, values that are read often are now and then too old to be served.
    exporter = serve("--metrics", "full", "--interval", "4s", env=FakeDriver(tmp_path / "driver", 8).environment)
    whole = len(exporter.until(lambda page: len(page.values("gpu_sm_active_seconds_total")) == 8).samples)

    def scrape(turn: int) -> Page:
        """One page, in one of two formats, zipped or not."""
        headers = {"Accept": PROMETHEUS_2 if turn % 2 else "*/*", "Accept-Encoding": "gzip" if turn % 3 else "identity"}
        answer, body = exporter.get(headers=headers)
        text = (gzip.decompress(body) if answer.headers["Content-Encoding"] == "gzip" else body).decode()
        assert text.endswith("\n# EOF\n" if turn % 2 else "\n")
        return Page(text)

    pages: list[Page] = []
    with ThreadPoolExecutor(10) as scrapers:
        while len({str(page.values("gpu_sm_active_seconds_total")) for page in pages}) < 2:  # two collections
            pages += scrapers.map(scrape, range(40))
    assert {len(page.samples) >= whole for page in pages} == {True}
    assert {len(page.values("gpu_up")) for page in pages} == {8}


def test_unread_refusals_hold_no_connection(exporter: Exporter) -> None:
    """A client that pipelines refused requests and reads nothing is disconnected like any other."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", exporter.port))
        client.settimeout(0.5)

        def cut() -> bool:
            try:
                client.send(b"BREW /zz HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        until(cut, what="the end of the connection", every=0)
    assert exporter.get("/healthz")[0].status == 200
