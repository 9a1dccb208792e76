"""The cases of `tests.soak.control_plane`. Each returns what was seen, and raises AssertionError."""

from __future__ import annotations

import json
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException

from tests.soak.cluster import PODS, Cluster, bare, controller, pods, shows
from tests.support import chart
from tests.support.control_plane import COLLECTIONS, READER, Refused
from tests.support.owners import rows, up
from tests.support.tools import until

# How long the API server is stopped.
FREEZE_SECONDS = 45.0


def workloads(cluster: Cluster) -> str:
    """The workload is the controller by the owner references; a bare pod keeps its whole name."""
    kinds = {"web": "Deployment", "bert": "Job", "llama-3": "StatefulSet"}
    begin = time.monotonic()
    for name, kind in kinds.items():
        cluster.control.create(controller(kind, name))
    for name in ("gpt-2", "gpt-3"):
        cluster.create_pod(bare(name, team="a"))
    expected = sorted([*kinds, "gpt-2", "gpt-3"])
    page = cluster.exporter.until(lambda page: sorted(row.get("workload", "") for row in rows(page)) == expected, 60)
    took = time.monotonic() - begin
    listed = cluster.control.ask("GET", PODS)["items"]
    uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in listed}
    assert {name: row["pod_uid"] for name, row in pods(page).items()} == uids
    assert {row["label_team"] for row in rows(page)} == {"a"}
    shown = ", ".join(f"{name} is of {row['workload']}" for name, row in pods(page).items())
    return f"{shown}; {took:.1f} s after the creation of the first"


def label_change(cluster: Cluster) -> str:
    """A label that changes is shown at once."""
    taken = []
    for number in range(10):
        cluster.label("gpt-2", f"n{number}")
        taken.append(cluster.seconds_until(shows("gpt-2", label_team=f"n{number}")))
    assert max(taken) < 5
    return f"ten changes: median {statistics.median(taken):.2f} s, longest {max(taken):.2f} s, at an interval of 0.2 s"


def ended(cluster: Cluster) -> str:
    """A pod that has ended owns nothing, although kubelet still lists it."""
    (name,) = (name for name in pods(cluster.exporter.page()) if name.startswith("bert"))
    cluster.control.ask("PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Succeeded"}})
    took = cluster.seconds_until(lambda page: name not in pods(page))
    assert any(name.encode() in pod for pod in cluster.kubelet.pods)
    return f"without an owner after {took:.2f} s"


def recreated(cluster: Cluster) -> str:
    """A StatefulSet's pod is recreated while the exporter cannot reach the API server."""
    before = cluster.uid("llama-3-0")
    cluster.gate.shut()
    down = cluster.seconds_until(up("pods", 0))
    cluster.control.ask("DELETE", f"{PODS}/llama-3-0")
    until(lambda: cluster.uid("llama-3-0") not in ("", before), 60, "the new pod")
    page = cluster.exporter.until(
        lambda page: "llama-3-0" in pods(page) and not shows("llama-3-0", pod_uid=before)(page)
    )
    assert "pod_uid" not in pods(page)["llama-3-0"], pods(page)
    assert "label_team" in pods(page)["gpt-2"], "the others keep their labels"
    reasons = {*cluster.errors()}
    cluster.gate.open()
    took = cluster.seconds_until(shows("llama-3-0", pod_uid=cluster.uid("llama-3-0"), label_team="a"))
    return (
        f"up 0 after {down:.2f} s ({', '.join(reasons)}); meanwhile no UID and no labels; the new ones {took:.1f} s "
        "after the connection is back"
    )


def killed(cluster: Cluster) -> str:
    """The API server is killed, and starts again."""
    before = cluster.errors()
    cluster.control.kill("kube-apiserver")
    down = cluster.seconds_until(up("pods", 0))
    time.sleep(5)
    assert "label_team" in pods(cluster.exporter.page())["gpt-2"]
    cluster.control.start_api()
    back = cluster.seconds_until(up("pods"), 30)
    cluster.label("gpt-2", "after-kill")
    took = cluster.seconds_until(shows("gpt-2", label_team="after-kill"))
    return (
        f"up 0 after {down:.2f} s, labels stay; up 1 {back:.1f} s after the server is ready; a change {took:.2f} s "
        f"later; {dict(cluster.errors() - before)}"
    )


def frozen(cluster: Cluster) -> str:
    """The API server is stopped, but its kernel keeps the connections."""
    cluster.control.signal("kube-apiserver", signal.SIGSTOP)
    time.sleep(FREEZE_SECONDS)
    page = cluster.exporter.page()
    seen = (
        page.value("gpu_exporter_attribution_up", source="pods"),
        page.value("gpu_exporter_attribution_age_seconds", source="pods"),
    )
    cluster.control.signal("kube-apiserver", signal.SIGCONT)
    cluster.label("gpt-2", "thawed")
    took = cluster.seconds_until(shows("gpt-2", label_team="thawed"), 30)
    return f"after {FREEZE_SECONDS:.0f} s up {seen[0]:.0f}, age {seen[1]:.0f} s; a change {took:.2f} s after it goes on"


