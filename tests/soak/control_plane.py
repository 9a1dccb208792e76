"""Pods of a real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

    K8S_DIR=DIR python -m tests.soak.control_plane [--cases NAME …] [--without-key-identifiers] [--rest 660]

`DIR/bin` must have the four programs, version 1.21 or newer. They can be built with Go from the module
`k8s.io/kubernetes`; Debian 12 has etcd (`etcd-server`). The exporter is a client with the token of a service account
that has the rights of the chart. Nodes are hollow: no container runs. CI runs the same cases with a fake API server
(tests/e2e/attribution).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.soak.cluster import NODE, Cluster
from tests.soak.control_plane_cases import CASES, rest
from tests.support import chart
from tests.support.control_plane import PROGRAMS, ControlPlane
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.fakes.kubelet import FakeKubelet
from tests.support.gate import Gate
from tests.support.hollow_node import HollowNode
from tests.support.owners import rows

GPUS = 8
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")


def programs(names: Sequence[str] = PROGRAMS) -> Path:
    """Return the folder of the programs. Raises SystemExit if one is missing."""
    folder = Path(os.environ.get("K8S_DIR", ".")) / "bin"
    missing = [name for name in names if not os.access(folder / name, os.X_OK)]
    if missing:
        sys.exit(f"{folder} has no {', '.join(missing)}: set K8S_DIR to a folder whose `bin` has them (see --help)")
    return folder.absolute()


@contextmanager
def cluster(folder: Path, *, key_identifiers: bool) -> Iterator[Cluster]:
    """Start the control plane and a node, and grant the rights of the chart."""
    with ExitStack() as stack:
        control = ControlPlane(programs(), folder, key_identifiers=key_identifiers)
        stack.callback(control.close)
        begin = time.monotonic()
        control.start()
        print(f"control plane: ready after {time.monotonic() - begin:.1f} s", flush=True)
        kubelet = FakeKubelet(folder / "pod-resources" / "kubelet.sock")
        kubelet.start()
        stack.callback(kubelet.stop)
        node = HollowNode(control, kubelet, NODE, [str(identity(gpu)["UUID"]) for gpu in range(GPUS)])
        node.start()
        stack.callback(node.stop)
        gate = Gate(control.port)
        stack.callback(gate.close)
        control.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": chart.NAMESPACE}})
        control.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        made = chart.objects({"attribution": {"podLabels": ["team"], "dra": True}})
        for item in made:
            if item["kind"] in RIGHTS:
                control.create(item, chart.NAMESPACE)
        of_chart = chart.only(made, "ServiceAccount")["metadata"]["name"]
        control.write_account(folder / "account", chart.NAMESPACE, of_chart)
        driver = FakeDriver(folder / "driver", gpus=GPUS)
        running = Cluster(control, gate, kubelet, driver, folder, chart.only(made, "ClusterRole"), of_chart)
        running.exporter = stack.enter_context(running.serving())
        yield running


def main() -> int:
    """Run the cases, and print what was seen."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    options.add_argument("--without-key-identifiers", action="store_true", help="certificates as in older clusters")
    options.add_argument("--rest", type=float, default=0, help="at the end, count requests for this many seconds")
    chosen = options.parse_args()
    failures = []
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster(Path(folder), key_identifiers=not chosen.without_key_identifiers) as running,
    ):
        for name in CASES:  # in their order: most need the pods of the first
            if name in chosen.cases:
                try:
                    print(f"{name}: {CASES[name](running)}", flush=True)
                except AssertionError as error:
                    failures.append(name)
                    print(f"{name}: FAILED: {str(error).splitlines()[:1]}", *rows(running.exporter.page()), sep="\n  ")
        if chosen.rest:
            print(f"rest: {rest(running, chosen.rest)}", flush=True)
        print((Path(folder) / "exporter.log").read_text())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
