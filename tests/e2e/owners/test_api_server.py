"""Pods and resource claims from a fake API server over TLS, in a running exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Exporter, Serve, run
from tests.support.fakes.apiserver import GROUP, PODS, FakeApiServer, pod_object, slice_object
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import Claim, FakeKubelet, given, pod
from tests.support.owners import MIG, USED, UUID, owner, rows, up

UIDS = [f"0000000{n}-1111-4222-8333-444444444444" for n in range(4)]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApiServer]:
    """A running API server."""
    server = FakeApiServer(tmp_path / "api")
    yield server
    server.stop()


def attributed(serve: Serve, driver: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer, *arguments: str) -> Exporter:
    """An exporter that uses kubelet and the API server."""
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--interval", "200ms")
    return serve(*own, *arguments, env={**driver.environment, **api.environment})


@pytest.mark.parametrize(
    ("labels", "workload", "rank"),
    [
        ({"batch.kubernetes.io/job-name": "bert", "batch.kubernetes.io/job-completion-index": "3"}, "bert", "3"),
        ({"job-name": "old"}, "old", ""),
        ({"jobset.sigs.k8s.io/jobset-name": "set", "batch.kubernetes.io/job-name": "set-workers-0"}, "set", ""),
        ({"training.kubeflow.org/job-name": "pt", "training.kubeflow.org/replica-index": "1"}, "pt", "1"),
        ({"leaderworkerset.sigs.k8s.io/name": "vllm", "leaderworkerset.sigs.k8s.io/worker-index": "2"}, "vllm", "2"),
        ({"ray.io/cluster": "ray-1"}, "ray-1", ""),
        ({"app": "web"}, "p", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_workloads(
    serve: Serve,
    node: FakeDriver,
    kubelet: FakeKubelet,
    api: FakeApiServer,
    labels: dict[str, str],
    workload: str,
    rank: str,
) -> None:
    """Workload and rank come from the labels that job controllers set."""
    api.put(PODS, pod_object("p", UIDS[0], labels))
    kubelet.pods = [given("p", UUID[0])]
    page = attributed(serve, node, kubelet, api, "--kubernetes-pods").until(lambda page: bool(rows(page)))
    expected = {"workload": workload, "rank": rank, "pod_uid": UIDS[0]}
    expected = {key: value for key, value in expected.items() if value}
    assert rows(page) == [{"namespace": "team", "pod": "p", "container": "main", **expected}]


@pytest.mark.parametrize(
    ("reference", "workload"),
    [
        ({"kind": "ReplicaSet", "name": "vllm-7d9f8c6b5d"}, "vllm"),
        ({"kind": "StatefulSet", "name": "gpt-2"}, "gpt-2"),
        ({"kind": "Job", "name": "exp-2025-01"}, "exp-2025-01"),
        ({"kind": "Node", "name": "node", "controller": False}, "gpt-2-0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_workloads_of_controllers(
    serve: Serve,
    node: FakeDriver,
    kubelet: FakeKubelet,
    api: FakeApiServer,
    reference: dict[str, str | bool],
    workload: str,
) -> None:
    """Without a label of a job, the workload is the controller; the name of a pod without one is never shortened."""
    labels = {"pod-template-hash": "7d9f8c6b5d"} if reference["kind"] == "ReplicaSet" else {}
    api.put(PODS, pod_object("gpt-2-0", UIDS[0], labels, ownerReferences=[{"controller": True, **reference}]))
    kubelet.pods = [given("gpt-2-0", UUID[0])]
    page = attributed(serve, node, kubelet, api, "--kubernetes-pods").until(lambda page: bool(rows(page)))
    assert [row["workload"] for row in rows(page)] == [workload]


def test_pod_that_is_recreated_while_the_api_server_is_down(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer
) -> None:
    """It has neither the UID nor the labels of the one before, and is not taken for finished."""
    api.put(PODS, pod_object("train-0", UIDS[0], {"job-name": "old"}, phase="Failed"))
    api.put(PODS, pod_object("other", UIDS[1], {"job-name": "other"}))
    kubelet.pods = [given("other", UUID[1])]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pods")
    exporter.until(lambda page: [row["workload"] for row in rows(page)] == ["other"])
    api.stop()
    exporter.until(up("pods", 0))
    kubelet.pods = [given("other", UUID[1]), given("train-0", UUID[0])]
    page = exporter.until(lambda page: len(rows(page)) == 2)
    assert {row["pod"]: row.get("pod_uid", "") for row in rows(page)} == {"other": UIDS[1], "train-0": ""}


def test_pod_labels_that_are_selected(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """Labels whose whole name matches are on gpu_pod_info, and on no other series."""
    api.put(
        PODS, pod_object("p", UIDS[0], {"app.kubernetes.io/name": "bert", "team": "a", "teams": "b", "secret": "c"})
    )
    kubelet.pods = [given("p", UUID[0])]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pod-labels", "team,app[.]kubernetes[.]io/.*")
    page = exporter.until(lambda page: bool(rows(page)))
    shown = {key: value for key, value in rows(page)[0].items() if key.startswith("label_")}
    assert shown == {"label_team": "a", "label_app_kubernetes_io_name": "bert"}
    assert "secret" not in page.text
    assert {path.partition("?")[0] for path in api.asked} == {PODS}
    assert all("fieldSelector=spec.nodeName%3Dnode" in path for path in api.asked)


def test_pods_change_finish_and_go(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """An old kubelet lists pods that have ended, with devices that other pods use now: the phase tells them apart."""
    api.put(PODS, pod_object("old", UIDS[0]))
    api.put(PODS, pod_object("new", UIDS[1], phase="Pending"))
    kubelet.pods = [given("old", UUID[0]), given("new", UUID[0])]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pods")
    page = exporter.until(lambda page: len(rows(page)) == 2)
    assert owner(page, UUID[0]) == ("", "", "")  # two pods: no owner
    api.put(PODS, pod_object("old", UIDS[0], phase="Succeeded"))
    page = exporter.until(lambda page: len(rows(page)) == 1)
    assert owner(page, UUID[0]) == ("team", "new", "main")
    api.put(PODS, pod_object("new", UIDS[1], {"ray.io/cluster": "later"}))
    exporter.until(lambda page: rows(page)[0].get("workload") == "later")
    api.delete(PODS, "new")
    page = exporter.until(lambda page: "workload" not in rows(page)[0])  # the API server no longer lists it
    assert owner(page, UUID[0]) == ("team", "new", "main")  # kubelet still lists it


def test_watch_that_is_too_old_lists_again(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer
) -> None:
    """410 Gone may come in the middle of a watch."""
    api.put(PODS, pod_object("p", UIDS[0], {"job-name": "one"}))
    kubelet.pods = [given("p", UUID[0])]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pods")
    exporter.until(lambda page: [row.get("workload") for row in rows(page)] == ["one"])
    api.forget()
    exporter.until(lambda page: page.values("gpu_attribution_errors_total", source="pods", reason="gone") == [1])
    api.put(PODS, pod_object("p", UIDS[0], {"job-name": "two"}))
    exporter.until(lambda page: [row.get("workload") for row in rows(page)] == ["two"])
    assert up("pods")(exporter.page())


@pytest.mark.parametrize(("status", "reason"), [(403, "forbidden"), (500, "http_500"), (429, "too_many_requests")])
def test_an_api_server_that_refuses(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer, status: int, reason: str
) -> None:
    """Pod names from kubelet stay. The failure is a metric and one log line."""
    api.status = status
    kubelet.pods = [given("p", UUID[0])]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pods")
    page = exporter.until(lambda page: bool(rows(page)) and up("pods", 0)(page))
    assert page.values("gpu_attribution_errors_total", source="pods", reason=reason) > [0]
    assert owner(page, UUID[0]) == ("team", "p", "main")
    api.status = None
    api.put(PODS, pod_object("p", UIDS[0], {"job-name": "one"}))
    exporter.until(lambda page: rows(page)[0].get("workload") == "one")


def test_a_token_that_is_replaced(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """Tokens expire after an hour, so the file is read again for each request."""
    api.put(PODS, pod_object("p", UIDS[0], {"job-name": "one"}))
    kubelet.pods = [given("p", UUID[0])]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pods")
    exporter.until(lambda page: [row.get("workload") for row in rows(page)] == ["one"])
    api.token = "second-token"
    api.forget()
    api.put(PODS, pod_object("p", UIDS[0], {"job-name": "two"}))
    page = exporter.until(lambda page: [row.get("workload") for row in rows(page)] == ["two"])
    assert not page.values("gpu_attribution_errors_total", source="pods", reason="unauthorized")


def test_another_ca_is_not_trusted(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer, tmp_path: Path
) -> None:
    """Another server at the address gets no token."""
    other = FakeApiServer(tmp_path / "other")
    try:
        environment = {**api.environment, "KUBERNETES_SERVICE_PORT": other.environment["KUBERNETES_SERVICE_PORT"]}
        own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--kubernetes-pods")
        exporter = serve(*own, env={**node.environment, **environment})
        exporter.until(lambda page: page.values("gpu_attribution_errors_total", source="pods", reason="tls") > [0])
        assert other.asked == []
    finally:
        other.stop()


@pytest.mark.parametrize("versions", [("v1beta1",), ("v1beta1", "v1beta2"), ("v1", "v1beta2", "v1beta1", "v1alpha3")])
def test_resource_claims(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, tmp_path: Path, versions: tuple[str, ...]
) -> None:
    """The newest API version is used. A MIG device without a UUID is unresolved, never attributed to its parent."""
    api = FakeApiServer(tmp_path / "api", versions)
    newest = next(each for each in ("v1", "v1beta2", "v1beta1") if each in versions)
    path = f"{GROUP}/{newest}/resourceslices"
    devices = {
        "gpu-0": {"type": "gpu", "uuid": UUID[0]},
        "gpu-2-mig-9": {"type": "mig", "uuid": str(MIG[0]["UUID"]), "parentUUID": UUID[2], "profile": "3g.71gb"},
        "gpu-1-mig-1g18gb-14-0": {"type": "mig", "parentUUID": UUID[1], "profile": "1g.18gb"},
    }
    api.put(path, slice_object("now", devices, generation=2, version=newest))
    api.put(path, slice_object("before", {"gpu-0": {"type": "gpu", "uuid": UUID[1]}}, version=newest))
    api.put(
        path,
        slice_object("nics", {"gpu-0": {"type": "gpu", "uuid": UUID[1]}}, generation=9, version=newest, driver="nic"),
    )
    kubelet.pods = [
        pod("whole", Claim("node", "gpu-0"), Claim("node", "channel-0", driver="compute-domain.nvidia.com")),
        pod("part", Claim("node", "gpu-2-mig-9")),
        pod("dynamic", Claim("node", "gpu-1-mig-1g18gb-14-0")),
        pod("unknown", Claim("node", "gpu-7")),
    ]
    try:
        exporter = attributed(serve, node, kubelet, api, "--kubernetes-dra")
        page = exporter.until(lambda page: len(rows(page)) == 2)
        assert owner(page, UUID[0]) == ("team", "whole", "main")
        assert owner(page, UUID[1]) == owner(page, UUID[2]) == ("", "", "")
        assert owner(page, UUID[2], USED, GPU_I_ID="9") == ("team", "part", "main")
        unresolved = {(row["pod"], row["reason"]) for row in rows(page, "gpu_pod_device_unresolved")}
        assert unresolved == {("dynamic", "no_uuid"), ("unknown", "no_slice")}
        assert any(asked.startswith(path) for asked in api.asked)
        api.delete(path, "now")
        exporter.until(lambda page: [row["pod"] for row in rows(page)] == ["whole"])
        assert owner(exporter.page(), UUID[1]) == ("team", "whole", "main")  # the other generation is the newest now
    finally:
        api.stop()


def test_a_long_list(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """A list in several pages is read completely, and doctor counts all pods."""
    api.page_size = 2
    for number in range(5):
        api.put(PODS, pod_object(f"p{number}", UIDS[0], {"job-name": f"job-{number}"}))
    kubelet.pods = [given(f"p{number}", f"{UUID[0]}::{number}") for number in range(5)]
    exporter = attributed(serve, node, kubelet, api, "--kubernetes-pods")
    page = exporter.until(lambda page: len(rows(page)) == 5)
    assert [row["workload"] for row in rows(page)] == [f"job-{number}" for number in range(5)]
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--kubernetes-pods")
    ended = run("doctor", *own, env={**node.environment, **api.environment})
    assert "the API server lists 5 pods of this node" in ended.stdout


def test_doctor_also_tries_to_watch(node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """A role with `list` alone is not enough: labels would never change."""
    api.put(PODS, pod_object("p", UIDS[0]))
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--kubernetes-pods")
    assert "the API server lists 1 pod" in run("doctor", *own, env={**node.environment, **api.environment}).stdout
    api.may_watch = False
    ended = run("doctor", *own, env={**node.environment, **api.environment})
    assert "the service account needs the verbs list and watch" in ended.stdout


def test_node_name_that_is_wrong(node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """A node on which doctor itself runs has a pod."""
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--kubernetes-pods")
    ended = run("doctor", *own, env={**node.environment, **api.environment})
    assert "lists no pod of the node node" in ended.stdout
    assert "set GPU_EXPORTER_NODE_NAME from spec.nodeName" in ended.stdout


def test_exporter_with_a_wrong_node_name(
    serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer
) -> None:
    """The API server lists no pod of this node, but kubelet does: the lookup is not up, and the log says why."""
    api.put(PODS, pod_object("p", UIDS[0]))
    kubelet.pods = [given("p", UUID[0])]
    environment = {**node.environment, **api.environment, "GPU_EXPORTER_NODE_NAME": "other"}
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--kubernetes-pods", "--interval", "200ms")
    exporter = serve(*own, env=environment)
    page = exporter.until(up("pods", 0))
    assert page.values("gpu_attribution_errors_total", source="pods", reason="wrong_node") == [1]
    assert "set GPU_EXPORTER_NODE_NAME from spec.nodeName" in exporter.log.read_text()
    assert [row["pod"] for row in rows(page)] == ["p"]
    kubelet.pods = []
    exporter.until(up("pods"))


def test_a_node_without_a_name(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, api: FakeApiServer) -> None:
    """The host name of a pod is not the node's: with it, the list would be empty."""
    environment = {**node.environment, **api.environment, "GPU_EXPORTER_NODE_NAME": "", "NODE_NAME": ""}
    with pytest.raises(AssertionError, match="set GPU_EXPORTER_NODE_NAME from"):
        serve("--kubernetes", "--kubernetes-pods", env=environment)


def test_outside_of_a_cluster(serve: Serve, node: FakeDriver, kubelet: FakeKubelet) -> None:
    """One line names what is missing."""
    with pytest.raises(AssertionError, match="KUBERNETES_SERVICE_HOST is not set"):
        serve("--kubernetes", "--kubernetes-pods", env={**node.environment, "KUBERNETES_SERVICE_HOST": ""})
