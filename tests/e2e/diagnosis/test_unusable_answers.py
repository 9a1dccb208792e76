"""`diagnose --url` on unusable answers: one line and exit code 2, without a finding or a traceback."""

from __future__ import annotations

import gzip
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.cli import diagnose as command
from gpu_exporter.cli.diagnose import Output, print_diagnosis
from gpu_exporter.config import Config
from gpu_exporter.diagnosis import remote_scrapes
from gpu_exporter.diagnosis.request import DiagnosisRequest
from gpu_exporter.http import client
from gpu_exporter.http.client import Remote
from tests.conftest import run
from tests.support.tools import LIMIT

DEADLINE = 1.5
METRICS = "".join(
    f'# TYPE {name} gauge\n{name}{{gpu="0",UUID="GPU-0",modelName="NVIDIA H200"}} {value}\n'
    for name, value in (
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0),
        ("DCGM_FI_PROF_SM_ACTIVE", 0),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 0),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", 0),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", 0),
    )
).encode()
TEXT = "text/plain; version=0.0.4"
ESCAPE = "\x1b]0;owned\x07\x1b[31m"

Answer = Callable[[socket.socket], None]


def raw(content: bytes) -> Answer:
    """Return an answer that sends these bytes and closes."""
    return lambda connection: connection.sendall(content)


def answer(body: bytes, kind: str = TEXT, status: str = "200 OK", *headers: str, length: int | None = None) -> Answer:
    """Return an answer with an HTTP response, whose Content-Length may be wrong."""
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *headers]
    head.append(f"Content-Length: {len(body) if length is None else length}")
    return raw("\r\n".join([*head, "", ""]).encode("latin-1") + body)


def head(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Type: {TEXT}", *lines, "", ""]).encode()


def dripping(content: bytes) -> Answer:
    """Return an answer that sends a byte now and then, for longer than any timeout."""

    def drip(connection: socket.socket) -> None:
        end = time.monotonic() + LIMIT
        with suppress(OSError):
            for place in range(len(content)):
                connection.sendall(content[place : place + 1])
                time.sleep(max(0.0, min(0.2, end - time.monotonic())))

    return drip


def dripping_after(start: bytes, content: bytes) -> Answer:
    """Return an answer that sends its start at once and the rest slowly."""

    def drip(connection: socket.socket) -> None:
        connection.sendall(start)
        dripping(content)(connection)

    return drip


def forever(content: bytes) -> Answer:
    """Return an answer that repeats this without end."""

    def flood(connection: socket.socket) -> None:
        end = time.monotonic() + LIMIT
        with suppress(OSError):
            while time.monotonic() < end:
                connection.sendall(content)

    return flood


def mute(connection: socket.socket) -> None:
    """Send nothing."""
    with suppress(OSError):
        connection.settimeout(LIMIT)
        connection.recv(1)


NOT_FOUND = answer(b"404 page not found\n", TEXT, "404 Not Found")
BUILD_INFO = answer(b'{"status":"success","data":{"version":"3.0.0"}}', "application/json")


class Server:
    """A TCP server that answers a request by its path."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                received = connection.recv(65536)
                if not received:
                    return
                request += received
            path = request.split(b" ")[1].partition(b"?")[0].decode().rpartition("/")[2]
            self.answers.get(path, NOT_FOUND)(connection)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**answers: Answer) -> Server:
        servers.append(Server(**answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in this process: without signal handlers, with short timeouts."""
    monkeypatch.setattr(command, "stop_event", threading.Event)
    monkeypatch.setattr(command, "exit_after", lambda *_: None)
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", DEADLINE)
    monkeypatch.setattr(remote_scrapes, "QUERY_SECONDS", DEADLINE)
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)


def exporter(of: Answer) -> dict[str, Answer]:
    """Return an exporter that answers /metrics so."""
    return {"metrics": of}


def prometheus_api(of: Answer) -> dict[str, Answer]:
    """Return a Prometheus that answers a query so."""
    return {"buildinfo": BUILD_INFO, "query": of}


