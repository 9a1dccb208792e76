"""Makes decisions visible: a line of JSON on stdout, a Kubernetes Event, metrics, and the outgoing webhook."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import FileWorker, read
from gpu_exporter.kubernetes.writer import FIELD_MANAGER
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation.cluster import Cluster
from gpu_exporter.remediation.evidence import NodeFinding
from gpu_exporter.remediation.fleet import Assessed, FleetPlan
from gpu_exporter.remediation.ledger import stamp
from gpu_exporter.remediation.metrics import ControllerMetrics
from gpu_exporter.remediation.patches import repair_text
from gpu_exporter.remediation.reconcile import Decision, Reason, Verb
from gpu_exporter.remediation.settings import MOST_TOKEN_BYTES, NodePool, Notify
from gpu_exporter.remediation.state import REPAIR, WatchedNode
from gpu_exporter.remediation.workload import Eviction, JobLoad
from gpu_exporter.reports.numbers import first_of

log = logging.getLogger(__name__)
decisions = logging.getLogger("gpu_exporter.remediation.decisions")

NOTIFY_SECONDS = 5.0
MOST_WORDS = 400
# Reasons of Events.
DONE = {
    Verb.CORDON: "Cordoned",
    Verb.UPDATE: "RepairUpdated",
    Verb.RETURN: "ReturnedToService",
    Verb.HOLD: "Held",
    Verb.DRAIN: "DrainBegun",
    Verb.EVICTED: "JobEvicted",
    Verb.DRAINED: "Drained",
    Verb.TIMEOUT: "DrainTimedOut",
}
WARNINGS = (Verb.CORDON, Verb.UPDATE, Verb.DRAIN, Verb.TIMEOUT)
# Pods that an Event names.
MOST_NAMED = 10
QUIET = (Reason.OFF, Reason.OPTED_OUT, Reason.HEALTHY, Reason.CONFIRMING)


def write_line(line: str) -> None:
    """Log a decision, which never waits: the command writes it to stdout."""
    decisions.info("%s", line)


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: it would carry the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request to follow."""


