"""Rules on the series of kube-state-metrics: free GPUs, waiting pods, and fragmented GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from tests.rules.promtool import Case, Expect, check, promtools
from tests.rules.series import Device, Generation, minutes

MODE = next(mode for mode in MODES if mode.name == "GpuAllocationFragmented")
HELD = 60.0
STEPS = round(HELD * 2)
GPU = "nvidia_com_gpu"
FIRES = f'ALERTS{{alertname="{MODE.name}", alertstate="firing"}}'


@dataclass(frozen=True)
class Node:
    """A node of Kubernetes."""

    name: str
    gpus: float = 4
    pool: str = ""
    cordoned: bool = False
    ready: bool = True
    resource: str = GPU
    taints: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Pod:
    """A pod; without a node, it cannot be scheduled. `created` in minutes, `gpus` by container."""

    name: str
    gpus: Sequence[float]
    node: str = ""
    phase: str = ""
    created: float = 0
    resource: str = GPU
    namespace: str = "research"


@dataclass(frozen=True)
class Cluster:
    """A cluster that `replicas` of kube-state-metrics expose."""

    nodes: Sequence[Node]
    pods: Sequence[Pod]
    replicas: int = 1
    extra: Mapping[str, float] = field(default_factory=dict)
    honoured: bool = True

    def series(self) -> Iterator[Mapping[str, str]]:
        """Yield input series for promtool, over the whole test."""
        for replica in range(self.replicas):
            scrape = f'job="kube-state-metrics",instance="{replica}"'
            for selector, value in self._samples():
                selector = selector if self.honoured else _exported(selector)
                yield {"series": selector.replace("{", f"{{{scrape},", 1), "values": f"{value:.12g}+0x{STEPS}"}

    def _samples(self) -> Iterator[tuple[str, float]]:
        yield from self.extra.items()
        for node in self.nodes:
            at = f'node="{node.name}"'
            yield f'kube_node_status_allocatable{{{at},resource="{node.resource}",unit="integer"}}', node.gpus
            yield f'kube_node_status_allocatable{{{at},resource="cpu",unit="core"}}', 64
            yield f"kube_node_spec_unschedulable{{{at}}}", float(node.cordoned)
            for key, effect in node.taints:
                yield f'kube_node_spec_taint{{{at},key="{key}",value="",effect="{effect}"}}', 1
            for status in ("true", "false", "unknown"):
                ready = float((status == "true") is node.ready) if status != "unknown" else 0.0
                yield f'kube_node_status_condition{{{at},condition="Ready",status="{status}"}}', ready
            if node.pool:
                yield f'kube_node_labels{{{at},label_karpenter_sh_nodepool="{node.pool}"}}', 1
        for pod in self.pods:
            of = f'namespace="{pod.namespace}",pod="{pod.name}",uid="uid-{pod.name}"'
            phase = pod.phase or ("Running" if pod.node else "Pending")
            for each in ("Pending", "Running", "Succeeded", "Failed"):
                yield f'kube_pod_status_phase{{{of},phase="{each}"}}', float(each == phase)
            for number, gpus in enumerate(pod.gpus):
                what = f'{of},container="c{number}",node="{pod.node}"'
                yield f'kube_pod_container_resource_requests{{{what},resource="{pod.resource}",unit="integer"}}', gpus
                yield f'kube_pod_container_resource_requests{{{what},resource="cpu",unit="core"}}', 4
            yield f"kube_pod_created{{{of}}}", pod.created * 60
            if not pod.node and phase == "Pending":
                yield f"kube_pod_status_unschedulable{{{of}}}", 1


def _exported(selector: str) -> str:
    """Return a series as Prometheus stores it without honorLabels: with the labels of kube-state-metrics' own pod."""
    target = {"namespace": "monitoring", "pod": "ksm-0", "container": "ksm", "node": "infra"}
    for label, own in target.items():
        selector = re.sub(rf'([{{,]){label}=""', r'\1told="nothing"', selector)
        selector = re.sub(rf'([{{,]){label}="', rf'\1exported_{label}="', selector)
        selector = selector.replace("{", f'{{{label}="{own}",', 1)
    return selector


SPREAD: Sequence[Node | Pod] = [Node("a"), Node("b"), Pod("x", [2], "a"), Pod("y", [1, 1], "b")]
BIG = Pod("big", [3])


def cluster(*parts: Node | Pod, replicas: int = 1) -> Cluster:
    """Return a cluster of nodes and pods."""
    nodes = [each for each in parts if isinstance(each, Node)]
    return Cluster(nodes, [each for each in parts if isinstance(each, Pod)], replicas)


