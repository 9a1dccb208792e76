"""Alertmanager's webhook: who may send, what is accepted, and which nodes it names; and the server's other paths."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from itertools import count
from pathlib import Path

import pytest

from gpu_exporter.http.server import Server
from gpu_exporter.io.user_text import Address
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.server import TOKEN_SECONDS, Hints, Recent, Webhook, controller_server, nodes_of
from tests.support.tools import PATIENCE

TOKEN = "Bearer secret"
FIRING = b'{"alerts": [{"status": "firing", "labels": {"node": "n0"}}]}'


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def leading(*, leads: bool = True) -> ControllerMetrics:
    metrics = ControllerMetrics()
    metrics.lead(leads=leads)
    return metrics


def answered(webhook: Webhook, authorization: str = TOKEN, body: bytes = FIRING) -> tuple[int, str]:
    """Return the status and the text for a notification."""
    return webhook.refuse(authorization) or webhook.take(body)


def test_a_notification_is_a_hint(token: Path) -> None:
    hints = Hints()
    assert answered(Webhook(leading(), hints, token))[0] == 202
    assert hints.wanted.is_set()
    assert hints.take() == {"n0"}
    assert not hints.wanted.is_set()


@pytest.mark.parametrize(
    ("authorization", "body", "status"),
    [
        ("", FIRING, 401),
        ("secret", FIRING, 401),
        ("Bearer other", FIRING, 401),
        ("Bearer sécret", FIRING, 401),
        (TOKEN, b"[]", 400),
    ],
)
def test_what_is_refused(token: Path, authorization: str, body: bytes, status: int) -> None:
    hints = Hints()
    assert answered(Webhook(leading(), hints, token), authorization, body)[0] == status
    assert hints.take() == frozenset()


def test_alertmanager_repeats_what_only_the_leader_can_use(token: Path) -> None:
    """A 5xx is sent again, perhaps to the other controller; a 4xx would be dropped."""
    assert answered(Webhook(leading(leads=False), Hints(), token))[0] == 503


def test_without_a_token_nobody_may_send(token: Path) -> None:
    """An empty file is no password."""
    assert answered(Webhook(leading(), Hints(), None))[0] == 404
    webhook = Webhook(leading(), Hints(), token, clock=count(0.0, TOKEN_SECONDS).__next__)
    token.write_text("x" * 5000)
    assert answered(webhook, f"Bearer {'x' * 5000}")[0] == 503
    token.write_text("\n")
    assert answered(webhook, "Bearer ")[0] == 401
    token.unlink()
    assert answered(webhook) == (503, "the token cannot be read: No such file or directory")
    os.mkfifo(token)
    assert answered(webhook)[0] == 503


def test_what_is_recent_is_not_made_again() -> None:
    """Neither a value nor an error, until the time is over; then it is new."""
    now, made = [0.0], list[float]()

    def make() -> float:
        made.append(now[0])
        if now[0] == 2.0:
            raise TimeoutError("late")
        return now[0]

    recent = Recent(make, 1.0, lambda: now[0])
    assert [recent.get(), recent.get()] == [0.0, 0.0]
    now[0] = 2.0
    for _ in range(2):
        with pytest.raises(TimeoutError, match="late") as caught:
            recent.get()
        assert len(caught.traceback) == 2
    now[0] = 3.0
    assert (recent.get(), made) == (3.0, [0.0, 2.0, 3.0])


def test_resolved_alerts_name_no_node() -> None:
    """The port of `instance` is not a part of the name; a label may be missing."""
    alerts = [
        {"status": "firing", "labels": {"instance": "n0:9400"}},
        {"status": "firing", "labels": {"Hostname": "n1", "node": "n2"}},
        {"status": "resolved", "labels": {"node": "n3"}},
        {"status": "firing"},
    ]
    assert nodes_of(json.dumps({"alerts": alerts}).encode()) == {"n0", "n1", "n2"}


def test_a_storm_of_hints_is_bounded() -> None:
    """The next full cycle sees the others."""
    hints = Hints()
    hints.add([])
    assert not hints.wanted.is_set()
    hints.add(f"n{number}" for number in range(700))
    assert len(hints.take()) == 256


@pytest.fixture
def server(token: Path) -> Iterator[Server]:
    running = controller_server(Address("127.0.0.1", 0), leading(), Hints(), token)
    running.start()
    yield running
    running.stop()


def answer(
    server: Server,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] = {"Authorization": TOKEN},
) -> tuple[int, str]:
    """Return status and body of a response, of which the headers are checked."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10 * PATIENCE)
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    assert response.headers["Server"] == "gpu-exporter"
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return response.status, text


def test_paths(server: Server) -> None:
    """The webhook is a POST of at most 256 KiB, and its responses are counted."""
    assert answer(server, "GET", "/healthz") == (200, "ok\n")
    assert answer(server, "POST", "/webhook", FIRING) == (202, "accepted\n")
    assert answer(server, "GET", "/webhook") == (405, "405 Method Not Allowed\n")
    assert answer(server, "GET", "/") == (404, "404 Not Found\n")
    assert answer(server, "POST", "/webhook", b"x" * (1 << 18))[0] == 400
    assert answer(server, "POST", "/webhook", b"x" * ((1 << 18) + 1))[0] == 413
    status, text = answer(server, "GET", "/metrics")
    assert status == 200
    for code in ("202", "400"):
        assert f'gpu_remediation_webhooks_total{{code="{code}"}} 1.0' in text


def test_the_token_is_checked_before_the_body_is_read(server: Server) -> None:
    """The answer comes although the body does not, and is counted."""
    status, text = answer(server, "POST", "/webhook", headers={"Content-Length": "250000"})
    assert (status, text.partition(":")[0]) == (401, "needs the token of webhook_token_file")
    assert 'gpu_remediation_webhooks_total{code="401"} 1.0' in answer(server, "GET", "/metrics")[1]


def test_an_address_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting of the controller."""

    def bind(port: int, host: str | None, backlog: int) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr("gpu_exporter.http.server.bind_sockets", bind)
    why = "address :9401 is in use, perhaps by another controller; choose another one with `address` in --config"
    with pytest.raises(GpuExporterError, match=f"^{why}$"):
        controller_server(Address("", 9401), ControllerMetrics(), Hints(), None)