def restored(cluster: Cluster) -> str:
    """etcd is restored from an older backup: resource versions go back, stale labels must vanish."""
    before = diverged(cluster)
    cluster.control.kill("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
    down = cluster.seconds_until(up("pods", 0))
    time.sleep(5)
    assert up("pods", 0)(cluster.exporter.page())
    after = restore(cluster)
    back = cluster.seconds_until(shows("gpt-2", label_team="backup"), 30)
    assert up("pods")(cluster.exporter.page())
    took = settled(cluster)
    return (
        f"version {before} -> {after}: up 0 after {down:.2f} s and until the server is back; the backup's labels "
        f"{back:.1f} s after it is ready; a change {took:.2f} s later"
    )


def restored_between(cluster: Cluster) -> str:
    """The same, between the list and the watch of an exporter: the watch begins at a version beyond all events."""
    before = diverged(cluster)
    cluster.gate.hold(2)
    cluster.gate.cut()
    assert cluster.gate.holding.wait(60)
    cluster.control.kill("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
    after = restore(cluster)
    cluster.gate.cut()
    cluster.gate.release()
    back = cluster.seconds_until(shows("gpt-2", label_team="backup"))
    took = settled(cluster)
    return (
        f"version {before} -> {after}: the backup's labels {back:.1f} s after the server is ready; "
        f"a change {took:.2f} s later"
    )


def diverged(cluster: Cluster) -> str:
    """Make a backup, then changes that it lacks; return the resource version."""
    cluster.label("gpt-2", "backup")
    cluster.exporter.until(shows("gpt-2", label_team="backup"))
    cluster.control.back_up(cluster.folder / "backup")
    for number in range(300):
        cluster.label("gpt-2", f"lost{number}")
    cluster.control.ask("DELETE", f"{PODS}/gpt-3")
    cluster.create_pod(bare("gpt-4", team="lost"))
    cluster.exporter.until(shows("gpt-4", label_team="lost"), 30)
    return str(cluster.control.ask("GET", PODS)["metadata"]["resourceVersion"])


def restore(cluster: Cluster) -> str:
    """Restore etcd, and start the API server; return the resource version."""
    cluster.control.restore(cluster.folder / "backup")
    cluster.control.start_etcd()
    cluster.control.start_api()
    return str(cluster.control.ask("GET", PODS)["metadata"]["resourceVersion"])


def settled(cluster: Cluster) -> float:
    """Return how long a change takes after a restore."""
    cluster.control.start_controllers()
    cluster.exporter.until(shows("gpt-3", label_team="a"), 30)
    cluster.label("gpt-2", "after")
    took = cluster.seconds_until(shows("gpt-2", label_team="after"))
    assert "gpt-4" not in pods(cluster.exporter.page())
    return took


def too_old(cluster: Cluster) -> str:
    """etcd is compacted between the list and the watch."""
    cluster.control.restart_api("--watch-cache=false")
    cluster.exporter.until(up("pods"), 30)
    before = cluster.errors()
    cluster.gate.hold(2)
    cluster.gate.cut()
    assert cluster.gate.holding.wait(60)
    for number in range(5):
        cluster.label("gpt-2", f"compacted{number}")
    cluster.control.compact()
    cluster.gate.release()
    took = cluster.seconds_until(shows("gpt-2", label_team="compacted4"))
    new = cluster.errors() - before
    assert new["gone"] == 1, new
    cluster.exporter.until(up("pods"))
    cluster.control.restart_api()
    cluster.exporter.until(up("pods"), 30)
    return f"{dict(new)}; right labels {took:.2f} s after the watch is refused"


def busy(cluster: Cluster) -> str:
    """A server that may handle one request at a time has one that takes long."""
    role = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "view"}
    group = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "readers"}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "readers"},
    }
    cluster.control.create({**binding, "roleRef": role, "subjects": [group]})
    cluster.control.restart_api("--max-requests-inflight=1", "--feature-gates=APIPriorityAndFairness=false")
    cluster.exporter.until(up("pods"), 30)
    before = cluster.errors()

    def occupy() -> None:
        with suppress(OSError, HTTPException, Refused):
            cluster.control.ask("GET", "/api/v1/pods", token=READER)

    cluster.control.signal("etcd", signal.SIGSTOP)
    slow = threading.Thread(target=occupy)
    slow.start()
    time.sleep(0.5)
    cluster.gate.cut()
    begin = time.monotonic()
    cluster.exporter.until(lambda page: cluster.errors()["too_many_requests"] > before["too_many_requests"])
    first = time.monotonic() - begin
    time.sleep(10)
    refused = cluster.errors()["too_many_requests"] - before["too_many_requests"]
    assert "label_team" in pods(cluster.exporter.page())["gpt-2"]
    cluster.control.signal("etcd", signal.SIGCONT)
    back = cluster.seconds_until(up("pods"), 30)
    slow.join()
    cluster.control.restart_api()
    cluster.exporter.until(up("pods"), 30)
    return f"429 after {first:.1f} s, {refused} within 10 s (Retry-After 1); up 1 {back:.1f} s later; labels stay"


