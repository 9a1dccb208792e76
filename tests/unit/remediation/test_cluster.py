"""The requests that the controller makes: their paths and bodies, and what is read from the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_exporter.http.client import Remote
from gpu_exporter.kubernetes import limits
from gpu_exporter.kubernetes.writer import KubernetesWriter
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.lookup import LookupFailed
from gpu_exporter.remediation.cluster import KubernetesCluster, ask
from gpu_exporter.remediation.evidence import NodeFinding
from gpu_exporter.remediation.settings import Exporters, NodePool, Settings
from tests.unit.remediation.test_reconcile import ANSWER, NODE, POOL

LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpu/leases"
RESOURCES = {"resources": [{"name": "pods", "version": "v1"}, {"name": "pods/eviction", "version": "v1"}]}
PATCH = [{"op": "add", "path": "/spec/unschedulable", "value": True}]


class Api:
    """An API server that answers a path with what is set for it, or fails with a reason, and keeps the requests."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.requests: list[tuple[Any, ...]] = []

    def get(self, path: str, _: type[Any]) -> Any:
        return self._answer("get", path)

    def pages(self, path: str, _: type[Any], *, fresh: bool = False, **query: str) -> Iterator[Any]:
        yield from self._answer("list", path, fresh, query)

    def patch(self, path: str, operations: Any, _: type[Any], *, dry_run: bool = False) -> Any:
        return self._answer("patch", path, operations, dry_run)

    def create(self, path: str, item: Any, _: type[Any], *, dry_run: bool = False) -> Any:
        return self._answer("create", path, item, dry_run)

    def _answer(self, method: str, path: str, *about: Any) -> Any:
        self.requests.append((method, path, *about))
        answer = self.answers.get(path, {})
        if isinstance(answer, str):
            raise LookupFailed(answer, "refused")
        return answer


def cluster(answers: Mapping[str, Any]) -> tuple[KubernetesCluster, Api]:
    api = Api(answers)
    settings = Settings("gpu", Exporters("monitoring", "app=exporter"), (POOL,), lease="mine")
    return KubernetesCluster(cast(KubernetesWriter, api), settings), api


def items(*names: str) -> Mapping[str, Any]:
    return {"items": [{"metadata": {"name": name}} for name in names]}


def names(found: Any) -> list[str]:
    return [item["metadata"]["name"] for item in found]


def test_nodes_come_in_pages() -> None:
    of, api = cluster({"/api/v1/nodes": [items("a", "b"), {"items": None}, items("c")]})
    assert names(of.nodes()) == ["a", "b", "c"]
    assert api.requests == [("list", "/api/v1/nodes", False, {})]


def test_a_cluster_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OBJECTS", 2)
    of, api = cluster({"/api/v1/nodes": [items("a"), items("b")]})
    assert names(of.nodes()) == ["a", "b"]
    api.answers["/api/v1/nodes"] = [items("a"), items("b", "c")]
    with pytest.raises(LookupFailed, match="more than 2 nodes") as failure:
        of.nodes()
    assert failure.value.reason == "too_large"


@pytest.mark.parametrize(
    ("path", "method", "arguments"), [("/api/v1/nodes/n", "node", ("n",)), (f"{LEASES}/mine", "lease", ())]
)
def test_what_does_not_exist_is_none(path: str, method: str, arguments: Any) -> None:
    """Any other failure is one."""
    of, api = cluster({path: items("x")})
    assert getattr(of, method)(*arguments) == items("x")
    assert api.requests == [("get", path)]
    api.answers[path] = "not_found"
    assert getattr(of, method)(*arguments) is None
    api.answers[path] = "forbidden"
    with pytest.raises(LookupFailed, match="refused"):
        getattr(of, method)(*arguments)


@pytest.mark.parametrize("dry_run", [False, True])
def test_writes(dry_run: bool) -> None:
    of, api = cluster({})
    of.patch_node("n", PATCH, dry_run=dry_run)
    of.patch_pod("team", "p", PATCH, dry_run=dry_run)
    of.create_event({"reason": "GpuCordoned"}, dry_run=dry_run)
    assert api.requests == [
        ("patch", "/api/v1/nodes/n", PATCH, dry_run),
        ("patch", "/api/v1/namespaces/team/pods/p/status", PATCH, dry_run),
        ("create", "/api/v1/namespaces/default/events", {"reason": "GpuCordoned"}, dry_run),
    ]


