"""The controller in a thread, against an API server over TLS and exporters over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.ledger import CLAIMS
from gpu_exporter.remediation.pods import CHECKPOINT, COMPLETION_INDEX, EVICT_AFTER, POLICY
from gpu_exporter.remediation.run import explain, run
from gpu_exporter.remediation.settings import (
    Breaker,
    Budget,
    DrainSettings,
    Exporters,
    Mode,
    NodePool,
    Notify,
    Settings,
)
from tests.support.fakes.apiserver import FakeApiServer
from tests.support.tools import LIMIT, free_port, until

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/gpu/pods"
TEAM = "/api/v1/namespaces/team/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases/gpu-exporter-remediation"
EVENTS = "/api/v1/namespaces/default/events"


class Site:
    """Three nodes with an exporter each, whose answers are in `answers`, and a receiver of outgoing webhooks.

    All exporters have the same port, so each has an address of its own.
    """

    def __init__(self, directory: Path) -> None:
        self.api = FakeApiServer(directory)
        self.answers: dict[str, dict[str, Any]] = {}
        self.received: list[Any] = []
        self.port, self.own_port = free_port(), free_port()
        self._servers = [self._exporter(f"127.0.0.{place + 1}", f"n{place}") for place in range(3)]
        self.token = directory / "webhook-token"
        self.token.write_text("secret\n")

    def settings(self, mode: Mode, **pool: Any) -> Settings:
        """Return settings with one pool in this mode."""
        exporters = Exporters("gpu", port=self.port)
        pools = (NodePool("all", "", mode, **{"budget": Budget(1, 1.0), "confirm": "1ms", "clean": "1ms", **pool}),)
        return Settings(
            "gpu",
            exporters,
            pools,
            interval="1s",
            address=f"127.0.0.1:{self.own_port}",
            webhook_token_file=str(self.token),
            breaker=Breaker(9),
            notify=Notify(f"http://127.0.0.1:{self.port}/notify"),
        )

    def node(self, name: str) -> Any:
        """Return a node as it is now."""
        item = self.api.item(f"{NODES}/{name}")
        assert item
        return item

    def fail(self, name: str, reason: str = "stalled", action: str = "node_reboot") -> None:
        """A GPU of this node fails."""
        problem = {"reason": reason, "health": "unhealthy", "action": action, "what": "hangs", "since": 1.0}
        self.answers[name]["gpus"][0] |= {"health": "unhealthy", "problems": [problem], "xids": [{"xid": 79}]}

    def repair(self, name: str) -> None:
        """The node reboots, healthy."""
        node = self.node(name)
        node["status"]["nodeInfo"]["bootID"] = "boot-2"
        self.answers[name] = answer(name, "boot-2")
        self.api.put(NODES, node)

    def metrics(self) -> str:
        """Return the controller's metrics; empty while it does not listen yet."""
        try:
            return self.post("/metrics", None)[1]
        except URLError:
            return ""

    def post(self, path: str, body: bytes | None, token: str = "") -> tuple[int, str]:
        """Send a request to the controller."""
        request = Request(f"http://127.0.0.1:{self.own_port}{path}", body, {"Authorization": f"Bearer {token}"})
        try:
            with urlopen(request, timeout=LIMIT) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def _exporter(self, address: str, name: str) -> ThreadingHTTPServer:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200 if name in site.answers else 503, json.dumps(site.answers.get(name)).encode())

            def do_POST(self) -> None:
                site.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self._send(200, b"")

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Silent."""

        server = ThreadingHTTPServer((address, self.port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.answers[name] = answer(name, "boot-1")
        self.api.put(
            NODES,
            {
                "metadata": {"name": name, "uid": f"uid-{name}"},
                "spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]} if name == "n0" else {},
                "status": {"nodeInfo": {"bootID": "boot-1"}, "capacity": {"nvidia.com/gpu": "8"}},
            },
        )
        status = {"phase": "Running", "podIP": address}
        metadata = {"name": f"e-{name}", "labels": {"app.kubernetes.io/component": "exporter"}}
        self.api.put(PODS, {"metadata": metadata, "spec": {"nodeName": name}, "status": status})
        return server

    def pod(
        self,
        name: str,
        node: str,
        labels: Mapping[str, str] | None = None,
        gpus: int = 1,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """Create a pod with GPUs, and with these annotations, in the namespace `team`."""
        owners = [{"kind": "ReplicaSet", "name": "web", "controller": True}]
        metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owners}
        resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
        item = {
            "metadata": {**metadata, "labels": dict(labels or {}), "annotations": dict(notes or {})},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
            "status": {"phase": "Running"},
        }
        self.api.put(TEAM, item)

    def disruptions(self, app: str, allowed: int) -> None:
        """Allow so many evictions of pods of this app."""
        spec = {"selector": {"matchLabels": {"app": app}}}
        path = f"/apis/policy/{self.api.eviction_version}/namespaces/team/poddisruptionbudgets"
        self.api.put(path, {"metadata": {"name": app}, "spec": spec, "status": {"disruptionsAllowed": allowed}})

    @property
    def pods(self) -> set[str]:
        """The names of the pods in the namespace `team`."""
        return {pod["metadata"]["name"] for pod in self.api.page(TEAM, 0)["items"]}

    def stop(self) -> None:
        """Stop everything."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self.api.stop()


