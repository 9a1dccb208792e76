"""A node of a control plane without containers: it reports GPUs, and its pods as running."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from tests.support.control_plane import COLLECTIONS, ControlPlane, Refused, stamp
from tests.support.fakes.kubelet import FakeKubelet, given

RESOURCE = "nvidia.com/gpu"
HEARTBEAT_SECONDS = 10.0
# How long a pod takes to end. Kubelet has already freed its devices.
TERMINATION_SECONDS = 0.6


class HollowNode(threading.Thread):
    """Gives each new pod of the node one GPU, and has `kubelet` list it, until `stop`.

    While the API server is down, the pods go on. Like kubelets before 1.34, this one lists pods that have ended.
    """

    def __init__(self, control: ControlPlane, kubelet: FakeKubelet, name: str, gpus: Sequence[str]) -> None:
        super().__init__(name="hollow-node", daemon=True)
        self._control, self._kubelet, self._node, self._gpus = control, kubelet, name, gpus
        # GPU and name by the UID of the pod.
        self._given: dict[str, tuple[str, str]] = {}
        self._ending: dict[str, float] = {}
        self._heartbeat = float("-inf")
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(0.1):
            try:
                self._beat()
                self._care()
            except (OSError, HTTPException, Refused):
                self._heartbeat = float("-inf")

    def stop(self) -> None:
        """Stop, and wait for the end."""
        self._stopping.set()
        self.join()

    def _beat(self) -> None:
        if time.monotonic() < self._heartbeat + HEARTBEAT_SECONDS:
            return
        self._heartbeat = time.monotonic()
        path = f"{COLLECTIONS['Node']}/{self._node}"
        try:
            self._control.ask("GET", path)
        except Refused:
            self._control.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self._node}})
        resources = {RESOURCE: str(len(self._gpus)), "cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp()}
        status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
        self._control.ask("PATCH", f"{path}/status", {"status": status})

    def _care(self) -> None:
        selector = quote(f"spec.nodeName={self._node}")
        pods = self._control.ask("GET", f"/api/v1/pods?fieldSelector={selector}")["items"]
        for uid in {*self._given} - {pod["metadata"]["uid"] for pod in pods}:
            del self._given[uid]
        for pod in pods:
            self._care_for(pod)
        names = [(gpu, *name.split("/")) for gpu, name in self._given.values()]
        self._kubelet.pods = [given(name, gpu, namespace=namespace) for gpu, namespace, name in names]

    def _care_for(self, pod: Mapping[str, Any]) -> None:
        metadata, uid = pod["metadata"], pod["metadata"]["uid"]
        path = f"{COLLECTIONS['Pod'].format(namespace=metadata['namespace'])}/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self._given.pop(uid, None)
            if time.monotonic() >= self._ending.setdefault(uid, time.monotonic()) + TERMINATION_SECONDS:
                self._control.ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        elif pod["status"]["phase"] in ("Pending", "Running") and uid not in self._given:
            free = [gpu for gpu in self._gpus if gpu not in {gpu for gpu, _ in self._given.values()}]
            self._given[uid] = free[0], f"{metadata['namespace']}/{metadata['name']}"
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp()}
            self._control.ask("PATCH", f"{path}/status", {"status": {"phase": "Running", "conditions": [ready]}})