def check_cluster(folder: Path, what: Cluster, *expected: Expect, programs: Sequence[Path] | None = None) -> None:
    """Check results at the end of an hour, with a healthy GPU in the cluster."""
    devices = [Device("well", 0, [minutes(HELD)], Generation.GPU_EXPORTER)]
    check(folder, [Case("allocation", devices, expected, more=list(what.series()))], programs)


def counted(name: str, **of: float) -> Expect:
    """Expect a recorded count of whole GPUs by node, pool or namespace, or in all."""
    label = name.partition(":")[0]
    samples = [({"resource": GPU, **({label: key} if key != "all" else {})}, value) for key, value in of.items()]
    by = "resource" if label == "cluster" else f"{label}, resource"
    return Expect(f'sum by ({by}) ({name}{{resource="{GPU}"}})', samples)


def test_free_gpus_and_waiting_pods(tmp_path: Path) -> None:
    """Containers of a pod add up; finished pods have no GPUs; cordoned and dead nodes have none that are free."""
    what = cluster(
        *SPREAD,
        Node("closed", 8, cordoned=True),
        Node("dead", 8, ready=False),
        Pod("z", [3], "closed"),
        Pod("done", [4], "a", phase="Succeeded"),
        Pod("crashed", [4], "b", phase="Failed"),
        Pod("pulling", [1], "b", phase="Pending"),
        BIG,
        Pod("young", [8], created=HELD - 10),
        Pod("also", [1], namespace="serving"),
        replicas=2,
    )
    check_cluster(
        tmp_path,
        what,
        counted("node:allocatable:count", a=4, b=4, closed=8, dead=8),
        counted("node:usable:count", a=4, b=4, closed=0, dead=0),
        counted("node:allocated:count", a=2, b=3, closed=3, dead=0),
        counted("node:free:count", a=2, b=1, closed=0, dead=0),
        counted("cluster:allocatable:count", all=24),
        counted("cluster:allocated:count", all=8),
        counted("cluster:free:count", all=3),
        counted("namespace:pending:count", research=11, serving=1),
        counted("cluster:pending:count", all=12),
        counted("cluster:starved:count", all=4),
        counted("namespace:starved:count", research=3, serving=1),
    )


NOBODY, NO_NEW = "NoExecute", "NoSchedule"


@pytest.mark.parametrize(
    ("taints", "usable"),
    [
        ((), 8),
        ((("nvidia.com/gpu", NO_NEW),), 8),  # pods with GPUs tolerate it
        ((("sku", NO_NEW),), 8),
        ((("dedicated", "PreferNoSchedule"),), 8),
        ((("dedicated", NO_NEW),), 0),
        ((("node.kubernetes.io/disk-pressure", NO_NEW),), 0),
        ((("nvidia.com/gpu", NO_NEW), ("example.com/broken", NOBODY)), 0),
        ((("nvidia-com/gpu", NO_NEW),), 0),
        ((("nvidia.com/gpu.product", NO_NEW),), 0),
    ],
)
@pytest.mark.parametrize("honoured", [True, False])
def test_tainted_nodes(tmp_path: Path, taints: Sequence[tuple[str, str]], usable: float, honoured: bool) -> None:
    """GPUs of a node that refuses ordinary pods are not free; those that run there stay allocated."""
    parts = cluster(Node("a", 8, taints=taints), Node("b"), Pod("x", [3], "a"), replicas=2)
    check_cluster(
        tmp_path,
        replace(parts, honoured=honoured),
        counted("node:allocatable:count", a=8, b=4),
        counted("node:usable:count", a=usable, b=4),
        counted("node:allocated:count", a=3, b=0),
        counted("node:free:count", a=max(usable - 3, 0), b=4),
        counted("cluster:free:count", all=max(usable - 3, 0) + 4),
    )


def test_without_honor_labels(tmp_path: Path) -> None:
    """Results are the same."""
    what = replace(cluster(*SPREAD, BIG, Pod("done", [4], "a", phase="Succeeded")), honoured=False)
    check_cluster(
        tmp_path,
        what,
        counted("node:allocated:count", a=2, b=2),
        counted("node:free:count", a=2, b=2),
        counted("namespace:starved:count", research=3),
        Expect(f"group by (namespace) ({FIRES})", [({"namespace": "research"}, 1.0)]),
    )