def answer(name: str, boot: str) -> dict[str, Any]:
    """Return the answer of a healthy exporter."""
    gpu = {"gpu": 0, "UUID": f"GPU-{name}", "serial": f"S-{name}", "pci_bus_id": "00000000:01:00.0"}
    about = {"apiVersion": 1, "node": name, "boot_id": boot, "at": 1000.0, "live": True, "ready": True}
    return {**about, "expected": 1, "missing": 0, "gpus": [{**gpu, "health": "healthy", "since": 1.0, "problems": []}]}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site(tmp_path / "api")
    yield running
    running.stop()


Start = Callable[[Settings], None]


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    """Starts controllers, which end with the test."""
    stop, threads = threading.Event(), list[threading.Thread]()

    def begin(settings: Settings) -> None:
        arguments = (settings, stop, site.api.account, site.api.environment)
        threads.append(threading.Thread(target=run, args=arguments))
        threads[-1].start()
        until(lambda: "gpu_remediation_leader 1.0" in site.metrics(), what="leadership")

    yield begin
    stop.set()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


def cordoned(site: Site) -> list[str]:
    return [name for name in ("n0", "n1", "n2") if site.node(name)["spec"].get("unschedulable")]


def notes(item: Mapping[str, Any]) -> Mapping[str, str]:
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


def test_a_node_from_the_fault_to_its_return(site: Site, start: Start) -> None:
    """It is cordoned, tainted and labelled; after its reboot all of that is gone, and its own taint is as before."""
    start(site.settings(Mode.CORDON))
    assert cordoned(site) == []
    site.fail("n0")
    until(lambda: cordoned(site) == ["n0"], what="the cordon")
    node = site.node("n0")
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["own", s.TAINT]
    assert node["metadata"]["labels"][s.REPAIR_LABEL] == "node-reboot"
    repair = json.loads(notes(node)[s.REPAIR])
    assert (repair["gpus"][0]["serial"], repair["gpus"][0]["xids"]) == ("S-n0", [79])
    assert json.loads(notes(site.api.item(LEASE) or {})[CLAIMS]) == {"n0": "all"}
    until(lambda: bool(site.received), what="the outgoing webhook")
    assert (site.received[0]["node"], site.received[0]["verb"]) == ("n0", "cordon")
    site.repair("n0")
    until(lambda: cordoned(site) == [], what="the return to service")
    until(lambda: notes(site.api.item(LEASE) or {})[CLAIMS] == "{}", what="the end of the claim")
    node = site.node("n0")
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["own"]
    assert s.REPAIR_LABEL not in node["metadata"]["labels"]
    assert json.loads(notes(node)[s.STATE])["history"][0]["reasons"] == ["stalled"]
    reasons = [event["reason"] for event in site.api.page(EVENTS, 0)["items"]]
    assert reasons[0] == "GpuCordoned"
    assert reasons[-1] == "GpuReturnedToService"
    assert all(event["involvedObject"]["name"] == "n0" for event in site.api.page(EVENTS, 0)["items"])


def test_the_budget_is_kept(site: Site, start: Start) -> None:
    """A second node waits until the first is back, and metrics and --explain say why."""
    settings = site.settings(Mode.CORDON)
    start(settings)
    site.fail("n0")
    until(lambda: cordoned(site) == ["n0"])
    site.fail("n1")
    until(lambda: 'gpu_remediation_nodes{pool="all",reason="budget"} 1.0' in site.metrics(), what="the refusal")
    words, inputs = explain(settings, "n1", site.api.account, site.api.environment)
    assert words == "n1: none: budget: 1 of 3 nodes are out of service: the budget allows 1"
    assert json.loads(inputs)["budget"] == {"nodes": 3, "out_of_service": 1, "limit": 1}
    assert cordoned(site) == ["n0"]
    site.repair("n0")
    until(lambda: cordoned(site) == ["n1"], what="the second cordon")


