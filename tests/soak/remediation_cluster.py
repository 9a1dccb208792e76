"""The remediation controller against a real control plane: 20 nodes, 200 pods, two controllers.

    K8S_DIR=DIR python -m tests.soak.remediation_cluster [--cases NAME …]

`DIR/bin` must have etcd, kube-apiserver, kube-controller-manager and kube-scheduler, version 1.21 or newer: see
`tests.soak.control_plane`. The controllers have the rights of the chart. Nodes are hollow: no container runs, and the
exporter of each node says what the case wants. After each case, no pod must have been evicted twice, every job must
have lost all its pods or none, and no eviction must have been of a pod that is protected or has no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path

from tests.soak.control_plane import programs
from tests.soak.remediation_cases import CASES
from tests.soak.remediation_fleet import DISRUPTIONS, NAMES, OWN, PODS, RIGHTS, WORKLOADS, Fleet, budget, seconds
from tests.support import chart
from tests.support.control_plane import ControlPlane, Refused
from tests.support.hollow_fleet import HollowFleet
from tests.support.tools import until


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Start the control plane, its nodes and workloads, and grant the rights of the chart."""
    with ExitStack() as stack:
        control = ControlPlane(programs(), folder)
        stack.callback(control.close)
        begin = time.monotonic()
        control.start()
        print(f"control plane: ready after {seconds(begin)} s", flush=True)
        for name in (chart.NAMESPACE, "team"):
            control.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        made = chart.objects({"remediation": {"enabled": True}})
        rights = [item for item in made if item["kind"] in RIGHTS]
        labels = chart.only(made, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
        nodes = HollowFleet(control, NAMES, chart.NAMESPACE, labels)
        running = Fleet(control, nodes, folder, rights)
        running.grant()
        control.write_account(folder / "account", chart.NAMESPACE, OWN)
        until(lambda: has_account(control), 60, "the default service accounts")
        nodes.start()
        stack.callback(nodes.stop)
        for item in (*WORKLOADS, *(budget(app, count) for app, count in DISRUPTIONS.items())):
            control.create(item)
        until(running.settled, 120, f"{PODS} pods that run")
        print(f"{len(NAMES)} nodes, {PODS} pods: running after {seconds(begin)} s", flush=True)
        stack.callback(running.kill_all)
        yield running


def has_account(control: ControlPlane) -> bool:
    """Return whether pods can be created in all namespaces."""
    try:
        for namespace in (chart.NAMESPACE, "team", "kube-system"):
            control.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    except Refused:
        return False
    return True


def check(running: Fleet, jobs: dict[str, frozenset[str]]) -> str:
    """Check what the controllers have done in a case; return it in words. Raises AssertionError."""
    evicted = running.evictions(running.since)
    # Pods of a StatefulSet keep their names.
    assert not [name for name, count in evicted.items() if count > 1 and not name.startswith("llama")], evicted
    assert not [name for name in evicted if name.startswith(("cpu", "infra", "exporter"))], evicted
    whole = [name for name, uids in running.jobs().items() if not uids & jobs[name]]
    none = [name for name, uids in running.jobs().items() if uids == jobs[name]]
    assert {*whole, *none} == {*jobs}, f"some jobs have lost only some of their pods: {jobs} -> {running.jobs()}"
    return f"{evicted.total()} evictions, jobs evicted as a whole: {len(whole)} of {len(jobs)}"


def main() -> int:
    """Run the cases, and print what was seen."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    chosen = options.parse_args()
    failures = []
    with tempfile.TemporaryDirectory() as folder, fleet(Path(folder)) as running:
        for name in chosen.cases:
            jobs, running.since = running.jobs(), running.audited()
            try:
                words = CASES[name](running)
                until(running.settled, 60, "that all pods run again")
                running.end()
                print(f"{name}: {words}; {check(running, jobs)}", flush=True)
            except (AssertionError, OSError, HTTPException, Refused) as error:
                failures.append(name)
                print(f"{name}: FAILED: {type(error).__name__}: {str(error)[:1000]}", *running.last_lines(), sep="\n  ")
                running.kill_all()
                running.reset()
                until(running.settled, 120, "that all pods run again")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
