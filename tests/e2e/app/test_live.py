"""The live API on a real server: schema, GPUs that are lost and back, the stream, and clients that do not read."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import bcrypt

from gpu_exporter.http.server import CLIENT_SECONDS
from gpu_exporter.live_page.stream import MOST_STREAMS
from tests import ROOT
from tests.conftest import Exporter, Serve, run
from tests.support.fakes.driver import FakeDriver, mig_device
from tests.support.tools import LIMIT, until

SCHEMA = json.loads((ROOT / "gpu_exporter" / "live_page" / "schema.json").read_text())


def check(kind: str, content: Any) -> None:
    """Raise if the content is not as the schema says."""
    validator(kind).validate(content)


@cache
def validator(kind: str) -> Any:
    """Return what checks contents of a kind. The schema is checked once: that takes ten times as long as a content."""
    import jsonschema  # takes seconds, which each worker would pay

    schema = {**SCHEMA, "$ref": f"#/$defs/{kind}"}
    of = jsonschema.validators.validator_for(schema)
    of.check_schema(schema)
    return of(schema)


def gpus(exporter: Exporter, prefix: str = "") -> Mapping[str, Any]:
    """Return the answer of /api/v1/gpus, which agrees with the schema."""
    answer: Mapping[str, Any] = json.loads(exporter.ask("GET", f"{prefix}/api/v1/gpus")[1])
    check("gpus", answer)
    return answer


@contextmanager
def stream(
    exporter: Exporter, path: str = "/api/v1/stream", headers: Mapping[str, str] | None = None
) -> Iterator[HTTPResponse]:
    """Open the stream, or another path."""
    connection = HTTPConnection("127.0.0.1", exporter.port, timeout=LIMIT)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        yield connection.getresponse()
    finally:
        connection.close()


def events(response: HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream, which agree with the schema."""
    kind = ""
    while line := response.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            content = json.loads(value)
            check(kind, content)
            yield kind, content
        if name in ("data", "retry", ""):
            response.readline()  # the empty line that ends an event


def test_what_it_says_of_each_gpu(serve: Serve) -> None:
    """Measurements, class, banner and history of simulated GPUs, one of which hangs with its job."""
    exporter = serve("--source", "simulated", "--gpus", "4", "--inject", "GpuStragglerStarved")

    def with_states() -> Any:
        found = gpus(exporter)
        states = [rank["state"] for job in found["jobs"] for rank in job["ranks"]]
        return found if "waited_for" in states else None

    answer = until(with_states, 60, "a rank that others wait for")
    assert answer["banner"].startswith("These are not your GPUs: simulated")
    assert {each["index"] for each in answer["gpus"]} == {"0", "1", "2", "3"}
    assert all(each["measurements"]["sm_active"] <= 1 for each in answer["gpus"])
    slow = next(rank["id"] for job in answer["jobs"] for rank in job["ranks"] if rank["state"] == "waited_for")
    (entry,) = [each for each in answer["gpus"] if each["id"] == slow]
    assert entry["headline"]["severity"] == "warning"
    assert "GpuStragglerStarved" in [each["name"] for each in entry["findings"]]
    assert entry["headline"]["since"] <= answer["at"]
    told = json.loads(exporter.ask("GET", "/api/v1/incidents")[1])
    check("incidents", told)
    (incident,) = told["incidents"]
    assert incident["cause"] == "GpuStragglerStarved"
    assert [each["UUID"] for each in incident["culprits"]] == [slow]
    assert {each["UUID"] for each in incident["hit"]} == {each["id"] for each in answer["gpus"]} - {slow}
    assert told["lost_gpu_hours_per_hour"] == incident["lost_gpu_hours_per_hour"] > 1

    def history() -> Any:
        found = json.loads(exporter.ask("GET", "/api/v1/history")[1])
        check("history", found)
        return found if all(rows.get("sm_active") for rows in found["gpus"].values()) and found["gpus"] else None

    found = until(history, 30, "the first point of the history")
    assert found["gpus"].keys() == {each["id"] for each in answer["gpus"]}
    assert all(len(row) == found["points"] for rows in found["gpus"].values() for row in rows.values())
    assert found["gpus"][slow]["sm_active"][-1] is not None


