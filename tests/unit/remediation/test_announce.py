"""What people are notified of, and how often; a notification that fails stops nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation.announce import Announcer
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.fleet import Assessed, plan
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.metrics import Metrics
from gpu_exporter.remediation.reconcile import reconcile
from gpu_exporter.remediation.settings import Budget, Exporters, Mode, Notify, Pool, Settings
from tests.unit.remediation.test_reconcile import CLEAN, FAULTY, NODE, NOW

NO_URL, LEDGER = Notify(), Ledger()


class Events:
    """Keeps the Events, and refuses them if `fails`."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, bool]] = []
        self.fails = False

    def create_event(self, event: Mapping[str, Any], *, dry_run: bool) -> None:
        if self.fails:
            raise LookupFailed("forbidden", "no right")
        self.reasons.append((event["reason"], dry_run))


class Receiver:
    """A server that answers notifications with a redirect to itself, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status, self.got = 200, list[tuple[str, str]]()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer()

            def do_GET(self) -> None:
                self._answer()

            def _answer(self) -> None:
                receiver.got.append((self.path, self.headers.get("Authorization", "")))
                self.send_response(receiver.status)
                self.send_header("Location", f"{receiver.url}/other")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.server.shutdown()
    running.server.server_close()


class Site:
    """An announcer and what it says."""

    def __init__(self, notify: Notify = NO_URL, mode: Mode = Mode.CORDON) -> None:
        self.events, self.lines, self.metrics = Events(), list[Any](), Metrics()
        self.pool = Pool("all", mode=mode, budget=Budget(9, 1.0))
        self._announcer = Announcer(
            cast(Cluster, self.events), self.metrics, notify, "me", lambda line: self.lines.append(json.loads(line))
        )

    def cycle(self, *, faulty: bool, ledger: Ledger = LEDGER) -> None:
        """Announce a cycle with one node, and its action if there is one."""
        node = replace(NODE, name="n0")
        each = Assessed(node, self.pool, reconcile(node, FAULTY if faulty else CLEAN, self.pool, NOW))
        settings = Settings("gpu", Exporters("gpu"), (self.pool,))
        planned = plan([each], ledger, settings, NOW)
        self._announcer.planned([each], planned)
        decision = planned.decisions["n0"]
        if decision.state:
            self._announcer.acted(node, self.pool, decision)


def test_observe_mode_announces_an_action_once() -> None:
    """Nothing ever changes the node, so the same dry run is repeated in each cycle: that is not news."""
    site = Site(mode=Mode.OBSERVE)
    for faulty in (True, True, True, False, True, True):
        site.cycle(faulty=faulty)
    assert site.events.reasons == [("GpuWouldCordoned", True)] * 2
    assert 'gpu_remediation_actions_total{mode="observe",pool="all",verb="cordon"} 2.0' in site.metrics.text().decode()
    assert [(line["verb"], line["reason"]) for line in site.lines] == [
        ("cordon", "fault"),
        ("none", "healthy"),
        ("cordon", "fault"),
    ]


def test_what_stops_an_action_is_reported_once() -> None:
    """As an Event on the node, with the reason."""
    site = Site()
    for _ in range(3):
        site.cycle(faulty=True, ledger=Ledger(paused="driver rollout"))
    assert site.events.reasons == [("GpuWaiting", False)]
    assert [line["words"] for line in site.lines] == ["paused: driver rollout"]


def test_an_event_that_cannot_be_written_is_counted() -> None:
    """The action itself has happened."""
    site = Site()
    site.events.fails = True
    site.cycle(faulty=True)
    assert 'gpu_remediation_errors_total{reason="event_forbidden"} 1.0' in site.metrics.text().decode()


def test_a_redirect_does_not_get_the_token(receiver: Receiver, tmp_path: Path) -> None:
    """It is an error, which is counted."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    site = Site(Notify(f"{receiver.url}/notify", str(token)))
    site.cycle(faulty=True)
    assert receiver.got == [("/notify", "Bearer secret")]
    receiver.status = 302
    site.cycle(faulty=True)
    assert receiver.got == [("/notify", "Bearer secret")] * 2
    assert 'gpu_remediation_errors_total{reason="notify"} 1.0' in site.metrics.text().decode()


def test_an_unreadable_token_stops_nothing(receiver: Receiver, tmp_path: Path) -> None:
    site = Site(Notify(receiver.url, str(tmp_path / "missing")))
    site.cycle(faulty=True)
    assert receiver.got == []
    assert site.events.reasons == [("GpuCordoned", False)]
    assert 'gpu_remediation_errors_total{reason="notify"} 1.0' in site.metrics.text().decode()