def no_watch(cluster: Cluster) -> str:
    """The role has `list`, but not `watch`."""
    role = json.loads(json.dumps(cluster.role))
    for rule in role["rules"]:
        rule["verbs"] = ["list"]
    cluster.control.create(role)
    before = cluster.errors()
    cluster.gate.cut()
    cluster.exporter.until(lambda page: cluster.errors()["forbidden"] > before["forbidden"])
    page = cluster.exporter.until(up("pods", 0))
    assert "label_team" in pods(page)["gpt-2"]
    said = cluster.doctor()
    cluster.control.create(cluster.role)
    took = cluster.seconds_until(up("pods"))
    return f"{dict(cluster.errors() - before)}; doctor: {said}; up 1 {took:.1f} s after the verb is back"


def wrong_name(cluster: Cluster) -> str:
    """The node has another name."""
    with cluster.serving(node="elsewhere", log="wrong_name.log") as exporter:
        page = exporter.until(lambda page: bool(rows(page)))
        time.sleep(2)
        page = exporter.page()
        assert not any("pod_uid" in row for row in rows(page))
        value = page.value("gpu_exporter_attribution_up", source="pods")
        errors = [(labels["reason"], v) for n, labels, v in page.samples if n == "gpu_attribution_errors_total"]
        return f"up {value:.0f}, errors {errors}; doctor: {cluster.doctor(node='elsewhere')}"


def no_dra(cluster: Cluster) -> str:
    """The server has no resource claims."""
    with cluster.serving("--kubernetes-dra", log="no_dra.log") as exporter:
        page = exporter.until(up("resource_slices", 0))
        assert page.values("gpu_attribution_errors_total", source="resource_slices", reason="not_found") > [0]
        exporter.until(shows("gpt-2", workload="gpt-2"))
    return f"up 0, not_found; pods have their labels; doctor: {cluster.doctor('--kubernetes-dra')}"


def deleted_account(cluster: Cluster) -> str:
    """The service account is deleted, and another of its name is created."""
    before = cluster.errors()
    path = f"{COLLECTIONS['ServiceAccount'].format(namespace=chart.NAMESPACE)}/{cluster.account}"
    cluster.control.ask("DELETE", path)
    begin = time.monotonic()

    def unauthorized() -> bool:
        cluster.gate.cut()
        return cluster.errors()["unauthorized"] > before["unauthorized"]

    until(unauthorized, 15, "the refusal", every=1.0)  # the API server accepts tokens that it knows for ten seconds
    refused = time.monotonic() - begin
    said = cluster.doctor()
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": cluster.account}}
    cluster.control.create(account, chart.NAMESPACE)
    cluster.control.write_account(cluster.folder / "account", chart.NAMESPACE, cluster.account)
    back = cluster.seconds_until(up("pods"), 30)
    return f"401 after {refused:.1f} s; doctor: {said}; up 1 {back:.1f} s after the new token is written"


CASES: Mapping[str, Callable[[Cluster], str]] = {
    case.__name__: case
    for case in (
        workloads,
        label_change,
        ended,
        recreated,
        killed,
        frozen,
        restored,
        restored_between,
        too_old,
        busy,
        no_watch,
        wrong_name,
        no_dra,
        deleted_account,
    )
}


def rest(cluster: Cluster, seconds: float) -> str:
    """Count what an exporter requests while nothing changes."""
    cluster.gate.cut()
    cluster.exporter.until(up("pods"))
    time.sleep(2)
    before, connections = requests(cluster), cluster.gate.accepted
    time.sleep(seconds)
    new, minutes = requests(cluster) - before, seconds / 60
    connections = cluster.gate.accepted - connections
    rate = sum(new.values()) / minutes
    return f"in {minutes:.0f} minutes {dict(new)} and {connections} new connections: {rate:.2f} requests a minute"


def requests(cluster: Cluster) -> Counter[str]:
    """Return the requests of the service account by verb, without those that have not ended."""
    events = [json.loads(line) for line in cluster.control.audit_log.read_text().splitlines()]
    return Counter(event["verb"] for event in events if event["stage"] == "ResponseComplete")
