"""GPUs that Kubernetes has allocated and pods that wait for GPUs, recorded from kube-state-metrics.

GPUs that pods have through resource claims are not in its series.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpu_exporter.alerting.aggregates import Aggregate

STARVED_SECONDS = 1800
# GPUs, shares of a GPU (time-slicing, MPS) and MIG instances, each kind separately; no other resources of NVIDIA.
RESOURCES = "nvidia_com_(gpu|gpu_shared|mig_.+)"
# Taints that only keep pods without GPUs away: of the device plugin's and GKE's documentation, and of AKS's.
TOLERATED_TAINTS = ("nvidia.com/gpu", "sku")
TOLERATED = "|".join(TOLERATED_TAINTS).replace(".", "[.]")
# Labels of nodes that name their pool, the preferred last.
POOL_LABELS = (
    "nvidia.com/gpu.product",
    "agentpool",
    "kubernetes.azure.com/agentpool",
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
)
# Labels of nodes that name their rack, or the NVLink domain of a rack; the preferred last.
RACK_LABELS = ("rack", "topology.kubernetes.io/rack", "nvidia.com/gpu.clique")

POD = "cluster, namespace, pod"


def own(selector: str, *labels: str) -> str:
    """Return the series with the labels of pod or node that Prometheus replaced by those of kube-state-metrics."""
    for label in labels:
        selector = f'label_replace({selector}, "{label}", "$1", "exported_{label}", "(.+)")'
    return selector


def _node(selector: str, *by: str) -> str:
    """Return the series by node; the same series from two kube-state-metrics counts once."""
    return f"max by ({', '.join(('cluster', 'node', *by))}) ({own(selector, 'node')})"


def _pod(selector: str) -> str:
    """Return the series by pod."""
    return f"max by ({POD}) ({own(selector, 'namespace', 'pod')})"


def _requests(where: str = "") -> str:
    """Return the requests of pods, by container."""
    selector = f'kube_pod_container_resource_requests{{resource=~"{RESOURCES}"{where}}}'
    named = own(selector, "namespace", "pod", "container", "node")
    return f"max by ({POD}, container, node, resource) ({named})"


_ALLOCATABLE = f'kube_node_status_allocatable{{resource=~"{RESOURCES}"}}'
_REPELS = f'kube_node_spec_taint{{effect=~"NoSchedule|NoExecute", key!~"{TOLERATED}"}}'
_ALIVE = _pod('kube_pod_status_phase{phase=~"Pending|Running"} == 1')
_UNSCHEDULABLE = _pod("kube_pod_status_unschedulable == 1")


def _named(what: str, preferred_last: Sequence[str]) -> str:
    """Return the nodes with one of these labels under another name."""
    labels = {f"label_{re.sub('[^a-zA-Z0-9_]', '_', label)}": label for label in preferred_last}
    named = f"group by (cluster, node, {', '.join(labels)}) ({own('kube_node_labels', 'node')})"
    for label in labels:
        named = f'label_replace({named}, "{what}", "$1", "{label}", "(.+)")'
    return f"topk by (cluster, node) (1, group by (cluster, node, {what}) ({named}))"


def _of_pool(what: Aggregate, help: str) -> Aggregate:
    expression = (
        f"sum by (cluster, pool, resource) ({what.record} * on (cluster, node) group_left (pool) {POOL.record})"
    )
    return Aggregate(what.record.replace("node:", "pool:"), help, expression, ("pool", "resource"))


def _of_cluster(what: Aggregate, help: str) -> Aggregate:
    expression = f"sum by (cluster, resource) ({what.record})"
    return Aggregate(what.record.replace("node:", "cluster:"), help, expression, ("resource",))


POOL = Aggregate(
    "node:pool:info",
    "Nodes with their pool",
    f"{_named('pool', POOL_LABELS)}\nor on (cluster, node)\n{_node(_ALLOCATABLE)} * 0 + 1",
    ("node", "pool"),
)
RACK = Aggregate("node:rack:info", "Nodes with their rack", _named("rack", RACK_LABELS), ("node", "rack"))
NODE_ALLOCATABLE = Aggregate(
    "node:allocatable:count",
    "GPUs that pods can be given",
    _node(_ALLOCATABLE, "resource"),
    ("node", "resource"),
)
# 0 for nodes that are cordoned, tainted or not ready.
NODE_USABLE = Aggregate(
    "node:usable:count",
    "Allocatable GPUs on nodes that accept pods",
    f"""(
  {NODE_ALLOCATABLE.record}
  unless on (cluster, node) {_node("kube_node_spec_unschedulable")} == 1
  unless on (cluster, node) {_node(_REPELS)} == 1
  unless on (cluster, node) {_node('kube_node_status_condition{condition="Ready", status="true"}')} == 0
)
or
{NODE_ALLOCATABLE.record} * 0""",
    ("node", "resource"),
)
NODE_ALLOCATED = Aggregate(
    "node:allocated:count",
    "GPUs that pods have been given",
    f"""sum by (cluster, node, resource) (
  {_requests(', node!=""')}
  * on ({POD}) group_left () {_ALIVE}
  unless on ({POD}) {_UNSCHEDULABLE}
)
or on (cluster, node, resource)
{NODE_ALLOCATABLE.record} * 0""",
    ("node", "resource"),
)
NODE_FREE = Aggregate(
    "node:free:count",
    "GPUs that a pod could get now",
    f"clamp_min({NODE_USABLE.record} - {NODE_ALLOCATED.record}, 0)",
    ("node", "resource"),
)
POD_PENDING = Aggregate(
    "pod:pending:count",
    "GPUs that a pod without a node waits for",
    f"""sum by ({POD}, resource) (
  {_requests()}
  * on ({POD}) group_left () {_UNSCHEDULABLE}
)
and on ({POD}) {_ALIVE}""",
    ("namespace", "pod", "resource"),
)
POD_STARVED = Aggregate(
    "pod:starved:count",
    "GPUs that pods have waited for at least half an hour for",
    f"{POD_PENDING.record} and on ({POD}) time() - {_pod('kube_pod_created')} >= {STARVED_SECONDS}",
    ("namespace", "pod", "resource"),
)
POOL_ALLOCATABLE = _of_pool(NODE_ALLOCATABLE, NODE_ALLOCATABLE.help)
POOL_ALLOCATED = _of_pool(NODE_ALLOCATED, NODE_ALLOCATED.help)
POOL_FREE = _of_pool(NODE_FREE, NODE_FREE.help)
CLUSTER_ALLOCATABLE = _of_cluster(NODE_ALLOCATABLE, NODE_ALLOCATABLE.help)
CLUSTER_ALLOCATED = _of_cluster(NODE_ALLOCATED, NODE_ALLOCATED.help)
CLUSTER_FREE = _of_cluster(NODE_FREE, NODE_FREE.help)


def _waiting(of: Aggregate, level: str, help: str) -> Aggregate:
    by = ("namespace", "resource") if level == "namespace" else ("resource",)
    expression = f"sum by ({', '.join(('cluster', *by))}) ({of.record})"
    if level == "cluster":  # 0 if no pod waits
        expression = f"{expression}\nor on (cluster, resource)\n{CLUSTER_ALLOCATABLE.record} * 0"
    return Aggregate(of.record.replace("pod:", f"{level}:"), help, expression, by)


NAMESPACE_PENDING = _waiting(POD_PENDING, "namespace", "GPUs that pods without a node wait for")
NAMESPACE_STARVED = _waiting(POD_STARVED, "namespace", POD_STARVED.help)
CLUSTER_PENDING = _waiting(POD_PENDING, "cluster", NAMESPACE_PENDING.help)
CLUSTER_STARVED = _waiting(POD_STARVED, "cluster", POD_STARVED.help)

# The number of requests that an inference server runs and queues: vLLM, SGLang, TGI, Triton.
REQUESTS = (
    "vllm:num_requests_(running|waiting)",
    "sglang:num_(running|queue)_reqs",
    "tgi_(batch_current|queue)_size",
    "nv_inference_pending_request_count",
)
POD_REQUESTS = Aggregate(
    "pod:requests:count",
    "Requests that the inference server of a pod runs or queues",
    f"""sum by ({POD}) ({own(f'{{__name__=~"{"|".join(REQUESTS)}", pod!=""}}', "namespace", "pod")})""",
    ("namespace", "pod"),
)

ALLOCATION = (
    POD_REQUESTS,
    POOL,
    RACK,
    NODE_ALLOCATABLE,
    NODE_USABLE,
    NODE_ALLOCATED,
    NODE_FREE,
    POD_PENDING,
    POD_STARVED,
    POOL_ALLOCATABLE,
    POOL_ALLOCATED,
    POOL_FREE,
    CLUSTER_ALLOCATABLE,
    CLUSTER_ALLOCATED,
    CLUSTER_FREE,
    NAMESPACE_PENDING,
    NAMESPACE_STARVED,
    CLUSTER_PENDING,
    CLUSTER_STARVED,
)
