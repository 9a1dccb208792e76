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
from gpu_exporter.remediation import announce
from gpu_exporter.remediation.announce import Announcer, described
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.evidence import Evidence, unknown
from gpu_exporter.remediation.fleet import Assessed, FleetPlan, PoolUse, plan
from gpu_exporter.remediation.ledger import Ledger
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.patches import repair_text
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb, reconcile
from gpu_exporter.remediation.settings import Budget, Exporters, Mode, NodePool, Notify, Settings
from gpu_exporter.remediation.state import WatchedNode
from gpu_exporter.remediation.workload import Eviction, JobLoad
from tests.unit.remediation.test_drain import RANKS, WEB, unit
from tests.unit.remediation.test_reconcile import CLEAN, CORDONED, FAULT, FAULTY, NODE, NOW, STATE

NO_URL, LEDGER = Notify(), Ledger()


class Events:
    """Keeps the Events, and refuses them if `fails`."""

    def __init__(self) -> None:
        self.reasons: list[tuple[str, bool]] = []
        self.events: list[Mapping[str, Any]] = []
        self.fails = False

    def create_event(self, event: Mapping[str, Any], *, dry_run: bool) -> None:
        if self.fails:
            raise LookupFailed("forbidden", "no right")
        self.reasons.append((event["reason"], dry_run))
        self.events.append(event)