def test_the_lease_is_never_a_dry_run() -> None:
    of, api = cluster({LEASES: {"metadata": {"name": "new"}}, f"{LEASES}/mine": {"metadata": {"name": "old"}}})
    assert of.create_lease({"kind": "Lease"}) == {"metadata": {"name": "new"}}  # type: ignore[typeddict-unknown-key]
    assert of.patch_lease(PATCH) == {"metadata": {"name": "old"}}
    assert api.requests == [("create", LEASES, {"kind": "Lease"}, False), ("patch", f"{LEASES}/mine", PATCH, False)]


@pytest.mark.parametrize("fresh", [False, True])
def test_lists_of_pods(fresh: bool) -> None:
    pages = [items("a"), {"items": None}, items("b")]
    of, api = cluster({"/api/v1/pods": pages, "/api/v1/namespaces/team/pods": pages})
    assert names(of.pods_on("n", fresh=fresh)) == ["a", "b"]
    assert names(of.pods_of("team", "job", "bert", fresh=fresh)) == ["a", "b"]
    assert api.requests == [
        ("list", "/api/v1/pods", fresh, {"fieldSelector": "spec.nodeName=n"}),
        ("list", "/api/v1/namespaces/team/pods", fresh, {"labelSelector": "job=bert"}),
    ]


def exporter(node: str, address: str, phase: str = "Running", **metadata: str) -> Mapping[str, Any]:
    return {"spec": {"nodeName": node}, "status": {"phase": phase, "podIP": address}, "metadata": metadata}


def test_addresses_are_of_running_exporters() -> None:
    """Two on one node are both listed: neither is chosen by chance."""
    path = "/api/v1/namespaces/monitoring/pods"
    pods = [
        exporter("a", "10.0.0.1"),
        exporter("b", ""),
        exporter("c", "10.0.0.3", "Pending"),
        exporter("d", "10.0.0.4", deletionTimestamp="now"),
        {},
        exporter("a", "10.0.0.5"),
    ]
    of, api = cluster({path: [{"items": pods}, {"items": None}, {"items": [exporter("e", "fd00::1")]}]})
    assert of.addresses() == {"a": ["10.0.0.1", "10.0.0.5"], "e": ["fd00::1"]}
    assert api.requests == [("list", path, False, {"labelSelector": "app=exporter"})]


@pytest.mark.parametrize(("versions", "used"), [(["v1beta1", "v1"], "v1"), (["v1beta1"], "v1beta1")])
def test_disruption_budgets_of_the_newest_version(versions: list[str], used: str) -> None:
    path = f"/apis/policy/{used}/namespaces/team/poddisruptionbudgets"
    group = {"versions": [{"version": version} for version in versions]}
    of, api = cluster({"/apis/policy": group, path: [items("a"), {"items": None}, items("b")]})
    assert names(of.budgets("team")) == ["a", "b"]
    assert api.requests == [("get", "/apis/policy"), ("list", path, True, {})]


def test_a_job_is_read_by_its_name() -> None:
    """One that is gone is None."""
    path = "/apis/batch/v1/namespaces/team/jobs/bert"
    of, api = cluster({path: {"spec": {"backoffLimit": 2}}})
    assert of.job("team", "bert") == {"spec": {"backoffLimit": 2}}
    assert api.requests == [("get", path)]


@pytest.mark.parametrize("dry_run", [False, True])
def test_an_eviction_is_of_the_pod_that_was_read(dry_run: bool) -> None:
    """The version of Eviction is asked for once."""
    of, api = cluster({"/api/v1": RESOURCES})
    of.evict("team", "p", "uid-p", "7", dry_run=dry_run)
    of.evict("team", "q", "uid-q", "8", dry_run=dry_run)
    evictions = [
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": "team"},
            "deleteOptions": {"preconditions": {"uid": f"uid-{name}", "resourceVersion": version}},
        }
        for name, version in (("p", "7"), ("q", "8"))
    ]
    assert api.requests == [
        ("get", "/api/v1"),
        ("create", "/api/v1/namespaces/team/pods/p/eviction", evictions[0], dry_run),
        ("create", "/api/v1/namespaces/team/pods/q/eviction", evictions[1], dry_run),
    ]


