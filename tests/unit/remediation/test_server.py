"""Alertmanager's webhook: who may send, what is accepted, and which nodes it names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_exporter.remediation.metrics import Metrics
from gpu_exporter.remediation.server import MOST_HINTS, Hints, Webhook, nodes_of

TOKEN = "Bearer secret"
FIRING = b'{"alerts": [{"status": "firing", "labels": {"node": "n0"}}]}'


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


def leading(*, leads: bool = True) -> Metrics:
    metrics = Metrics()
    metrics.lead(leads=leads)
    return metrics


def test_a_notification_is_a_hint(token: Path) -> None:
    hints = Hints()
    assert Webhook(leading(), hints, token).answer(TOKEN, FIRING)[0] == 202
    assert hints.wanted.is_set()
    assert hints.take() == {"n0"}
    assert not hints.wanted.is_set()


@pytest.mark.parametrize(
    ("authorization", "body", "status"),
    [("", FIRING, 401), ("Bearer other", FIRING, 401), ("Bearer sécret", FIRING, 401), (TOKEN, b"[]", 400)],
)
def test_what_is_refused(token: Path, authorization: str, body: bytes, status: int) -> None:
    hints = Hints()
    assert Webhook(leading(), hints, token).answer(authorization, body)[0] == status
    assert hints.take() == frozenset()


def test_alertmanager_repeats_what_only_the_leader_can_use(token: Path) -> None:
    """A 5xx is sent again, perhaps to the other controller; a 4xx would be dropped."""
    assert Webhook(leading(leads=False), Hints(), token).answer(TOKEN, FIRING)[0] == 503


def test_without_a_token_nobody_may_send(token: Path) -> None:
    """An empty file is no password."""
    assert Webhook(leading(), Hints(), None).answer(TOKEN, FIRING)[0] == 404
    token.write_text("\n")
    assert Webhook(leading(), Hints(), token).answer("Bearer ", FIRING)[0] == 401
    token.unlink()
    assert Webhook(leading(), Hints(), token).answer(TOKEN, FIRING) == (
        503,
        "the token cannot be read: No such file or directory",
    )
    os.mkfifo(token)
    assert Webhook(leading(), Hints(), token).answer(TOKEN, FIRING)[0] == 503


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
    hints.add(f"n{number}" for number in range(3 * MOST_HINTS))
    assert len(hints.take()) == MOST_HINTS