class Receiver:
    """A server that answers notifications with a redirect to itself, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status, self.got = 200, list[tuple[str, str]]()
        self.bodies: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                receiver.bodies[-1]["type"] = self.headers["Content-Type"]
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

    def __init__(self, notify: Notify = NO_URL, mode: Mode = Mode.CORDON, *, events: bool = True) -> None:
        self.events, self.lines, self.metrics = Events(), list[Any](), ControllerMetrics()
        self.pool = NodePool("all", mode=mode, budget=Budget(9, 1.0))
        self.announcer = Announcer(
            cast(Cluster, self.events),
            self.metrics,
            notify,
            "me",
            lambda line: self.lines.append(json.loads(line)),
            lambda: NOW,
            events=events,
        )

    def cycle(self, *, faulty: bool, ledger: Ledger = LEDGER) -> None:
        """Announce a cycle with one node, and its action if there is one."""
        node = replace(NODE, name="n0")
        each = Assessed(node, self.pool, reconcile(node, FAULTY if faulty else CLEAN, self.pool, NOW))
        settings = Settings("gpu", Exporters("gpu"), (self.pool,))
        planned = plan([each], ledger, settings, NOW)
        self.announcer.planned([each], planned)
        decision = planned.decisions["n0"]
        if decision.state:
            self.announcer.acted(node, self.pool, decision)


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


def test_without_events() -> None:
    """The right to write them may be missing: nothing is tried, and all else is reported."""
    site = Site(events=False)
    site.events.fails = True
    site.cycle(faulty=True)
    page = site.metrics.text().decode()
    assert "gpu_remediation_errors_total{" not in page
    assert "gpu_remediation_actions_total{" in page
    assert len(site.lines) == 1


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


def test_an_event() -> None:
    """As `kubectl describe node` finds it; a long name of a node is cut, a long message too."""
    site = Site()
    node = replace(NODE, name="n" * 250)
    decision = Decision(Verb.CORDON, Reason.FAULT, "x" * 600)
    site.announcer.acted(node, site.pool, decision)
    site.announcer.acted(node, site.pool, decision)
    assert site.events.events[0] == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{'n' * 200}.{1_700_000_000_000_000:x}1", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name},
        "reason": "GpuCordoned",
        "message": site.events.events[0]["message"],
        "type": "Warning",
        "source": {"component": "gpu-exporter-remediation", "host": "me"},
        "firstTimestamp": "2023-11-14T22:13:20Z",
        "lastTimestamp": "2023-11-14T22:13:20Z",
        "count": 1,
    }
    assert site.events.events[0]["message"].startswith("fault: xxx")
    assert len(site.events.events[0]["message"]) <= 401
    assert site.events.events[1]["metadata"]["name"].endswith("2"), "each has a name of its own"


@pytest.mark.parametrize(
    ("verb", "reason", "kind"),
    [
        (Verb.CORDON, "GpuCordoned", "Warning"),
        (Verb.UPDATE, "GpuRepairUpdated", "Warning"),
        (Verb.RETURN, "GpuReturnedToService", "Normal"),
        (Verb.HOLD, "GpuHeld", "Normal"),
        (Verb.DRAIN, "GpuDrainBegun", "Warning"),
        (Verb.EVICTED, "GpuJobEvicted", "Normal"),
        (Verb.DRAINED, "GpuDrained", "Normal"),
        (Verb.TIMEOUT, "GpuDrainTimedOut", "Warning"),
    ],
)
def test_events_of_actions(verb: Verb, reason: str, kind: str) -> None:
    site = Site()
    for _ in range(2):
        site.announcer.acted(NODE, site.pool, Decision(verb, Reason.FAULT, "why"))
    assert [(event["reason"], event["type"]) for event in site.events.events] == [(reason, kind)] * 2
    name = f'gpu_remediation_actions_total{{mode="cordon",pool="all",verb="{verb.value}"}} 2.0'
    assert name in site.metrics.text().decode()


@pytest.mark.parametrize(
    ("node", "evidence", "events"),
    [
        (NODE, unknown("gone"), []),
        (CORDONED, unknown("gone"), ["GpuWaiting"]),
        (NODE, replace(FAULTY, faults=(replace(FAULT, age=1.0),)), []),
        (replace(NODE, unschedulable=True), FAULTY, ["GpuWaiting"]),
        (CORDONED, FAULTY, ["GpuWaiting"]),
        (CORDONED, CLEAN, []),
        (replace(CORDONED, labels={"gpu-exporter.io/remediation": "disabled"}), FAULTY, []),
    ],
)
def test_what_a_node_waits_for_is_an_event(node: WatchedNode, evidence: Evidence, events: list[str]) -> None:
    """If it is faulty or cordoned, and nothing is as usual."""
    site = Site()
    each = Assessed(node, site.pool, reconcile(node, evidence, site.pool, NOW))
    site.announcer.planned([each], plan([each], LEDGER, Settings("gpu", Exporters("gpu"), (site.pool,)), NOW))
    assert site.events.reasons == [(reason, False) for reason in events]
    if events:
        assert site.events.events[0]["message"] == f"{each.decision.reason.value}: {each.decision.words}"
        assert site.events.events[0]["type"] == "Normal"


def test_only_what_is_new_is_news() -> None:
    """Another reason, another fault, and a node that was gone in between."""
    site = Site()
    settings = Settings("gpu", Exporters("gpu"), (site.pool,))

    def cycle(*found: tuple[WatchedNode, Evidence]) -> int:
        before = len(site.lines)
        assessed = [Assessed(node, site.pool, reconcile(node, evidence, site.pool, NOW)) for node, evidence in found]
        site.announcer.planned(assessed, plan(assessed, LEDGER, settings, NOW))
        return len(site.lines) - before

    other = replace(CORDONED, state=replace(STATE, fault="other"))
    lost = replace(FAULTY, faults=(replace(FAULT, reason="lost"),))
    assert [cycle((CORDONED, FAULTY)) for _ in range(2)] == [1, 0]
    assert [cycle((other, FAULTY)) for _ in range(2)] == [1, 0]
    assert [cycle((other, lost)) for _ in range(2)] == [1, 0]
    assert [cycle((other, lost), (replace(NODE, name="m"), CLEAN)) for _ in range(2)] == [1, 0]
    assert cycle() == 0
    assert cycle((other, lost)) == 1


def test_observe_mode_reports_again_what_changed_in_between() -> None:
    site = Site(mode=Mode.OBSERVE)
    decision = Decision(Verb.CORDON, Reason.FAULT, "why")
    settings = Settings("gpu", Exporters("gpu"), (site.pool,))
    for number in range(3):
        evidence = replace(FAULTY, faults=(replace(FAULT, reason=f"fault-{number // 2}"),))
        each = Assessed(NODE, site.pool, reconcile(NODE, evidence, site.pool, NOW))
        site.announcer.planned([each], plan([each], LEDGER, settings, NOW))
        site.announcer.acted(NODE, site.pool, decision)
        site.announcer.acted(NODE, site.pool, decision)
    assert site.events.reasons == [("GpuWouldCordoned", True)] * 2


def test_evictions_are_reported() -> None:
    """Each in a line and in the metrics; those that went in one Event, which names ten of them."""
    site = Site()
    results = [Eviction(f"team/p{n}", f"u{n}", "evicted" if n else "gone") for n in range(12)]
    refused = Eviction("team/q", "uq", "disruption_budget")
    site.announcer.evicted(NODE, site.pool, [*results, refused])
    about = {"at": NOW, "node": "n", "pool": "all", "mode": "cordon", "verb": "evict"}
    assert site.lines[-1] == {**about, "pod": "team/q", "uid": "uq", "result": "disruption_budget"}
    assert len(site.lines) == 13
    (event,) = site.events.events
    assert (event["reason"], event["type"]) == ("GpuEvicted", "Normal")
    assert event["message"] == ", ".join(f"team/p{n}" for n in range(10)) + " and 2 more"
    text = site.metrics.text().decode()
    assert 'gpu_remediation_evictions_total{mode="cordon",pool="all",result="evicted"} 11.0' in text
    site.announcer.evicted(NODE, site.pool, results[:10])
    assert site.events.events[-1]["message"].endswith("team/p9")
    site.announcer.evicted(NODE, site.pool, [refused])
    assert len(site.events.events) == 2


def test_what_the_webhook_sends(receiver: Receiver) -> None:
    """Actions that change a node; nothing in observe mode, and nothing without a URL."""
    site = Site(Notify(f"{receiver.url}/notify"))
    before = repair_text(STATE, replace(FAULTY, faults=(replace(FAULT, reason="lost"),)))
    state = replace(STATE, faults=(("GPU-1", "stalled"), ("GPU-1", "lost")))
    node = replace(NODE, annotations={"gpu-exporter.io/repair": before})
    decision = Decision(Verb.UPDATE, Reason.NEW_FAULT, "why", state, FAULTY)
    site.announcer.acted(node, site.pool, decision)
    assert receiver.bodies == [
        {
            "node": "n",
            "pool": "all",
            "verb": "update",
            "reason": "new_fault",
            "words": "why",
            "repair": json.loads(repair_text(state, FAULTY, before)),
            "type": "application/json",
        }
    ]
    assert [gpu["reason"] for gpu in receiver.bodies[0]["repair"]["gpus"]] == ["stalled", "lost"]
    assert receiver.got == [("/notify", "")]
    site.announcer.acted(node, replace(site.pool, mode=Mode.OBSERVE), decision)
    site.announcer.acted(node, site.pool, replace(decision, state=None))
    assert len(receiver.bodies) == 1


def test_a_refused_action_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    site = Site()
    site.announcer.failed(NODE, LookupFailed("http_400", "denied"))
    assert 'gpu_remediation_errors_total{reason="http_400"} 1.0' in site.metrics.text().decode()
    assert "node n: denied" in caplog.text


def test_a_decision_with_all_its_inputs() -> None:
    ranks = unit(*RANKS)
    load = JobLoad((WEB, replace(ranks, protected="kept")), refused={ranks.key: "429"})
    evidence = replace(FAULTY, faults=(replace(FAULT, age=1.26),), why="why", clean_for=2.34)
    decision = Decision(Verb.EVICT, Reason.FAULT, "words", None, evidence, load)
    each = Assessed(replace(CORDONED, ready=False), NodePool("all", mode=Mode.DRAIN), decision)
    rank = {"on": "n", "terminating": False, "protected": "kept", "refused": "429"}
    assert described(each, decision, FleetPlan({}, {"b": 1.0, "a": 2.0}, {"all": PoolUse(9, 2, 3)}), NOW + 0.12345) == {
        "at": NOW + 0.123,
        "node": "n",
        "pool": "all",
        "mode": "drain",
        "verb": "evict",
        "reason": "fault",
        "words": "words",
        "evidence": {
            "finding": "faulty",
            "why": "why",
            "boot": "b1",
            "clean_for": 2.3,
            "faults": [{"uuid": "GPU-1", "reason": "stalled", "action": "node_reboot", "age": 1.3}],
        },
        "unschedulable": True,
        "foreign": False,
        "ready": False,
        "state": json.loads(STATE.text()),
        "pods": [
            {"pod": "team/p", "uid": "p", "on": "n", "terminating": False, "protected": "", "refused": ""},
            {"pod": "team/r0", "uid": "r0", **rank},
            {"pod": "team/r1", "uid": "r1", **rank, "on": "m"},
        ],
        "budget": {"nodes": 9, "out_of_service": 2, "limit": 3},
        "breaker": ["a", "b"],
    }
    bare = described(
        replace(each, node=NODE), replace(decision, load=None), FleetPlan({}, {}, {"all": PoolUse(9, 2, 3)}), NOW
    )
    assert (bare["state"], bare["pods"]) == (None, [])


def test_a_decision_names_ten_pods_of_a_job() -> None:
    many = replace(unit(*RANKS), pods=RANKS * 6)
    decision = Decision(Verb.NONE, Reason.PODS_END, "", load=JobLoad((many,)))
    each = Assessed(NODE, NodePool("all"), decision)
    assert len(described(each, decision, FleetPlan({}, {}, {"all": PoolUse(9, 2, 3)}), NOW)["pods"]) == 10


def test_a_decision_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        announce.write_line('{"why": "100%s"}')
    assert caplog.messages == ['{"why": "100%s"}']