@pytest.mark.parametrize(
    "resources",
    [
        {"resources": None},
        {"resources": [{"name": "pods/eviction", "version": "v1beta1"}]},
        {"resources": [{"name": "pods", "version": "v1"}, {"name": "pods/eviction"}]},
    ],
)
def test_an_old_version_of_eviction(resources: Any) -> None:
    """After a refusal, the version is asked for again: the server may have been upgraded meanwhile."""
    path = "/api/v1/namespaces/team/pods/p/eviction"
    of, api = cluster({"/api/v1": resources, path: "not_found"})
    with pytest.raises(LookupFailed, match="refused"):
        of.evict("team", "p", "uid", "7", dry_run=False)
    api.answers = {"/api/v1": RESOURCES}
    of.evict("team", "p", "uid", "7", dry_run=False)
    assert [about[0]["apiVersion"] for _, where, *about in api.requests if where == path] == [
        "policy/v1beta1",
        "policy/v1",
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Remote, str, float | None]]:
    """The requests to exporters, which all answer that the node is clean."""
    requests = []

    def get(remote: Remote, path: str, seconds: float | None = None) -> str:
        requests.append((remote, path, seconds))
        return ANSWER

    monkeypatch.setattr(Remote, "get", get)
    return requests


SECURE = Exporters(
    "gpu",
    port=9500,
    scheme="https",
    ca_file="/ca.pem",
    server_name="gpu-exporter",
    user="me",
    password_file="/password",
    timeout="7s",
)


@pytest.mark.parametrize(
    ("exporters", "address", "remote", "seconds"),
    [
        (Exporters("gpu"), "10.0.0.1", Remote("http://10.0.0.1:9400"), 5.0),
        (
            SECURE,
            "fd00::1",
            Remote(
                "https://[fd00::1]:9500",
                user="me",
                password_file=Path("/password"),
                ca_file=Path("/ca.pem"),
                server_name="gpu-exporter",
            ),
            7.0,
        ),
    ],
)
def test_an_exporter_is_asked(
    asked: list[Any], exporters: Exporters, address: str, remote: Remote, seconds: float
) -> None:
    assert ask(exporters, NODE, [address], POOL).finding is NodeFinding.CLEAN
    assert asked == [(remote, "/api/v1/node", seconds)]


@pytest.mark.parametrize(
    ("addresses", "why"), [([], "no exporter pod runs on it"), (["a", "b"], "2 exporter pods run on it: only one may")]
)
def test_a_node_has_one_exporter(asked: list[Any], addresses: list[str], why: str) -> None:
    found = ask(Exporters("gpu"), NODE, addresses, POOL)
    assert (found.finding, found.why) == (NodeFinding.UNKNOWN, why)
    assert asked == []


def test_an_exporter_that_does_not_answer_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object) -> str:
        raise GpuExporterError("connection refused" + "!" * 300)

    monkeypatch.setattr(Remote, "get", get)
    found = ask(Exporters("gpu"), NODE, ["10.0.0.1"], POOL)
    assert found.finding is NodeFinding.UNKNOWN
    assert found.why.startswith("the exporter does not answer: connection refused!")
    assert len(found.why) < 250


@pytest.mark.parametrize(("degraded", "finding"), [(False, NodeFinding.UNKNOWN), (True, NodeFinding.FAULTY)])
def test_a_pool_says_whether_degraded_gpus_are_faulty(
    monkeypatch: pytest.MonkeyPatch, degraded: bool, finding: NodeFinding
) -> None:
    problem = '"problems": [{"reason": "heat", "health": "degraded", "action": "gpu_reset", "since": 70}]'
    answer = ANSWER.replace('"healthy"', '"degraded"').replace('"problems": []', problem)
    monkeypatch.setattr(Remote, "get", lambda *_: answer)
    assert ask(Exporters("gpu"), NODE, ["10.0.0.1"], NodePool("a", degraded=degraded)).finding is finding
