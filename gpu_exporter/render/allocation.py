"""What Kubernetes has given away of its GPUs, and who waits: recorded from kube-state-metrics, by its documented names.

Its series must keep their own labels (`honorLabels: true`). GPUs that pods have by resource claims are in none of them.
"""

from __future__ import annotations

from gpu_exporter.render.aggregates import Aggregate

STARVED_SECONDS = 1800
# GPUs, shares of one (time-slicing, MPS) and MIG instances, each kind for itself; not what else NVIDIA's plugins offer.
RESOURCES = "nvidia_com_(gpu|gpu_shared|mig_.+)"
# Labels of nodes that name their pool, as kube-state-metrics writes them, the best last.
POOL_LABELS = (
    "label_nvidia_com_gpu_product",
    "label_agentpool",
    "label_kubernetes_azure_com_agentpool",
    "label_karpenter_sh_nodepool",
    "label_eks_amazonaws_com_nodegroup",
    "label_cloud_google_com_gke_nodepool",
)

_POD = "cluster, namespace, pod"
_ALLOCATABLE = f'kube_node_status_allocatable{{resource=~"{RESOURCES}"}}'


def _requests(node: str, alive: str) -> str:
    """What pods ask for, container by container; two kube-state-metrics that say the same count once."""
    of = f'kube_pod_container_resource_requests{{resource=~"{RESOURCES}", {node}}}'
    return f"max by ({_POD}, container, node, resource) ({of})\n* on ({_POD}) group_left () max by ({_POD}) ({alive})"


def _pools() -> str:
    labels = ", ".join(POOL_LABELS)
    named = f"group by (cluster, node, {labels}) (kube_node_labels)"
    for label in POOL_LABELS:
        named = f'label_replace({named}, "pool", "$1", "{label}", "(.+)")'
    return (
        f"topk by (cluster, node) (1, group by (cluster, node, pool) ({named}))\n"
        f"or on (cluster, node)\ngroup by (cluster, node) ({_ALLOCATABLE})"
    )


def _of_pool(what: Aggregate, help: str) -> Aggregate:
    expression = (
        f"sum by (cluster, pool, resource) ({what.record} * on (cluster, node) group_left (pool) {POOL.record})"
    )
    return Aggregate(what.record.replace("node:", "pool:"), help, expression, ("pool", "resource"))


def _of_cluster(what: Aggregate, help: str) -> Aggregate:
    expression = f"sum by (cluster, resource) ({what.record})"
    return Aggregate(what.record.replace("node:", "cluster:"), help, expression, ("resource",))


POOL = Aggregate("node:pool:info", "Nodes, and the pool that each is in", _pools(), ("node", "pool"))
NODE_ALLOCATABLE = Aggregate(
    "node:allocatable:count",
    "GPUs that pods could have",
    f"max by (cluster, node, resource) ({_ALLOCATABLE})",
    ("node", "resource"),
)
# Of nodes that are cordoned or not ready none.
NODE_USABLE = Aggregate(
    "node:usable:count",
    "those on nodes that take pods",
    f"""(
  {NODE_ALLOCATABLE.record}
  unless on (cluster, node) max by (cluster, node) (kube_node_spec_unschedulable) == 1
  unless on (cluster, node) max by (cluster, node) (kube_node_status_condition{{condition="Ready", status="true"}}) == 0
)
or
{NODE_ALLOCATABLE.record} * 0""",
    ("node", "resource"),
)
NODE_ALLOCATED = Aggregate(
    "node:allocated:count",
    "GPUs that pods have",
    "sum by (cluster, node, resource) (\n"
    + _requests('node!=""', 'kube_pod_status_phase{phase=~"Pending|Running"} == 1')
    + f"\n)\nor\n{NODE_ALLOCATABLE.record} * 0",
    ("node", "resource"),
)
NODE_FREE = Aggregate(
    "node:free:count",
    "GPUs that a pod could have now",
    f"clamp_min({NODE_USABLE.record} - {NODE_ALLOCATED.record}, 0)",
    ("node", "resource"),
)
POD_PENDING = Aggregate(
    "pod:pending:count",
    "GPUs that a pod waits for which has no node",
    f"sum by ({_POD}, resource) (\n"
    + _requests('node=""', "kube_pod_status_unschedulable == 1")
    + f'\n)\nand on ({_POD}) kube_pod_status_phase{{phase="Pending"}} == 1',
    ("namespace", "pod", "resource"),
)
POD_STARVED = Aggregate(
    "pod:starved:count",
    "those of pods that wait for half an hour or longer",
    f"{POD_PENDING.record} and on ({_POD}) time() - max by ({_POD}) (kube_pod_created) >= {STARVED_SECONDS}",
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
    if level == "cluster":  # nobody waits is 0
        expression = f"{expression}\nor\n{CLUSTER_ALLOCATABLE.record} * 0"
    return Aggregate(of.record.replace("pod:", f"{level}:"), help, expression, by)


NAMESPACE_PENDING = _waiting(POD_PENDING, "namespace", "GPUs that pods without a node wait for")
NAMESPACE_STARVED = _waiting(POD_STARVED, "namespace", POD_STARVED.help)
CLUSTER_PENDING = _waiting(POD_PENDING, "cluster", NAMESPACE_PENDING.help)
CLUSTER_STARVED = _waiting(POD_STARVED, "cluster", POD_STARVED.help)

ALLOCATION = (
    POOL,
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
