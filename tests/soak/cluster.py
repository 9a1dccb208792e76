"""A cluster for `tests.soak.control_plane`: a control plane, a hollow node, an exporter, and objects to create."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import Exporter, Page, command, run
from tests.support.control_plane import COLLECTIONS, ControlPlane, Refused
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet
from tests.support.gate import Gate
from tests.support.owners import rows
from tests.support.tools import free_port, until

NODE = "node-1"
PODS = COLLECTIONS["Pod"].format(namespace="team")
CONTAINER = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


@dataclass
class Cluster:
    """A control plane, a node, and an exporter that reaches the API server through `gate`."""

    control: ControlPlane
    gate: Gate
    kubelet: FakeKubelet
    driver: FakeDriver
    folder: Path
    role: Mapping[str, Any]
    account: str
    exporter: Exporter = field(init=False)

    def environment(self, node: str = NODE) -> dict[str, str]:
        """Return the environment of an exporter in a pod of this node."""
        return {
            **os.environ,
            **self.driver.environment,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.gate.port),
            "GPU_EXPORTER_KUBERNETES_SERVICE_ACCOUNT": str(self.folder / "account"),
            "GPU_EXPORTER_NODE_NAME": node,
        }

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags of attribution."""
        return ("--kubernetes", "--kubernetes-pod-labels", "team", "--pod-resources-socket", str(self.kubelet.socket))

    @contextmanager
    def serving(self, *arguments: str, node: str = NODE, log: str = "exporter.log") -> Iterator[Exporter]:
        """Run an exporter."""
        port, path = free_port(), self.folder / log
        own = command("serve", "--address", f"127.0.0.1:{port}", "--interval", "200ms", *self.flags, *arguments)
        with path.open("a") as errors:
            process = subprocess.Popen(own, env=self.environment(node), text=True, stderr=errors)
        exporter = Exporter(process, port, path)

        def answers() -> bool:
            with suppress(OSError):
                return bool(exporter.page().values("gpu_up"))
            return False

        try:
            until(answers, 20, "the exporter")
            yield exporter
        finally:
            process.kill()
            process.wait()

    def doctor(self, *arguments: str, node: str = NODE) -> str:
        """Return doctor's lines about the API server."""
        lines = run("doctor", *self.flags, *arguments, env=self.environment(node)).stdout.splitlines()
        return " | ".join(" ".join(line.split()) for line in lines if "API server" in line)

    def seconds_until(self, holds: Callable[[Page], bool], timeout: float = 15.0) -> float:
        """Return how long it takes until a condition holds in the exporter's responses."""
        begin = time.monotonic()
        self.exporter.until(holds, timeout)
        return time.monotonic() - begin

    def errors(self) -> Counter[str]:
        """Return the failures of the lookup of pods by their reason."""
        page = self.exporter.page()
        return Counter(
            {
                labels["reason"]: int(value)
                for name, labels, value in page.samples
                if name == "gpu_attribution_errors_total" and labels["source"] == "pods"
            }
        )

    def label(self, pod: str, team: str) -> None:
        """Set the label `team` of a pod."""
        self.control.ask("PATCH", f"{PODS}/{pod}", {"metadata": {"labels": {"team": team}}})

    def uid(self, pod: str) -> str:
        """Return the UID of a pod that runs; "" if there is none."""
        try:
            found = self.control.ask("GET", f"{PODS}/{pod}")
        except Refused:
            return ""
        return str(found["metadata"]["uid"]) if found["status"]["phase"] == "Running" else ""

    def create_pod(self, item: Mapping[str, Any]) -> None:
        """Create a pod, as soon as its namespace has a service account."""

        def created() -> bool:
            with suppress(Refused):
                self.control.create(item)
                return True
            return False

        until(created, 30, "the creation of a pod")


def pods(page: Page) -> dict[str, dict[str, str]]:
    """Return the labels of `gpu_pod_info` by pod."""
    return {row["pod"]: row for row in rows(page)}


def shows(pod: str, **labels: str) -> Callable[[Page], bool]:
    """Return a condition: this pod has these labels."""
    return lambda page: labels.items() <= pods(page).get(pod, {}).items()


def bare(name: str, **labels: str) -> dict[str, Any]:
    """Return a pod without a controller."""
    metadata = {"name": name, "namespace": "team", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [CONTAINER]}}


def controller(kind: str, name: str) -> dict[str, Any]:
    """Return a Deployment, StatefulSet or Job of one pod."""
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": name, "team": "a"}},
        "spec": {"containers": [CONTAINER]},
    }
    spec: dict[str, Any] = {"template": template}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"app": name}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "team"}, "spec": spec}