def result(content: object) -> Answer:
    """Return a matrix with this content."""
    return document({"status": "success", "data": {"resultType": "matrix", "result": content}})


def document(content: object) -> Answer:
    return answer(json.dumps(content).encode(), "application/json")


def text(content: str) -> Answer:
    return answer(content.encode(), "application/json")


LABELS = {"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gpu": "0", "UUID": "GPU-0"}
IDLE: list[dict[str, object]] = [
    {"metric": LABELS | {"__name__": name}, "values": [[1000.0, "0"], [1015.0, "0"]]}
    for name in ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES")
]


def one(metric: object, values: object) -> Answer:
    return result([{"metric": metric, "values": values}])


GOOD = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": IDLE}}).encode()
BOMB = gzip.compress(b"\n" * (1 << 26))
LOGIN = b"<!DOCTYPE html>\n<html><title>Login</title></html>\n"

PROMETHEUS: dict[str, Answer] = {
    "result is a number": result(5),
    "result is null": result(None),
    "result is an object": result({"a": 1}),
    "series are numbers": result([1, 2]),
    "no metric": result([{"values": [[1, "1"]]}]),
    "metric is a list": one(["a"], [[1, "1"]]),
    "label is a number": one({"__name__": "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "UUID": "GPU-0", "gpu": 0}, [[1, "1"]]),
    "values is a number": one(LABELS, 5),
    "value without a time": one(LABELS, [[1]]),
    "value is not a pair": one(LABELS, ["11"]),
    "value is a word": one(LABELS, [[1, "abc"]]),
    "value is a list": one(LABELS, [[1, ["1"]]]),
    "value is a number": one(LABELS, [[1, 1]]),
    "time is a word": one(LABELS, [["now", "1"]]),
    "time is NaN": text(
        json.dumps(
            {
                "status": "success",
                "data": {"resultType": "matrix", "result": [{"metric": LABELS, "values": [[float("nan"), "1"]]}]},
            }
        )
    ),
    "time is infinite": text(GOOD.decode().replace("1000.0", "1e999")),
    "time is implausible": one(LABELS, [[1e300, "1"], [-1e300, "2"]]),
    "vector": document(
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": LABELS, "value": [1, "1"]}]}}
    ),
    "scalar": document({"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}),
    "no data": document({"status": "success"}),
    "data is null": document({"status": "success", "data": None}),
    "a list": document([]),
    "a word": document("success"),
    "nothing": text(""),
    "null": text("null"),
    "deeply nested": text("[" * 100_000),
    "deeply nested in a field": text('{"status":"success","data":' + '{"result":' * 50_000),
    "not UTF-8": answer(GOOD.replace(b"GPU-0", b"GPU-\xff"), "application/json"),
    "cut off": answer(GOOD[: len(GOOD) // 3], "application/json"),
    "shorter than its length": answer(GOOD, "application/json", length=len(GOOD) + 10),
    "an error with status 200": document({"status": "error", "errorType": "timeout", "error": "took too long"}),
    "an error": answer(
        json.dumps({"status": "error", "errorType": "bad_data", "error": f"{ESCAPE}\nbad"}).encode(),
        "application/json",
        "422 Unprocessable Entity",
    ),
    "a warning that samples are missing": document(
        {"status": "success", "data": {"resultType": "matrix", "result": IDLE}, "warnings": ["store is down"]}
    ),
    "a login page": answer(LOGIN, "text/html"),
    "no series": result([]),
    "series without a GPU": one({"__name__": "gpu_up"}, [[1, "1"]]),
    "never answers": mute,
    "gzip bomb": answer(BOMB * 8, "application/json", "200 OK", "Content-Encoding: gzip"),
}
EXPORTER: dict[str, Answer] = {
    "a third of its length": answer(METRICS[: len(METRICS) // 3], length=len(METRICS)),
    "cut off at the end of a line": answer(METRICS[: METRICS.rindex(b"#")], length=len(METRICS)),
    "a chunk is cut off": raw(head("Transfer-Encoding: chunked") + b"%x\r\n" % len(METRICS) + METRICS[:100]),
    "the last chunk is missing": raw(head("Transfer-Encoding: chunked") + b"%x\r\n" % len(METRICS) + METRICS + b"\r\n"),
    "a chunk without a size": raw(head("Transfer-Encoding: chunked") + b"xyz\r\n" + METRICS),
    "ends with the connection": raw(head() + METRICS[: METRICS.rindex(b"#")]),
    "a negative length": raw(head("Content-Length: -5") + METRICS),
    "a length that is a word": raw(head("Content-Length: many") + METRICS[: METRICS.rindex(b"#")]),
    "OpenMetrics without its end": answer(METRICS, "application/openmetrics-text; version=1.0.0"),
    "the last line is cut off": answer(METRICS[:-4]),
    "nothing": answer(b""),
    "a login page": answer(LOGIN, "text/html; charset=utf-8"),
    "a web page that claims to be text": answer(LOGIN),
    "JSON": answer(b'{"a": 1}\n', "application/json"),
    "protobuf": answer(METRICS, "application/vnd.google.protobuf"),
    "not UTF-8": answer(b"\xff\xfe" + METRICS),
    "binary": answer(bytes(range(256)) * 10 + b"\n"),
    "gzip bomb": answer(BOMB, TEXT, "200 OK", "Content-Encoding: gzip"),
    "gzip that is cut off": answer(gzip.compress(METRICS)[:-20], TEXT, "200 OK", "Content-Encoding: gzip"),
    "gzip that is none": answer(METRICS, TEXT, "200 OK", "Content-Encoding: gzip"),
    "an encoding that was not accepted": answer(METRICS, TEXT, "200 OK", "Content-Encoding: br"),
    "moved": answer(b"", TEXT, "301 Moved Permanently", f"Location: https://login/{ESCAPE}"),
    "moved nowhere": answer(b"", TEXT, "302 Found"),
    "moved to itself": answer(b"", TEXT, "308 Permanent Redirect", "Location: /metrics"),
    "401": answer(LOGIN, "text/html", "401 Unauthorized"),
    "403": answer(b"", TEXT, "403 Forbidden"),
    "503": answer(b"no collection since 12:00:00\nsecond line\n", TEXT, "503 Service Unavailable"),
    "500 with escapes": answer(f"{ESCAPE}\n{ESCAPE}".encode(), TEXT, f"500 {ESCAPE}"),
    "204": answer(b"", TEXT, "204 No Content"),
    "another protocol": raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "another protocol with escapes": raw(f"{ESCAPE}\r\n\r\n".encode()),
    "closes at once": raw(b""),
    "closes in its head": raw(b"HTTP/1.1 200 OK\r\nContent-"),
    "endless header": forever(b"x" * 65536),
    "endless headers": raw(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 1000 + b"\r\n"),
    "continues for ever": forever(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "never answers": mute,
    "drips its head": dripping(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 50),
    "drips its body": dripping_after(head("Content-Length: 5000"), b"# " * 500),
    "too many lines": answer(b"#\n" * 600_000),
    "a line that is too long": answer(METRICS + b'x{UUID="' + b"x" * 70_000 + b'"} 1\n'),
    "labels that do not end": answer(METRICS + b'x{UUID="a\n'),
    "a line of braces": answer(b"{}{}{{}}\n" * 5),
    "no GPU": answer(b"up 1\n"),
}
CASES = [(f"Prometheus: {name}", prometheus_api(of)) for name, of in PROMETHEUS.items()]
CASES += [(f"exporter: {name}", exporter(of)) for name, of in EXPORTER.items()]


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a diagnosis wait for answers that a busy machine delays."""
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", LIMIT)
    monkeypatch.setattr(remote_scrapes, "QUERY_SECONDS", LIMIT)


def exit_code_of(server: Server) -> int:
    """Return the exit code of a diagnosis."""
    return print_diagnosis(DiagnosisRequest(Config(), Remote(server.url), 0.01), Output())[0]


@pytest.mark.parametrize("of", [prometheus_api(answer(GOOD, "application/json")), exporter(answer(METRICS))])
def test_good_answer(
    of: dict[str, Answer],
    serving: Callable[..., Server],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The unmodified answers are those of an idle GPU, and nothing else."""
    patient(monkeypatch)
    assert exit_code_of(serving(**of)) == 0
    assert "idle" in capsys.readouterr().out


@pytest.mark.parametrize("of", [pytest.param(of, id=name) for name, of in CASES])
def test_an_unusable_answer(
    of: dict[str, Answer], serving: Callable[..., Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one printable line, before a server ends that is slow or never ends."""
    began = time.monotonic()
    code = exit_code_of(serving(**of))
    took = time.monotonic() - began
    output = capsys.readouterr()

    assert (code, output.out) == (2, "")
    assert output.err.startswith("gpu-exporter: ")
    assert output.err.count("\n") == 1
    assert output.err.strip().isprintable()
    assert len(output.err) < 700
    assert took < LIMIT


HUGE = "9" * 5000


@pytest.mark.parametrize(
    "extra",
    [
        f'DCGM_FI_DEV_FB_USED{{UUID="GPU-0",gpu="0",pod="{ESCAPE}",namespace="a\\nb"}} 1\n',
        f'DCGM_FI_DEV_FB_USED{{UUID="b",gpu="{HUGE}"}} 1\n',
        'DCGM_FI_DEV_FB_USED{UUID="GPU-0",pod="' + "-1" * 20_000 + '"} 1\n',
        f"{m.RENDERED_AT} NaN\n",
        f"{m.RENDERED_AT} 1e300\n",
        "".join(
            f'{name}{{UUID="GPU-0",le="{edge}"}} {value}\n'
            for name in ("gpu_sm_active_ratio_bucket", "gpu_board_power_watts_bucket", "DCGM_FI_DEV_FB_USED")
            for edge in ("NaN", "-Inf", "0.01", "700", "+Inf", "x")
            for value in ("NaN", "1e308", "-1e308", "-5")
        ),
        'DCGM_FI_DEV_PCIE_LINK_GEN{UUID="GPU-0"} 1e300\nDCGM_FI_DEV_PCIE_LINK_WIDTH{UUID="GPU-0"} -1e300\n',
    ],
    ids=["escapes", "a huge number", "a long pod", "no time", "a late time", "no numbers", "no link"],
)
def test_odd_content_of_a_good_answer(
    extra: str, serving: Callable[..., Server], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is judged, and printed without terminal control characters."""
    patient(monkeypatch)
    # 2 if it names another GPU, of which nothing else is known.
    assert exit_code_of(serving(metrics=answer(METRICS + extra.encode()))) in (0, 1, 2)
    output = capsys.readouterr()
    assert output.out.replace("\n", "").isprintable()
    assert output.err == ""


def test_the_same_collection_twice(
    serving: Callable[..., Server], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two scrapes of one collection count as one: they have no rate."""
    patient(monkeypatch)
    extra = "".join(
        f'{name}{{UUID="GPU-0"}} {n}\n' for n, name in enumerate(("DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_USED"))
    )
    server = serving(metrics=answer(METRICS + extra.encode() + f"{m.RENDERED_AT} 1000\n".encode()))
    assert print_diagnosis(DiagnosisRequest(Config(), Remote(server.url), 1.2), Output(every=True))[0] == 0


@pytest.mark.parametrize("name", ["Prometheus: series are numbers", "exporter: cut off at the end of a line"])
def test_the_command(name: str, serving: Callable[..., Server]) -> None:
    """The process exits with the same code."""
    ended = run("diagnose", "--for", "1s", "--url", serving(**dict(CASES)[name]).url)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
