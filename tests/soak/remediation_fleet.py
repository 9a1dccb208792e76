"""The cluster of `tests.soak.remediation_cluster`: 20 hollow nodes with 200 pods, and two remediation controllers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import yaml

from gpu_exporter.remediation import pods
from gpu_exporter.remediation import state as s
from gpu_exporter.remediation.pods import NodePod
from gpu_exporter.remediation.state import WatchedNode
from tests.support import chart
from tests.support.control_plane import COLLECTIONS, POLICY, ControlPlane, Refused
from tests.support.hollow_fleet import HollowFleet, is_ready
from tests.support.tools import free_port, until

NAMES = tuple(f"node-{place:02}" for place in range(20))
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
OWN = f"{chart.NAME}-remediation"
LEASE = f"{COLLECTIONS['Lease'].format(namespace=chart.NAMESPACE)}/{OWN}"
# The command line has no option for the folder of the service account, which is always the same in a pod.
PROGRAM = """
import os, sys
from pathlib import Path
from gpu_exporter.cli.logs import configure, write_decisions
from gpu_exporter.cli.stop import stop_event
from gpu_exporter.remediation.run import run
from gpu_exporter.remediation.settings import load
configure("info", "text")
write_decisions()
run(load(Path(sys.argv[1])), stop_event(), Path(sys.argv[2]))
"""
TOKEN = "webhook-token"


def workload(kind: str, name: str, count: int, gpus: int = 1, namespace: str = "team", **spec: Any) -> dict[str, Any]:
    """Return a Deployment, StatefulSet or Job with so many pods."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "none", **limits}], **spec},
    }
    own: dict[str, Any] = {"template": template}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        template["metadata"]["labels"] |= {"gpu-exporter.io/gang": name}
        own |= {"parallelism": count, "completions": count, "backoffLimit": 1000}
    else:
        own |= {"replicas": count, "selector": {"matchLabels": {"app": name}}}
    if kind == "StatefulSet":
        own |= {"serviceName": name, "podManagementPolicy": "Parallel"}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": own}


WORKLOADS = (
    workload("Deployment", "web", 40),
    workload("Deployment", "cpu", 68, gpus=0),
    workload("StatefulSet", "llama", 20),
    *(workload("Job", f"train-{place}", 8) for place in range(6)),
    workload("Deployment", "infra", 4, namespace="kube-system", nodeName=NAMES[-1]),
)
PODS = 40 + 68 + 20 + 48 + 4 + len(NAMES)
DISRUPTIONS = {"web": 3, "llama": 2}


