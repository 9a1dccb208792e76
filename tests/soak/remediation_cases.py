"""The cases of `tests.soak.remediation_cluster`. Each returns what was seen, and raises AssertionError.

Each case starts its controllers, and leaves all nodes healthy and in service.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.cluster import KubernetesCluster
from gpu_exporter.remediation.pods import CHECKPOINT, EVICT_AFTER
from gpu_exporter.remediation.run import client
from gpu_exporter.remediation.settings import Exporters, NodePool, Settings
from tests.soak.remediation_fleet import DISRUPTIONS, LEASE, NAMES, Fleet, budget, seconds, workload
from tests.support import chart, eviction_contract
from tests.support.control_plane import COLLECTIONS, POLICY, Refused
from tests.support.tools import until

# The limit of the client: see `kubernetes/writer.py`.
PER_SECOND, BURST = 5, 10


def drained(fleet: Fleet, name: str) -> float:
    """Wait until a node is drained; return how long that takes."""
    begin = time.monotonic()
    until(lambda: fleet.drained(name), 400, "the end of the drain")
    return seconds(begin)


def returned(fleet: Fleet, name: str) -> None:
    """Repair a node, and wait until it is back in service."""
    fleet.nodes.repair(name)
    until(lambda: fleet.is_back(name), 200, "the return")


def observe(fleet: Fleet) -> str:
    """In observe mode, everything is tried as a dry run, and only the Lease is written."""
    before, pods, since = fleet.node("node-03"), {pod.uid for pod in fleet.pods()}, fleet.audited()
    fleet.start_both("observe")
    fleet.nodes.fail("node-03")

    def tried() -> bool:
        return any(event["objectRef"].get("subresource") == "eviction" for event in fleet.requests(since))

    until(tried, 60, "the dry run of an eviction")
    time.sleep(10)
    writes = [event for event in fleet.requests(since) if event["verb"] in ("create", "update", "patch", "delete")]
    real = {event["objectRef"]["resource"] for event in writes if "dryRun=All" not in event["requestURI"]}
    assert real == {"leases"}, real
    codes = Counter((event["objectRef"]["resource"], event["responseStatus"]["code"]) for event in writes)
    # Both controllers want the Lease at the start, and one of them loses.
    assert all(code < 300 for key, code in codes if (key, code) != ("leases", 409)), codes
    after = fleet.node("node-03")
    assert (after.annotations, after.taints, after.unschedulable) == (before.annotations, (), False)
    assert {pod.uid for pod in fleet.pods()} == pods
    fleet.nodes.repair("node-03")
    return f"only the Lease was written; dry runs and their answers: { {f'{a} {b}': n for (a, b), n in codes.items()} }"


def evictions(fleet: Fleet) -> str:
    """The server answers as the fake one of CI does, with the rights of the chart."""
    fleet.allow("llama", 0)
    path = f"{COLLECTIONS['PodDisruptionBudget'].format(namespace='team')}/llama"
    until(lambda: fleet.get(path)["status"].get("disruptionsAllowed") == 0, 30, "the new budget")
    free, kept = (next(pod for pod in fleet.pods() if pod.labels.get("app") == app) for app in ("web", "llama"))
    here = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(fleet.control.port)}
    with closing(client(fleet.folder / "account", here)) as api:
        settings = Settings(chart.NAMESPACE, Exporters(chart.NAMESPACE), (NodePool("all"),))
        found = eviction_contract.answers(KubernetesCluster(api, settings), free, kept)
    assert found == eviction_contract.EXPECTED, found
    path = f"{COLLECTIONS['Pod'].format(namespace='team')}/{kept.name}"
    token = (fleet.folder / "account" / "token").read_text()
    for method in ("DELETE", "PATCH"):
        with pytest.raises(Refused, match=r"^403"):
            fleet.control.ask(method, path, {}, token)
    fleet.allow("llama", DISRUPTIONS["llama"])
    return f"{len(found)} answers as expected; pods can be neither deleted nor changed"


def drain(fleet: Fleet) -> str:
    """From the fault to the return to service."""
    fleet.start_both()
    begin = time.monotonic()
    gone = {pod.uid for pod in fleet.on("node-03")}
    fleet.nodes.fail("node-03")
    until(lambda: fleet.node("node-03").cordoned, 60, "the cordon")
    cordoned = seconds(begin)
    took = cordoned + drained(fleet, "node-03")
    assert not fleet.on("node-03")
    until(fleet.settled, 60, "the replacements")
    replaced = seconds(begin)
    assert not gone & {pod.uid for pod in fleet.pods()}
    assert not fleet.on("node-03")
    returned(fleet, "node-03")
    events = fleet.get("/api/v1/namespaces/default/events")["items"]
    reasons = [event["reason"] for event in events if event["involvedObject"]["name"] == "node-03"]
    assert {"GpuCordoned", "GpuDrained", "GpuReturnedToService"} <= {*reasons}, reasons
    return (
        f"cordoned {cordoned} s after the fault, drained of {len(gone)} pods after {took:.1f} s, all replaced after "
        f"{replaced} s, back in service"
    )


def two_at_once(fleet: Fleet) -> str:
    """Four nodes fail: never more than two are out of service."""
    fleet.start_both()
    names = NAMES[4:8]
    for name in names:
        fleet.nodes.fail(name)
    most, back = 0, set[str]()
    begin = time.monotonic()
    while len(back) < len(names):
        out = [name for name in NAMES if fleet.node(name).unschedulable]
        most = max(most, len(out))
        assert most <= 2, out
        for name in out:
            if fleet.drained(name) and fleet.nodes.machines[name].fault:
                fleet.nodes.repair(name)
        back = {name for name in names if not fleet.nodes.machines[name].fault and fleet.is_back(name)}
        assert time.monotonic() - begin < 900, back
        time.sleep(0.5)
    return f"at most {most} nodes out of service at once, all four back after {seconds(begin)} s"


def disruption_budget(fleet: Fleet) -> str:
    """A disruption budget allows nothing for a while."""
    name = next(name for name in NAMES[:-1] if any(pod.labels["app"] == "web" for pod in fleet.on(name)))
    fleet.allow("web", 0)
    fleet.start_both()
    since = fleet.audited()
    fleet.nodes.fail(name)

    def refusals() -> int:
        return sum(event["responseStatus"]["code"] == 429 for event in fleet.requests(since))

    until(lambda: refusals() >= 3, 120, "refusals")
    until(lambda: {pod.labels["app"] for pod in fleet.on(name)} == {"web"}, 120, "the others to go")
    fleet.allow("web", DISRUPTIONS["web"])
    drained(fleet, name)
    count = refusals()
    returned(fleet, name)
    return f"{count} answers 429, then drained and back"


def job_with_budget(fleet: Fleet) -> str:
    """A disruption budget allows only some of the pods of a job: none goes, until it allows all."""
    job = "train-1"
    name = next(pod.node for pod in fleet.pods() if pod.labels.get("job-name") == job)
    strict = budget(job, 1)
    strict["spec"] = {"minAvailable": 4, "selector": {"matchLabels": {"app": job}}}
    fleet.control.create(strict)
    before = fleet.jobs()[job]
    fleet.start_both()
    fleet.nodes.fail(name)
    until(lambda: f"PodDisruptionBudget {job} allows" in fleet.log(), 120, "the refusal")
    until(lambda: {pod.labels["app"] for pod in fleet.on(name)} == {job}, 180, "the others to go")
    time.sleep(10)
    assert fleet.jobs()[job] == before, "some of its pods were evicted"
    fleet.control.ask("DELETE", f"{COLLECTIONS['PodDisruptionBudget'].format(namespace='team')}/{job}")
    drained(fleet, name)
    assert not fleet.jobs().get(job, frozenset()) & before
    returned(fleet, name)
    return "no pod of the job went while its disruption budget allowed 4 of 8, then all did"


def job_without_retries(fleet: Fleet) -> str:
    """Kubernetes counts an eviction as a failure: a Job that tolerates none is kept, until its policy ignores it."""
    jobs = COLLECTIONS["Job"].format(namespace="team")
    fragile = workload("Job", "fragile", 1, nodeName=NAMES[2])
    fragile["spec"]["backoffLimit"] = 0
    fleet.control.create(fragile)
    (pod,) = until(lambda: [pod for pod in fleet.pods() if pod.job == "fragile" and pod.node], 60, "its pod")
    fleet.start_both()
    fleet.nodes.fail(pod.node)
    until(lambda: "Job team/fragile would fail: its backoffLimit is 0" in fleet.log(), 180, "the refusal")
    until(lambda: {each.uid for each in fleet.on(pod.node)} == {pod.uid}, 300, "the others to go")
    path = f"{COLLECTIONS['Pod'].format(namespace='team')}/{pod.name}"
    eviction = {"apiVersion": POLICY, "kind": "Eviction", "metadata": {"name": pod.name, "namespace": "team"}}
    fleet.control.ask("POST", f"{path}/eviction", eviction)

    def failed() -> bool:
        conditions = fleet.get(f"{jobs}/fragile").get("status", {}).get("conditions") or ()
        return any(each["type"].startswith("Fail") for each in conditions)

    until(failed, 60, "the failure of the Job")
    fleet.control.ask("DELETE", f"{jobs}/fragile?propagationPolicy=Background")
    drained(fleet, pod.node)
    returned(fleet, pod.node)
    return "kept; evicted by hand, its Job failed"


def checkpoint(fleet: Fleet) -> str:
    """A pod asks for time to write a checkpoint."""
    pod = next(pod for pod in fleet.pods() if pod.labels.get("app") == "web")
    path = f"{COLLECTIONS['Pod'].format(namespace='team')}/{pod.name}"
    fleet.control.ask("PATCH", path, {"metadata": {"annotations": {CHECKPOINT: "20s"}}})
    fleet.start_both()
    fleet.nodes.fail(pod.node)

    def told() -> float:
        notes = fleet.get(path)["metadata"]["annotations"]
        return time.monotonic() if EVICT_AFTER in notes else 0.0

    begin = until(told, 60, "the announcement")
    until(lambda: pod.uid not in {each.uid for each in fleet.pods()}, 120, "the eviction")
    took = seconds(begin)
    assert took >= 19
    drained(fleet, pod.node)
    returned(fleet, pod.node)
    return f"evicted {took} s after the announcement of 20 s"


def protected(fleet: Fleet) -> str:
    """Pods of kube-system stay, and after its timeout the drain is given up."""
    name = NAMES[-1]
    infra = {pod.uid for pod in fleet.pods() if pod.namespace == "kube-system"}
    fleet.start_both(drain={"timeout": "60s"})
    fleet.nodes.fail(name)
    until(lambda: fleet.node(name).labels.get(s.DRAIN_LABEL) == "timeout", 180, "the timeout")
    assert infra <= {pod.uid for pod in fleet.pods()}
    page = fleet.page(fleet.led())
    returned(fleet, name)
    assert "gpu_remediation_draining_since_timestamp_seconds{" in page
    return f"{len(infra)} pods stayed"


def person(fleet: Fleet) -> str:
    """Somebody uncordons the node in the middle of a drain."""
    name = "node-09"
    fleet.allow("web", 0)
    fleet.allow("llama", 0)
    fleet.start_both()
    fleet.nodes.fail(name)
    until(lambda: fleet.node(name).labels.get(s.DRAIN_LABEL) == "draining", 60, "the drain")
    fleet.control.ask("PATCH", f"{COLLECTIONS['Node']}/{name}", {"spec": {"unschedulable": None}})
    until(lambda: fleet.is_back(name), 120, "the hold")
    since = fleet.audited()
    for app, count in DISRUPTIONS.items():
        fleet.allow(app, count)
    time.sleep(20)
    assert not fleet.evictions(since), "evicted from a node that a person has uncordoned"
    assert fleet.is_back(name)
    fleet.nodes.repair(name)
    return "nothing was evicted after that, and the node stayed in service"


def killed_leader(fleet: Fleet) -> str:
    """The leader is killed in the middle of a drain, twice; each time the other one goes on."""
    fleet.start_both()
    took = [_killed_leader(fleet) for _ in range(2)]
    return f"drained {' and '.join(map(str, took))} s after the leader was killed"


def _killed_leader(fleet: Fleet) -> float:
    name, which = _evicting(fleet)
    fleet.kill(which)
    begin = time.monotonic()
    fleet.start(which)
    drained(fleet, name)
    took = seconds(begin)
    returned(fleet, name)
    return took


def _evicting(fleet: Fleet) -> tuple[str, int]:
    """Let the node with the most pods to evict fail, and wait for the first eviction; return the node and who leads."""
    which = fleet.led()
    since = fleet.audited()
    name = max(NAMES, key=lambda each: len(fleet.on(each)))
    fleet.nodes.fail(name)
    until(lambda: fleet.evictions(since), 120, "the first eviction", every=0.02)
    return name, which


def frozen_leader(fleet: Fleet) -> str:
    """The leader hangs for longer than its Lease in the middle of a drain, then goes on beside the new one."""
    fleet.start_both()
    name, which = _evicting(fleet)
    fleet.processes[which].send_signal(signal.SIGSTOP)
    other = 1 - which
    until(lambda: "gpu_remediation_leader 1.0" in fleet.page(other), 120, "another leader")
    fleet.processes[which].send_signal(signal.SIGCONT)
    drained(fleet, name)
    until(lambda: "gpu_remediation_leader 0.0" in fleet.page(which), 60, "that the old one notices")
    returned(fleet, name)
    return "the other one finished the drain"


def revoked(fleet: Fleet) -> str:
    """The rights are removed in the middle of a drain, and come back."""
    fleet.start_both()
    since = fleet.audited()
    name, _ = _evicting(fleet)
    fleet.revoke()
    until(lambda: any(event["responseStatus"]["code"] == 403 for event in fleet.requests(since)), 120, "a refusal")
    time.sleep(20)
    forbidden = sum(event["responseStatus"]["code"] == 403 for event in fleet.requests(since))
    fleet.grant()
    took = drained(fleet, name)
    returned(fleet, name)
    return f"{forbidden} answers 403 in about 20 s, drained {took} s after the rights are back"


def conflicts(fleet: Fleet) -> str:
    """Another client changes the node all the time."""
    stop = threading.Event()

    def disturb() -> None:
        count = 0
        while not stop.wait(1.0):
            count += 1
            label = {"metadata": {"labels": {"disturbed": str(count)}}}
            fleet.control.ask("PATCH", f"{COLLECTIONS['Node']}/node-14", label)

    fleet.start_both()
    since = fleet.audited()
    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        fleet.nodes.fail("node-14")
        drained(fleet, "node-14")
        fleet.nodes.repair("node-14")
        until(lambda: fleet.is_back("node-14"), 200, "the return")
    finally:
        stop.set()
        thread.join()
    refused = sum(event["responseStatus"]["code"] in (409, 422) for event in fleet.requests(since))
    return f"{refused} conflicts"


def killed_server(fleet: Fleet) -> str:
    """The API server is killed in the middle of a drain."""
    fleet.start_both()
    name, _ = _evicting(fleet)
    fleet.control.kill("kube-apiserver")
    time.sleep(5)
    fleet.control.start_api()
    took = drained(fleet, name)
    returned(fleet, name)
    return f"drained {took} s after it is back"


def storm(fleet: Fleet) -> str:
    """A storm of webhooks makes the controller no faster than its limit."""
    fleet.start_both()
    which = fleet.led()
    since, begin = fleet.audited(), time.monotonic()
    alerts = [{"status": "firing", "labels": {"node": name}} for name in NAMES] * 20
    body = json.dumps({"alerts": alerts}).encode()
    with ThreadPoolExecutor(16) as executor:
        answers = Counter(executor.map(lambda _: fleet.page(which, "/webhook", body).strip(), range(1500)))
    took = time.monotonic() - begin
    requests = len(fleet.requests(since))
    assert answers["accepted"] == 1500, answers
    assert requests <= PER_SECOND * took + 2 * BURST + took, (requests, took)
    return f"1500 notifications of {len(alerts)} alerts in {took:.1f} s: {requests} requests of both controllers"


def restored(fleet: Fleet) -> str:
    """etcd is restored from a backup of the middle of a drain, when the node is drained already."""
    fleet.start_both()
    name, _ = _evicting(fleet)
    fleet.control.back_up(fleet.folder / "backup")
    drained(fleet, name)
    fleet.restore()
    assert not fleet.drained(name), "the backup is too new"
    took = drained(fleet, name)
    returned(fleet, name)
    return f"drained again {took} s after the restore"


def restored_before(fleet: Fleet) -> str:
    """etcd is restored from a backup of before the fault, when the node is drained already."""
    name = "node-17"
    fleet.start_both()
    fleet.control.back_up(fleet.folder / "backup")
    fleet.nodes.fail(name)
    drained(fleet, name)
    first = fleet.node(name).state
    fleet.restore()
    until(lambda: fleet.node(name).state != first, 60, "the cordon, which the backup does not know")
    took = drained(fleet, name)
    again = fleet.node(name).state
    assert first is not None
    assert again is not None
    assert first.fault != again.fault, "the backup is too new"
    claims = fleet.get(LEASE)["metadata"]["annotations"]
    returned(fleet, name)
    return f"cordoned and drained again {took} s after the restore, with the claims {claims}"


CASES: Mapping[str, Callable[[Fleet], str]] = {
    case.__name__: case
    for case in (
        observe,
        evictions,
        drain,
        two_at_once,
        disruption_budget,
        job_with_budget,
        job_without_retries,
        checkpoint,
        protected,
        person,
        killed_leader,
        frozen_leader,
        revoked,
        conflicts,
        killed_server,
        storm,
        restored,
        restored_before,
    )
}