def test_no_waiting_pod_is_0(tmp_path: Path) -> None:
    """Without a series, the graph would end and look like a fault."""
    check_cluster(
        tmp_path, cluster(*SPREAD), counted("cluster:pending:count", all=0), counted("cluster:starved:count", all=0)
    )


def test_pools(tmp_path: Path) -> None:
    """Pools are those of the node label; nodes without one are counted together."""
    what = cluster(Node("a", pool="h200"), Node("b", pool="l4"), Node("c", pool="h200"), Node("d"), Pod("x", [1], "a"))
    free = {("h200", 7.0), ("l4", 4.0), ("", 4.0)}
    check_cluster(
        tmp_path,
        what,
        Expect(
            "sum by (pool, resource) (pool:free:count)",
            [({"pool": pool, "resource": GPU}, value) for pool, value in free],
        ),
        Expect('sum by (pool) (pool:allocated:count{pool="h200"})', [({"pool": "h200"}, 1.0)]),
    )


def test_resources_are_kept_apart(tmp_path: Path) -> None:
    """MIG instances and other resources of NVIDIA's plugins are not GPUs."""
    mig = "nvidia_com_mig_1g_18gb"
    what = cluster(
        Node("a"),
        Node("m", 7, resource=mig),
        Node("n", 2, resource="nvidia_com_hostdev"),
        Pod("p", [2], "m", resource=mig),
    )
    check_cluster(
        tmp_path,
        what,
        Expect("sum by (resource) (cluster:free:count)", [({"resource": GPU}, 4.0), ({"resource": mig}, 5.0)]),
    )


def fragmented(*parts: Node | Pod) -> Cluster:
    """Return two nodes with two free GPUs each, and other parts."""
    return cluster(*SPREAD, *parts)


@pytest.mark.parametrize(
    ("what", "gpus"),
    [
        (fragmented(BIG), 3),
        (fragmented(BIG, Pod("other", [4])), 7),
        (cluster(*SPREAD, BIG, replicas=2), 3),
        (fragmented(Node("closed", 8, cordoned=True), BIG), 3),  # its free GPUs cannot be used
        (fragmented(), 0),  # no pod waits
        (fragmented(Pod("small", [2])), 0),  # it fits, so something else delays it
        (fragmented(Pod("young", [3], created=HELD - 10)), 0),  # it waits only briefly
        (fragmented(Pod("vast", [8])), 0),  # no node is that large
        (
            cluster(Node("a"), Node("b"), Pod("x", [4], "a"), Pod("y", [3], "b"), BIG),
            0,
        ),  # full: not enough GPUs are free
        (cluster(Node("a", pool="p"), Node("b", pool="q"), *SPREAD[2:], BIG), 0),  # nor in any pool
        (cluster(Node("a", pool="p"), Node("b", pool="p"), *SPREAD[2:], BIG), 3),
        (fragmented(Node("big", 8, ready=False), Pod("vast", [8])), 0),  # the only large node is dead
        (fragmented(Pod("slices", [3], resource="nvidia_com_mig_1g_18gb")), 0),  # no node has them
    ],
)
def test_fragmented(tmp_path: Path, what: Cluster, gpus: float) -> None:
    """The alert fires only if the free GPUs would suffice on one node."""
    samples = [({"namespace": "research", "resource": GPU}, float(gpus))] if gpus else []
    expression = re.sub(r"\s+", " ", MODE.fleet)
    fires = [({"namespace": "research", "severity": "warning"}, 1.0)] if gpus else []
    check_cluster(
        tmp_path,
        what,
        Expect(expression, samples),
        Expect(f"group by (namespace, severity) ({FIRES})", fires),
        programs=promtools()[1:],
    )


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if mode.requires == "kube-state-metrics"], ids=lambda mode: mode.name
)
def test_injected_series_fire(tmp_path: Path, mode: FailureMode) -> None:
    """The series of the catalogue entry fire its alert, and no other."""
    fired = 'group by (alertname, namespace) (last_over_time(ALERTS{alertstate="firing"}[1d]))'
    levels = {series: value for series, value in mode.inject.series.items() if isinstance(value, float)}
    what = Cluster([], [], extra=levels)
    namespace = "research" if mode is MODE else ""
    check_cluster(tmp_path, what, Expect(fired, [({"alertname": mode.name, "namespace": namespace}, 1.0)]))


def test_without_kube_state_metrics(tmp_path: Path) -> None:
    """There is no series, no alert and no error."""
    check_cluster(
        tmp_path, cluster(), Expect('{__name__=~".*:(free|allocated|pending|starved|usable):count"}'), Expect(FIRES)
    )