def budget(app: str, unavailable: int) -> dict[str, Any]:
    """Return a PodDisruptionBudget."""
    spec = {"maxUnavailable": unavailable, "selector": {"matchLabels": {"app": app}}}
    metadata = {"name": app, "namespace": "team"}
    return {"apiVersion": POLICY, "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


@dataclass
class Fleet:
    """A control plane, its nodes, and the controllers, of which `processes` run.

    What they did is checked from the line `since` of the audit log on.
    """

    control: ControlPlane
    nodes: HollowFleet
    folder: Path
    rights: Sequence[Mapping[str, Any]]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    since: int = 0
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))

    # --- controllers --------------------------------------------------------------------------------------------------

    def start(self, which: int, mode: str = "drain", **settings: Any) -> None:
        """Start a controller."""
        budget = {"nodes": 2, "share": 0.1}
        pool = {"name": "all", "mode": mode, "budget": budget, "confirm": "1s", "clean": "5s", **settings}
        token = self.folder / "webhook-token"
        token.write_text(TOKEN)
        config = {
            "namespace": chart.NAMESPACE,
            "lease": OWN,
            "interval": "5s",
            "address": f"127.0.0.1:{self.ports[which]}",
            "webhook_token_file": str(token),
            "breaker": {"nodes": 9},
            "exporters": {"namespace": chart.NAMESPACE, "port": self.nodes.port},
            "pools": [pool],
        }
        path = self.folder / f"controller-{which}.yaml"
        path.write_text(yaml.safe_dump(config))
        here = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.control.port)}
        command = [sys.executable, "-c", PROGRAM, str(path), str(self.folder / "account")]
        with (self.folder / f"controller-{which}.log").open("ab") as log:
            self.processes[which] = subprocess.Popen(command, env={**os.environ, **here}, stdout=log, stderr=log)

    def start_both(self, mode: str = "drain", **settings: Any) -> None:
        """Start both controllers, and wait until one leads."""
        for which in range(2):
            self.start(which, mode, **settings)
        self.led()

    def end(self) -> None:
        """End the controllers that run."""
        for process in self.processes.values():
            process.terminate()
        codes = {which: process.wait(60) for which, process in self.processes.items()}
        assert not any(codes.values()), f"exit codes of the controllers: {codes}"
        self.processes.clear()

    def kill(self, which: int) -> None:
        """Kill a controller."""
        process = self.processes.pop(which)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        """Kill all controllers."""
        for which in [*self.processes]:
            self.kill(which)

    def page(self, which: int, path: str = "/metrics", body: bytes | None = None) -> str:
        """Return an answer of a controller; empty if it does not listen."""
        url, header = f"http://127.0.0.1:{self.ports[which]}{path}", {"Authorization": f"Bearer {TOKEN}"}
        with (
            suppress(URLError, ConnectionError, TimeoutError),
            urlopen(Request(url, body, header), timeout=10) as answer,
        ):
            return str(answer.read().decode())
        return ""

    def leader(self) -> int | None:
        """Return which controller leads."""
        return next((one for one in self.processes if "gpu_remediation_leader 1.0" in self.page(one)), None)

    def led(self) -> int:
        """Wait until a controller leads, and return which."""
        return until(lambda: [which for which in [self.leader()] if which is not None], 60, "a leader")[0]

    def log(self) -> str:
        """Return what the controllers have written."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("controller-*.log")))

    def last_lines(self) -> list[str]:
        """Return the ends of what the controllers have written."""
        return [
            line[:400]
            for path in sorted(self.folder.glob("controller-*.log"))
            for line in path.read_text().splitlines()[-8:]
        ]

    # --- what is the case ---------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """Return an object; a busy machine sometimes resets a connection."""
        for _ in range(5):
            with suppress(ConnectionError):
                return self.control.ask("GET", path)
        return self.control.ask("GET", path)

    def node(self, name: str) -> WatchedNode:
        """Return a node as it is now."""
        return s.read(self.get(f"{COLLECTIONS['Node']}/{name}"))

    def pods(self) -> list[NodePod]:
        """Return the pods of the workloads with GPUs that do not end."""
        listed = map(pods.read, self.get("/api/v1/pods")["items"])
        return [pod for pod in listed if pod.has_gpus and not pod.terminating]

    def on(self, name: str) -> list[NodePod]:
        """Return the pods with GPUs on a node that may be evicted."""
        return [pod for pod in self.pods() if pod.node == name and pod.namespace == "team"]

    def jobs(self) -> dict[str, frozenset[str]]:
        """Return the UIDs of the pods of each job."""
        found: dict[str, set[str]] = {}
        for pod in self.pods():
            if "job-name" in pod.labels:
                found.setdefault(pod.labels["job-name"], set()).add(pod.uid)
        return {name: frozenset(uids) for name, uids in found.items()}

    def settled(self) -> bool:
        """Return whether all pods run, as many as there should be, each on a node."""
        items = self.get("/api/v1/pods")["items"]
        running = [pod for pod in items if is_ready(pod)]
        return len(items) == len(running) == PODS and not any("deletionTimestamp" in pod["metadata"] for pod in items)

    def drained(self, name: str) -> bool:
        """Return whether the controller says that a node is drained."""
        return self.node(name).labels.get(s.DRAIN_LABEL) == "drained"

    def is_back(self, name: str) -> bool:
        """Return whether a node is in service, and nothing of the controller's is left on it but its history."""
        node = self.node(name)
        left = {s.DRAIN_LABEL, s.REPAIR_LABEL} & {*node.labels}
        return not node.unschedulable and not left and s.TAINT not in [taint["key"] for taint in node.taints]

    def requests(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the requests of the controllers from the audit log, without its first lines."""
        events = map(json.loads, self._audit()[since:])
        discovery = {"objectRef": {"resource": "", "name": ""}}
        return [{**discovery, **event} for event in events if event["stage"] == "ResponseComplete"]

    def audited(self) -> int:
        """Return how long the audit log is."""
        return len(self._audit())

    def _audit(self) -> list[str]:
        """Return the complete lines of the audit log, which begins with the first request of a controller."""
        path = self.control.audit_log
        return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []

    def evictions(self, since: int = 0) -> Counter[str]:
        """Return how often each pod has been evicted, apart from dry runs and refusals."""
        return Counter(
            event["objectRef"]["name"]
            for event in self.requests(since)
            if event["objectRef"].get("subresource") == "eviction"
            and "dryRun" not in event["requestURI"]
            and event["responseStatus"]["code"] == 201
        )

    def allow(self, app: str, unavailable: int) -> None:
        """Change a PodDisruptionBudget."""
        path = f"{COLLECTIONS['PodDisruptionBudget'].format(namespace='team')}/{app}"
        self.control.ask("PATCH", path, {"spec": {"maxUnavailable": unavailable}})

    def reset(self) -> None:
        """Remove all traces of the controllers, after a case that has failed."""
        gone = dict.fromkeys((s.STATE, s.REPAIR, s.FENCE))
        metadata = {"annotations": gone, "labels": dict.fromkeys((s.DRAIN_LABEL, s.REPAIR_LABEL))}
        for name in NAMES:
            self.nodes.repair(name)
            path = f"{COLLECTIONS['Node']}/{name}"
            self.control.ask("PATCH", path, {"metadata": metadata, "spec": {"unschedulable": None, "taints": None}})
        with suppress(Refused):
            self.control.ask("DELETE", LEASE)
        self.grant()
        for app, count in DISRUPTIONS.items():
            self.allow(app, count)

    def restore(self) -> None:
        """Restore etcd from the backup. Evictions of before are forgotten, as the API server has forgotten them."""
        self.control.kill("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
        self.control.restore(self.folder / "backup")
        self.control.start_etcd()
        self.since = self.audited()
        self.control.start_api()
        self.control.start_controllers()

    def grant(self, kinds: Sequence[str] = RIGHTS) -> None:
        """Create the rights of the chart."""
        for item in self.rights:
            if item["kind"] in kinds and item["metadata"]["name"].endswith(OWN):
                self.control.create(item, chart.NAMESPACE)

    def revoke(self) -> None:
        """Delete the bindings."""
        for item in self.rights:
            if item["kind"] == "ClusterRoleBinding" and item["metadata"]["name"].endswith(OWN):
                with suppress(Refused):
                    self.control.ask("DELETE", f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}")


def seconds(begin: float) -> float:
    """Return the time since a monotonic time, rounded."""
    return round(time.monotonic() - begin, 1)