class Announcer:
    """Reports each decision once, when it changes. What it could not report is logged and counted, and stops nothing.

    `identity` is this controller, `wall` is unix time; without `events`, no Events are written.
    """

    def __init__(
        self,
        cluster: Cluster,
        metrics: ControllerMetrics,
        notify: Notify,
        identity: str,
        write: Callable[[str], None] = write_line,
        wall: Callable[[], float] = time.time,
        *,
        events: bool = True,
    ) -> None:
        self._cluster, self._metrics, self._notify = cluster, metrics, notify
        self._identity, self._write, self._wall, self._writes_events = identity, write, wall, events
        self._last: dict[str, tuple[object, ...]] = {}
        self._tried = set[str]()
        self._events = 0
        self._files, self._opener = FileWorker("notify-token"), build_opener(_NoRedirects)

    def planned(self, assessed: Sequence[Assessed], plan: FleetPlan) -> None:
        """Log and count the decisions that are new, and set the gauges."""
        self._metrics.set(assessed, plan)
        self._last = {name: last for name, last in self._last.items() if name in plan.decisions}
        self._tried &= self._last.keys()
        for each in assessed:
            decision = plan.decisions[each.node.name]
            fault = each.node.state.fault if each.node.state else ""
            key = (decision.verb, decision.reason, fault, decision.evidence.keys)
            if self._last.get(each.node.name) == key:
                continue
            self._last[each.node.name] = key
            self._tried.discard(each.node.name)
            self._metrics.decisions.labels(
                each.pool.name, each.pool.mode.value, decision.verb.value, decision.reason.value
            ).inc()
            self._write(json.dumps(described(each, decision, plan, self._wall())))
            concerns = decision.evidence.finding is NodeFinding.FAULTY or each.node.state is not None
            if decision.verb is Verb.NONE and concerns and decision.reason not in QUIET:
                self._event(each.node, each.pool, "Waiting", f"{decision.reason.value}: {decision.words}", "Normal")

    def acted(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        """Report an action: in observe mode, in which nothing ever changes the node, only the first of its kind."""
        if not pool.mode.acts:
            if node.name in self._tried:
                return
            self._tried.add(node.name)
        self._metrics.actions.labels(pool.name, pool.mode.value, decision.verb.value).inc()
        kind = "Warning" if decision.verb in WARNINGS else "Normal"
        self._event(node, pool, DONE[decision.verb], f"{decision.reason.value}: {decision.words}", kind)
        if pool.mode.acts:
            self._send(node, pool, decision)

    def failed(self, node: WatchedNode, error: LookupFailed) -> None:
        """Log and count an action that the API server refused."""
        self._metrics.errors.labels(error.reason).inc()
        log.warning("node %s: %s", node.name, error)

    def evicted(self, node: WatchedNode, pool: NodePool, results: Sequence[Eviction]) -> None:
        """Report attempts to evict pods, and what came of them: each in a line, those that went in an Event."""
        for each in results:
            self._metrics.evictions.labels(pool.name, pool.mode.value, each.result).inc()
            about = {"at": round(self._wall(), 3), "node": node.name, "pool": pool.name, "mode": pool.mode.value}
            self._write(json.dumps({**about, "verb": "evict", **asdict(each)}))
        gone = [each.pod for each in results if each.done]
        if gone:
            self._event(node, pool, "Evicted", first_of(gone, MOST_NAMED), "Normal")

    def _event(self, node: WatchedNode, pool: NodePool, reason: str, words: str, kind: str) -> None:
        if not self._writes_events:
            return
        dry_run = not pool.mode.acts
        now = self._wall()
        self._events += 1
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{node.name[:200]}.{int(now * 1e6):x}{self._events:x}", "namespace": "default"},
            # `kubectl describe node` selects events by this, and kubelet writes the name as UID, too.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name},
            "reason": f"Gpu{'Would' if dry_run and reason != 'Waiting' else ''}{reason}",
            "message": printable(words, MOST_WORDS),
            "type": kind,
            "source": {"component": FIELD_MANAGER, "host": self._identity},
            "firstTimestamp": stamp(now)[:19] + "Z",
            "lastTimestamp": stamp(now)[:19] + "Z",
            "count": 1,
        }
        try:
            self._cluster.create_event(event, dry_run=dry_run)
        except LookupFailed as error:
            self._metrics.errors.labels(f"event_{error.reason}").inc()
            log.warning("event about node %s: %s", node.name, error)

    def _send(self, node: WatchedNode, pool: NodePool, decision: Decision) -> None:
        """Send the outgoing webhook: once, because the annotations of the node remain the source of truth."""
        if not self._notify.url or decision.state is None:
            return
        body = {
            "node": node.name,
            "pool": pool.name,
            "verb": decision.verb.value,
            "reason": decision.reason.value,
            "words": decision.words,
            "repair": json.loads(repair_text(decision.state, decision.evidence, node.annotations.get(REPAIR, ""))),
        }
        try:
            headers = {"Content-Type": "application/json", **self._authorization()}
            request = Request(self._notify.url, json.dumps(body).encode(), headers)
            with self._opener.open(request, timeout=NOTIFY_SECONDS) as response:
                response.read(1)
        except (URLError, HTTPException, OSError, ValueError) as error:
            self._metrics.errors.labels("notify").inc()
            log.warning("notify.url: node %s: %s", node.name, printable(str(error), 200))

    def _authorization(self) -> dict[str, str]:
        if not self._notify.token_file:
            return {}
        token = self._files.call(lambda: read(Path(self._notify.token_file), MOST_TOKEN_BYTES))
        return {"Authorization": f"Bearer {token.decode('ascii').strip()}"}


def described(each: Assessed, decision: Decision, plan: FleetPlan, now: float) -> Mapping[str, Any]:
    """Return a decision with all its inputs, for JSON."""
    node, evidence, use = each.node, decision.evidence, plan.pools[each.pool.name]
    return {
        "at": round(now, 3),
        "node": node.name,
        "pool": each.pool.name,
        "mode": each.pool.mode.value,
        "verb": decision.verb.value,
        "reason": decision.reason.value,
        "words": decision.words,
        "evidence": {
            "finding": evidence.finding.value,
            "why": evidence.why,
            "boot": evidence.boot,
            "clean_for": round(evidence.clean_for, 1),
            "faults": [
                {"uuid": one.uuid, "reason": one.reason, "action": one.action.value, "age": round(one.age, 1)}
                for one in evidence.faults
            ],
        },
        "unschedulable": node.unschedulable,
        "foreign": node.foreign,
        "ready": node.ready,
        "state": json.loads(node.state.text()) if node.state else None,
        "pods": _pods(decision.load),
        "budget": {"nodes": use.total, "out_of_service": use.used, "limit": use.limit},
        "breaker": sorted(plan.breaker),
    }


def _pods(load: JobLoad | None) -> Sequence[Mapping[str, Any]]:
    """Return the pods that a drain waits for, with what keeps each."""
    units = load.units if load else ()
    return [
        {
            "pod": str(pod),
            "uid": pod.uid,
            "on": pod.node,
            "terminating": pod.terminating,
            "protected": unit.protected,
            "refused": load.refused.get(unit.key, "") if load else "",
        }
        for unit in units
        for pod in unit.pods[:MOST_NAMED]
    ]