def test_observe_mode_writes_only_the_lease(site: Site, start: Start) -> None:
    """Every other write is a dry run: the node's, the Event's, and the evictions."""
    site.pod("web-1", "n0", notes={CHECKPOINT: "1m"})
    start(site.settings(Mode.OBSERVE))
    site.fail("n0")
    until(lambda: ("POST", f"{TEAM}/web-1/eviction", True) in site.api.written, what="the dry run of the eviction")
    assert ("PATCH", f"{TEAM}/web-1/status", True) in site.api.written
    until(lambda: ("PATCH", f"{NODES}/n0", True) in site.api.written, what="the dry run")
    until(lambda: ("POST", EVENTS, True) in site.api.written, what="the Event")
    assert {path for _, path, dry_run in site.api.written if not dry_run} <= {LEASE, LEASE.rpartition("/")[0]}
    assert cordoned(site) == []


def test_a_person_uncordons(site: Site, start: Start) -> None:
    """The controller removes its taint, and does not cordon the node again for the same fault."""
    start(site.settings(Mode.CORDON))
    site.fail("n1")
    until(lambda: cordoned(site) == ["n1"])
    node = site.node("n1")
    del node["spec"]["unschedulable"]
    site.api.put(NODES, node)
    until(lambda: 'gpu_remediation_nodes{pool="all",reason="held"} 1.0' in site.metrics(), what="the hold")
    assert "taints" not in site.node("n1")["spec"]
    assert cordoned(site) == []


def test_conflicts_and_throttling(site: Site, start: Start) -> None:
    """A refused write is repeated after another look, with a pause."""
    start(site.settings(Mode.CORDON))
    site.api.refusals += [409, 429, 500]
    site.fail("n2")
    until(lambda: cordoned(site) == ["n2"], timeout=30, what="the cordon")
    assert not site.api.refusals


def test_an_unreachable_exporter_is_neither_fault_nor_recovery(site: Site, start: Start) -> None:
    """The node stays as it is."""
    start(site.settings(Mode.CORDON))
    site.fail("n0")
    until(lambda: cordoned(site) == ["n0"])
    del site.answers["n0"]
    until(lambda: 'reason="unknown"} 1.0' in site.metrics(), what="the unknown")
    node = site.node("n0")
    node["status"]["nodeInfo"]["bootID"] = "boot-2"
    site.api.put(NODES, node)
    cycles = len(site.api.asked)
    until(lambda: len(site.api.asked) > cycles + 10, what="more cycles")
    assert cordoned(site) == ["n0"]


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [
        ("", b'{"alerts": []}', 401),
        ("wrong", b'{"alerts": []}', 401),
        ("secret", b"<html>", 400),
        ("secret", b'{"alerts": [{"status": "firing", "labels": {"instance": "n0:9400"}}]}', 202),
    ],
)
def test_the_webhook(site: Site, start: Start, token: str, body: bytes, status: int) -> None:
    """It needs the token, and refuses what is not a notification."""
    start(site.settings(Mode.OBSERVE))
    assert site.post("/webhook", body, token)[0] == status
    counted = f'gpu_remediation_webhooks_total{{code="{status}"}} 1.0'
    until(lambda: counted in site.metrics(), what="a page that counts it")