def culprits(answer: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Return the UUIDs of the GPUs that cause each incident."""
    return {each["cause"]: [gpu["UUID"] for gpu in each["culprits"]] for each in answer["incidents"]}


def test_it_agrees_with_diagnose(serve: Serve) -> None:
    """Class and findings of each GPU, and incidents, are those that `gpu-exporter diagnose --url` reports."""
    exporter = serve("--source", "simulated", "--gpus", "4", "--inject", "GpuStragglerStarved")

    def shown() -> Mapping[str, tuple[str | None, set[str]]]:
        return {
            each["UUID"]: (each["class"], {finding["name"] for finding in each["findings"]})
            for each in gpus(exporter)["gpus"]
        }

    until(lambda: any(names for _, names in shown().values()), 60, "a finding")
    said = run("diagnose", "--url", f"http://127.0.0.1:{exporter.port}", "--json", "--for", "5s").stdout
    reported = {
        each["UUID"]: (each["class"], {mode["name"] for mode in each["modes"]}) for each in json.loads(said)["gpus"]
    }
    until(lambda: shown() == reported, 60, "the same")
    assert culprits(gpus(exporter)) == culprits(json.loads(said))


def test_a_gpu_that_is_lost_and_back(serve: Serve, tmp_path: Path) -> None:
    """The page says so at once, since when, and what to do; the other GPU is as before. MIG instances have entries."""
    driver = FakeDriver(tmp_path / "driver", 2)
    driver.partition(1, {1: mig_device(1, "1g.18gb"), 2: mig_device(2, "1g.18gb")})
    exporter = serve(env=driver.environment)

    def entry(index: str) -> Any:
        return next(each for each in gpus(exporter)["gpus"] if each["index"] == index)

    until(lambda: entry("0")["health"] == "healthy", 30, "a healthy GPU")
    assert [each["instance"] for each in gpus(exporter)["gpus"]] == ["", "", "1", "2"]
    driver.xid(0, 31)
    until(lambda: [event["xid"] for event in entry("0")["xids"]] == [31], 30, "the XID")
    driver.lose(0)
    lost: Any = until(lambda: not (found := entry("0"))["up"] and found, 30, "the loss")
    until(lambda: entry("0")["headline"]["severity"] == "critical", 30, "the headline")
    assert "bus" in entry("0")["headline"]["words"]
    assert lost["measurements"] == {} or lost["class"] is None
    assert entry("1")["up"]
    driver.restore(0)
    until(lambda: entry("0")["up"], 60, "the GPU")


def test_release_and_resume(serve: Serve, tmp_path: Path) -> None:
    """A released GPU is no fault: its headline says so, it has no numbers, and it is back after `resume`."""
    token = tmp_path / "token"
    exporter = serve("--token-file", str(token), env=FakeDriver(tmp_path / "driver", 1).environment)
    with stream(exporter) as response:
        following = (content["gpus"][0] for kind, content in events(response) if kind == "gpus")
        assert next(entry for entry in following if entry["measurements"])["up"]
        me = {"Authorization": f"Bearer {token.read_text().strip()}"}
        assert exporter.ask("POST", "/-/release", me)[0] == 200
        released = next(entry for entry in following if not entry["up"])
        assert (released["reason"], released["headline"]["severity"]) == ("released", "info")
        assert (released["class"], released["measurements"], released["findings"]) == (None, {}, [])
        assert exporter.ask("POST", "/-/resume", me)[0] == 200
        assert next(entry for entry in following if entry["measurements"])["up"]


def test_the_stream(serve: Serve) -> None:
    """The first event comes at once, further ones once a second, with points of the history; HEAD has no body."""
    exporter = serve("--source", "replay", "--recording", "h200_workloads")
    with stream(exporter) as response:
        assert response.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        times, kinds = [], set()
        for kind, content in events(response):
            kinds.add(kind)
            if kind == "gpus":
                times.append(content["at"])
            if kinds == {"gpus", "point"} and len(times) > 3:
                break
    assert times == sorted(set(times))
    head = HTTPConnection("127.0.0.1", exporter.port, timeout=LIMIT)
    head.request("HEAD", "/api/v1/stream")
    assert head.getresponse().read() == b""
    head.close()


def test_pages_that_do_not_read(serve: Serve) -> None:
    """They are disconnected and block nobody; more than the limit get 503, and a closed one makes room."""
    exporter = serve("--source", "simulated", "--gpus", "8")
    with ExitStack() as stack:
        silent = []
        for _ in range(8):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stack.callback(connection.close)
            connection.connect(("127.0.0.1", exporter.port))
            connection.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
            silent.append(connection)
        with stream(exporter) as response:
            begun, read = time.monotonic(), 0
            for kind, _ in events(response):
                read += kind == "gpus"
                if time.monotonic() - begun > CLIENT_SECONDS / 2 and read > 2:
                    break
        assert exporter.ask("GET", "/metrics")[0] == 200
    opened = []
    with ExitStack() as stack:
        for _ in range(MOST_STREAMS + 1):
            opened.append(stack.enter_context(stream(exporter)).status)
    assert opened.count(503) >= 1
    assert set(opened) <= {200, 503}

    def again() -> bool:
        with stream(exporter) as response:
            return response.status == 200

    until(again, 30, "room for another page")


def test_off(serve: Serve) -> None:
    """Without it there is no history, and /api/v1/gpus has identity, health and owners only."""
    exporter = serve("--source", "simulated", "--gpus", "1", "--live-page", "false")
    (entry,) = json.loads(exporter.ask("GET", "/api/v1/gpus")[1])["gpus"]
    assert "findings" not in entry
    for path in ("/api/v1/history", "/api/v1/stream"):
        assert exporter.ask("GET", path)[0] == 503
        assert "--live-page" in exporter.ask("GET", path)[1]


def test_a_password_is_needed(serve: Serve, tmp_path: Path) -> None:
    """For each path, as for /metrics; one that is wrong opens no stream."""
    config = tmp_path / "web.yaml"
    config.write_text(f"basic_auth_users:\n  me: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}\n")
    exporter = serve("--source", "simulated", "--gpus", "1", "--web-config-file", str(config))
    for path in ("/api/v1/gpus", "/api/v1/history", "/api/v1/stream"):
        for password, status in (("", 401), ("wrong", 401), ("right", 200)):
            given = f"Basic {b64encode(f'me:{password}'.encode()).decode()}"
            with stream(exporter, path, {"Authorization": given} if password else {}) as response:
                assert response.status == status


def test_several_nodes(serve: Serve) -> None:
    """Each node has its own; one is followed from the first request on."""
    exporter = serve("--source", "simulated", "--nodes", "2", "--gpus", "1")
    listed = json.loads(exporter.ask("GET", "/sd")[1])
    prefixes = [each["labels"]["__metrics_path__"].removesuffix("/metrics") for each in listed]
    assert len(prefixes) == 2
    for prefix in prefixes:
        until(partial(_judged, exporter, prefix), 30, "a diagnosis")
    assert [f"/nodes/{gpus(exporter, prefix)['node']}" for prefix in prefixes] == prefixes


def _judged(exporter: Exporter, prefix: str) -> bool:
    return gpus(exporter, prefix)["judged_at"] is not None
