"""Many nodes of a control plane without containers, each with an exporter that says what the test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.control_plane import COLLECTIONS, ControlPlane, Refused, stamp
from tests.support.tools import free_port

HEARTBEAT_SECONDS = 10.0
# How long a pod takes to end.
TERMINATION_SECONDS = 1.5
GPUS = 8


@dataclass
class Machine:
    """What is really the case on a node: its boot, since when it has been healthy, and its faults and since when."""

    boot: int = 1
    healthy_since: float = 0.0
    fault: str = ""
    fault_since: float = 0.0


class HollowFleet(threading.Thread):
    """Keeps nodes ready, runs and ends their pods, and answers for their exporters, until `stop`.

    Each node has an address of its own, 127.0.1.N, on which its exporter listens. While the API server is down, the
    machines go on.
    """

    def __init__(self, control: ControlPlane, names: Sequence[str], namespace: str, labels: Mapping[str, str]) -> None:
        super().__init__(name="hollow-fleet", daemon=True)
        self._control, self._namespace, self._labels = control, namespace, labels
        self.machines = {name: Machine(healthy_since=time.time() - 3600) for name in names}
        self._addresses = {name: f"127.0.1.{place + 1}" for place, name in enumerate(names)}
        self._heartbeats = dict.fromkeys(names, float("-inf"))
        self._ending: dict[str, float] = {}
        self._stopping = threading.Event()
        self.port = free_port()
        handler = type("Handler", (_Exporter,), {"fleet": self})
        self._server = ThreadingHTTPServer(("0.0.0.0", self.port), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def fail(self, name: str, reason: str = "stalled") -> None:
        """A GPU of a node fails."""
        machine = self.machines[name]
        machine.fault, machine.fault_since = reason, time.time()

    def repair(self, name: str) -> None:
        """A node reboots with healthy GPUs."""
        machine = self.machines[name]
        machine.fault, machine.healthy_since, machine.boot = "", time.time(), machine.boot + 1
        self._heartbeats[name] = float("-inf")

    def run(self) -> None:
        while not self._stopping.wait(0.3):
            try:
                for name in self.machines:
                    self._beat(name)
                for pod in self._control.ask("GET", "/api/v1/pods")["items"]:
                    self._care_for(pod)
            except (OSError, HTTPException, Refused):
                self._heartbeats = dict.fromkeys(self._heartbeats, float("-inf"))

    def stop(self) -> None:
        """Stop, and wait for the end."""
        self._stopping.set()
        self.join()
        self._server.shutdown()
        self._server.server_close()

    def _beat(self, name: str) -> None:
        if time.monotonic() < self._heartbeats[name] + HEARTBEAT_SECONDS:
            return
        path = f"{COLLECTIONS['Node']}/{name}"
        try:
            self._control.ask("GET", path)
        except Refused:
            self._control.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            self._create_exporter(name)
        resources = {"nvidia.com/gpu": str(GPUS), "cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp()}
        info = {"bootID": f"boot-{self.machines[name].boot}"}
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready], "nodeInfo": info}
        self._control.ask("PATCH", f"{path}/status", {"status": status})
        self._heartbeats[name] = time.monotonic()

    def _create_exporter(self, node: str) -> None:
        metadata = {"name": f"exporter-{node}", "namespace": self._namespace, "labels": dict(self._labels)}
        spec = {"nodeName": node, "containers": [{"name": "exporter", "image": "none"}]}
        self._control.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def _care_for(self, pod: Mapping[str, Any]) -> None:
        metadata, uid = pod["metadata"], pod["metadata"]["uid"]
        path = f"{COLLECTIONS['Pod'].format(namespace=metadata['namespace'])}/{metadata['name']}"
        node = pod["spec"].get("nodeName", "")
        try:
            if "deletionTimestamp" in metadata:
                if time.monotonic() >= self._ending.setdefault(uid, time.monotonic()) + TERMINATION_SECONDS:
                    self._control.ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            elif node and not is_ready(pod):
                # Also if the API server has taken the node for dead, because heartbeats were late.
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp()}
                status: dict[str, Any] = {"phase": "Running", "conditions": [ready]}
                if metadata["name"] == f"exporter-{node}":
                    status |= {"podIP": self._addresses[node], "podIPs": [{"ip": self._addresses[node]}]}
                self._control.ask("PATCH", f"{path}/status", {"status": status})
        except Refused:
            pass  # it has changed; the next round sees it

    def answer(self, address: str) -> Mapping[str, Any]:
        """Return what the exporter at an address says."""
        name = next(name for name, own in self._addresses.items() if own == address)
        machine, now = self.machines[name], time.time()
        since = machine.fault_since if machine.fault else machine.healthy_since
        problem = {"reason": machine.fault, "health": "unhealthy", "action": "node_reboot", "what": machine.fault}
        gpus = [{"gpu": gpu, "UUID": f"{name}-{gpu}", "health": "healthy", "since": since} for gpu in range(GPUS)]
        if machine.fault:
            gpus[0] |= {"health": "unhealthy", "problems": [{**problem, "since": since}]}
        about = {"apiVersion": 1, "node": name, "boot_id": f"boot-{machine.boot}", "at": now, "live": True}
        return {**about, "ready": True, "expected": GPUS, "missing": 0, "gpus": gpus}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready."""
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


class _Exporter(BaseHTTPRequestHandler):
    fleet: HollowFleet

    def do_GET(self) -> None:
        body = json.dumps(self.fleet.answer(self.connection.getsockname()[0])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""