def test_a_drain(site: Site, start: Start) -> None:
    """Pods with GPUs go, as the disruption budgets allow it, and a job loses its rank on another node, too."""
    site.disruptions("web", 0)
    site.pod("web-1", "n0", {"app": "web"})
    site.pod("web-2", "n1", {"app": "web"})
    site.pod("cpu", "n0", gpus=0)
    for rank in range(2):
        site.pod(f"bert-{rank}", f"n{rank}", {"job-name": "bert", COMPLETION_INDEX: "0"})
    start(site.settings(Mode.DRAIN))
    assert len(site.pods) == 5
    site.fail("n0")
    until(lambda: 'result="disruption_budget"} 1.0' in site.metrics(), what="the refusal")
    until(lambda: any(each["verb"] == "gang_evicted" for each in site.received), what="the end of the job")
    assert site.pods == {"web-1", "web-2", "cpu"}
    words, inputs = explain(site.settings(Mode.DRAIN), "n0", site.api.account, site.api.environment)
    assert words == "n0: evict: fault: evicts pod team/web-1", "explain has not been refused"
    assert [pod["pod"] for pod in json.loads(inputs)["pods"]] == ["team/web-1"]
    site.disruptions("web", 1)
    until(lambda: site.node("n0")["metadata"]["labels"].get(s.DRAIN_LABEL) == "drained", 60, "the end of the drain")
    assert site.pods == {"web-2", "cpu"}
    assert 'gpu_remediation_evictions_total{mode="drain",pool="all",result="evicted"} 3.0' in site.metrics()
    until(lambda: len(site.received) == 4, what="the last notification")
    reasons = [event["reason"] for event in site.api.page(EVENTS, 0)["items"]]
    wanted = ["GpuCordoned", "GpuDrainBegun", "GpuEvicted", "GpuJobEvicted", "GpuEvicted", "GpuDrained"]
    assert [reason for reason in reasons if reason != "GpuWaiting"] == wanted
    assert [each["verb"] for each in site.received] == ["cordon", "drain", "gang_evicted", "drained"]
    site.repair("n0")
    until(lambda: cordoned(site) == [], what="the return to service")
    assert s.DRAIN_LABEL not in site.node("n0")["metadata"]["labels"]


def test_time_for_a_checkpoint(site: Site, start: Start) -> None:
    """A pod that asks for it is notified of its eviction, and is not evicted before. The server is an older one."""
    site.api.eviction_version = "v1beta1"
    site.pod("bert", "n0", notes={CHECKPOINT: "3s"})
    start(site.settings(Mode.DRAIN))
    site.fail("n0")
    until(lambda: 'reason="checkpoint"} 1.0' in site.metrics(), what="the wait")
    (notified,) = site.api.page(TEAM, 0)["items"]
    begun = json.loads(notes(site.node("n0"))[s.STATE])["drain"]["since"]
    assert datetime.fromisoformat(notified["metadata"]["annotations"][EVICT_AFTER]).timestamp() >= begun + 3
    until(lambda: not site.pods, what="the eviction")
    assert site.api.written.count(("PATCH", f"{TEAM}/bert/status", False)) == 1


def test_a_drain_that_cannot_end(site: Site, start: Start) -> None:
    """After the timeout, people are notified; nothing is forced."""
    site.pod("precious", "n0", notes={POLICY: "never"})
    start(site.settings(Mode.DRAIN, drain=DrainSettings(timeout="2s")))
    site.fail("n0")
    until(lambda: 'reason="protected_pods"} 1.0' in site.metrics(), what="the wait")
    until(lambda: site.received[-1]["verb"] == "drain_timeout", what="the timeout")
    assert site.node("n0")["metadata"]["labels"][s.DRAIN_LABEL] == "timeout"
    assert site.pods == {"precious"}
    assert not any(path.endswith("/eviction") for _, path, _ in site.api.written)
    words = "not drained within 2s: pod team/precious has the annotation gpu-exporter.io/drain=never"
    assert site.received[-1]["words"] == words


def test_requests_need_no_more_than_the_role(site: Site, start: Start) -> None:
    """Every request has a rule in the chart: see tests/unit/remediation/test_permissions.py."""
    site.pod("bert", "n0", {"job-name": "bert", COMPLETION_INDEX: "0"}, notes={CHECKPOINT: "1ms"})
    site.pod("bert-1", "n1", {"job-name": "bert", COMPLETION_INDEX: "0"})
    start(site.settings(Mode.DRAIN))
    site.fail("n0")
    until(lambda: site.node("n0")["metadata"].get("labels", {}).get(s.DRAIN_LABEL) == "drained", 60, "the drain")
    reads = {path.partition("?")[0] for path in site.api.asked}
    writes = {(method, path) for method, path, _ in site.api.written}
    assert any(path == EVENTS for _, path, _ in site.api.written)
    discovery = {"/api/v1", "/apis/policy"}  # everybody may read these
    budgets = "/apis/policy/v1/namespaces/team/poddisruptionbudgets"
    listed = {NODES, PODS, "/api/v1/pods", TEAM, budgets}
    assert reads <= {*discovery, *listed, LEASE, *(f"{NODES}/n{place}" for place in range(3))}
    own = {("PATCH", LEASE), ("POST", LEASE.rpartition("/")[0]), ("POST", EVENTS)}
    own |= {("PATCH", f"{TEAM}/bert/status"), ("POST", f"{TEAM}/bert/eviction"), ("POST", f"{TEAM}/bert-1/eviction")}
    assert writes <= own | {("PATCH", f"{NODES}/n{place}") for place in range(3)}
