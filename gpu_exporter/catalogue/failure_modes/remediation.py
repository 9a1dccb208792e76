"""What people must know of the remediation controller: it is stopped, or waits for them. Only Prometheus sees these."""

from __future__ import annotations

from functools import partial

from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Place, Ramp, Scope, Severity
from gpu_exporter.model.verdict import Action

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

# Without a complete cycle for so long, nobody acts.
STOPPED = 10 * MINUTE
# The share of a pool's nodes, and more than one node unless the pool has only one, of which nothing may be known.
BLIND = 0.1
# A node that is out of service for longer has been forgotten.
FORGOTTEN = 2 * DAY
# Long ago, also for a clock that starts at 0.
_LONG_AGO = -1e6

_STATE = "gpu_remediation_node_state_since_timestamp_seconds"
_NODE = '{pool="training",node="node-7"}'
_EXPLAIN = (
    "Run `gpu-exporter remediate --config … --explain NODE` in the controller's pod: it prints the decision about the "
    "node with all its inputs.",
    "Run `kubectl describe node NODE`: its Events and the annotation `gpu-exporter.io/remediation-state` have the "
    "history.",
)


_mode = partial(FailureMode, domain=Domain.REMEDIATION, action=Action.NONE, scope=Scope.FLEET, requires="remediation")


def _state(reason: str) -> str:
    return f'time() - max by (cluster, namespace, pool, node) ({_STATE}{{reason="{reason}"}})'


_UNKNOWN = 'max by (cluster, namespace, pool) (gpu_remediation_nodes{reason="unknown"})'
_ALL = "sum by (cluster, namespace, pool) (max by (cluster, namespace, pool, reason) (gpu_remediation_nodes))"


MODES = (
    _mode(
        "GpuRemediationBreakerOpen",
        severity=Severity.CRITICAL,
        hold=0,
        summary="The remediation controller (namespace {{ $labels.namespace }}) has stopped cordoning nodes for fault "
        "{{ $labels.fault }}: it began on many nodes at once",
        advice="Look for a common cause before any node is repaired: a driver or firmware rollout, a power or cooling failure, "
        "a switch. Roll it back.",
        inject=Inject(series={'gpu_remediation_breaker_open{fault="stalled"}': 1.0}),
        fleet="max by (cluster, namespace, fault) (gpu_remediation_breaker_open) == 1",
        meaning="The same fault began on so many nodes within ten minutes (`breaker.nodes` and `breaker.share`; the rule is that "
        "of GpuFleetFault) that a common cause is more likely than as many broken GPUs. The controller cordons no further node for this fault. Nodes still return to "
        "service, and other faults are handled as usual.",
        impact="New pods may still start on nodes with this fault.",
        diagnosis=(
            "Query `node:remediation_state:seconds` to see the affected nodes: do they share a rack, a zone, a driver "
            "version, or the time of their last change?",
            *_EXPLAIN,
        ),
        mitigation=(
            "Remove the common cause. The breaker closes by itself after 30 minutes without new faults (`breaker.quiet`).",
            "If the faults are unrelated, close it: `kubectl annotate lease` as in "
            "[remediation](../remediation.md#what-can-people-do).",
        ),
        wrong="Exporters that restart all at once report old faults as new. Those of nodes that are cordoned already "
        "do not count, but those of nodes that wait for the budget do.",
    ),
    _mode(
        "GpuRemediationNotRunning",
        severity=Severity.WARNING,
        hold=5 * MINUTE,
        summary="The remediation controller (namespace {{ $labels.namespace }}) has not completed a cycle for "
        "{{ $value | humanizeDuration }}",
        advice="Look at its pods and their logs: whether one runs, holds the Lease, and what it says about the API "
        "server.",
        inject=Inject(series={"gpu_remediation_last_cycle_timestamp_seconds": _LONG_AGO}),
        fleet="time() - max by (cluster, namespace) (max_over_time(gpu_remediation_last_cycle_timestamp_seconds[6h])) "
        f"> {STOPPED:.0f}",
        explains={Place.CLUSTER: ("GpuRemediationStuck",)},
        meaning="No controller has read all nodes, decided and acted for more than ten minutes: no pod runs, none can "
        "take the Lease, or each cycle fails.",
        impact="Nodes with unhealthy GPUs are not cordoned, and repaired nodes do not return to service. Nothing is "
        "undone: cordoned nodes stay cordoned.",
        diagnosis=(
            "Run `kubectl -n NAMESPACE get pods -l app.kubernetes.io/part-of=gpu-exporter,app.kubernetes.io/component=remediation`, "
            "and read the log of each pod: a failure is one line that says what is missing. `kubectl -n NAMESPACE get lease` "
            "shows which of them holds the Lease.",
            "Query `gpu_remediation_errors_total`: the label `reason` names the failures, such as `forbidden` or "
            "`timeout`.",
        ),
        mitigation=(
            "Restore the pods, the network to the API server, or the permissions (`helm upgrade` restores those of "
            "the chart).",
            "Until then, cordon nodes by hand: the controller counts them against its budget, and never uncordons them.",
        ),
        wrong="It fires for six hours after the controller was uninstalled. It cannot fire if Prometheus has not "
        "scraped the controller in the last six hours.",
    ),
    _mode(
        "GpuRemediationBlind",
        severity=Severity.WARNING,
        hold=15 * MINUTE,
        summary="The remediation controller (namespace {{ $labels.namespace }}) knows nothing about "
        "{{ $value | humanizePercentage }} of the nodes{{ with $labels.pool }} of pool {{ . }}{{ end }}",
        advice="Look at the metrics of a node in question, then ask the controller why it does not know the node: "
        "`--explain NODE` prints the reason.",
        inject=Inject(series={'gpu_remediation_nodes{pool="training",reason="unknown"}': 4.0}),
        fleet=f"""(
  {_UNKNOWN} > 1
  or
  ({_UNKNOWN} == {_ALL})
)
/ {_ALL} >= {BLIND:g}
or
(max by (cluster, namespace) (gpu_remediation_leader) == 1)
unless on (cluster, namespace) gpu_remediation_nodes""",
        meaning="The exporters of these nodes do not answer the controller, or their answers say nothing about the node now. "
        "Without a pool in the alert, the controller sees no node at all: no node has GPUs and belongs to a pool. The absence of "
        "an answer is neither a fault nor a recovery, so the controller leaves such nodes as they are. A single node of "
        "several does not fire this alert: GpuExporterDown reports it.",
        impact="Nodes with unhealthy GPUs are not cordoned, and repaired nodes do not return to service.",
        diagnosis=(
            *_EXPLAIN,
            'Query `up{job=~".*gpu.?exporter.*"} == 0`. If Prometheus can scrape the exporters, the controller lacks what '
            "Prometheus has: the authority of their certificate, a password, or a network policy that lets it in.",
            "Query `gpu_remediation_nodes`: the label `reason` shows what the controller decides about the other nodes.",
        ),
        mitigation=(
            "TLS or a password: set `remediation.config.exporters` "
            "([how](../remediation.md#exporters-with-tls-and-passwords)).",
            "No answer: check the network policies between the controller's pods and those of the exporters.",
            "Another version: upgrade exporters and controller together.",
            "No node at all: check the selectors of `remediation.pools`, and that the nodes have a resource that is GPUs.",
        ),
        wrong="A rollout that replaces many exporters at once, and a maintenance for which the driver is released on many "
        "nodes, leave these nodes unknown for as long as they take.",
    ),
    _mode(
        "GpuRemediationTwoLeaders",
        severity=Severity.WARNING,
        hold=5 * MINUTE,
        summary="Remediation controller {{ $labels.instance }} (namespace {{ $labels.namespace }}) leads while another one does",
        advice="Uninstall one of them: two releases of the chart in one cluster do not share a Lease, so together they may "
        "exceed the budget.",
        inject=Inject(
            series={
                **{f'gpu_remediation_leader{{pod="{pod}"}}': 1.0 for pod in ("a", "b")},
                'gpu_remediation_nodes{pool="training",reason="healthy"}': 4.0,
            }
        ),
        fleet="""max by (cluster, namespace, instance, pod) (gpu_remediation_leader) == 1
and on (cluster)
count by (cluster) (max by (cluster, namespace, instance, pod) (gpu_remediation_leader) == 1) > 1""",
        meaning="Two controllers act on the nodes of one cluster. Two replicas of one release cannot do this for long: "
        "they share a Lease, and each write to it fails if the other one has changed it. Two releases have two Leases.",
        impact="Each controller keeps its own budget. Both together may cordon twice as many nodes.",
        diagnosis=(
            "Query `gpu_remediation_leader == 1`: the labels `namespace` and `pod` name the controllers.",
            "Run `kubectl get leases -A | grep remediation`: each release has its own Lease.",
        ),
        mitigation=(
            "Uninstall one release. If both are needed, give them pools without common nodes, and set "
            "`prometheusRule.modes.GpuRemediationTwoLeaders.enabled: false`.",
        ),
        wrong="If one Prometheus scrapes several clusters, their series need different labels `cluster`.",
    ),
    _mode(
        "GpuRemediationFails",
        severity=Severity.WARNING,
        hold=15 * MINUTE,
        summary="Actions of the remediation controller (namespace {{ $labels.namespace }}) keep failing: {{ $labels.reason }}",
        advice="Read the log of the controller's pods: each failure is one line that names the node and what is missing.",
        inject=Inject(series={'gpu_remediation_errors_total{reason="forbidden"}': Ramp(0, 1 / 30)}),
        fleet='sum by (cluster, namespace, reason) (increase(gpu_remediation_errors_total{reason!="conflict"}[5m])) > 0',
        meaning="For a quarter of an hour, the API server or a receiver has refused what the controller wanted to do. "
        "The label `reason` says how: `forbidden` (a missing right, or an admission webhook), `http_500` (a webhook that "
        "does not answer), `event_…` (only Events are missing), `notify` (the outgoing webhook).",
        impact="The decisions about some nodes are not carried out. Other nodes are handled as usual.",
        diagnosis=(
            "Read the log of the controller's pods.",
            "For `forbidden`, run `kubectl auth can-i patch nodes --as=system:serviceaccount:NAMESPACE:NAME` with the "
            "service account of the controller. If it can, an admission webhook refuses the change.",
        ),
        mitigation=(
            "Restore the rights with `helm upgrade`, or exempt the controller's service account from the admission "
            "policy.",
            "For `notify`, check the URL and the token of `notify`. Missed notifications are not repeated; the "
            "annotation `gpu-exporter.io/repair` of the node has the same content.",
        ),
        wrong="An API server that was restarted, or that throttles requests (`too_many_requests`), causes errors that "
        "end by themselves.",
    ),
    _mode(
        "GpuRemediationHeld",
        severity=Severity.WARNING,
        hold=HOUR,
        summary="Node {{ $labels.node }} takes new pods although a GPU is unhealthy: a person has uncordoned it",
        advice="Ask who uncordoned it, and cordon it again if that was not on purpose.",
        inject=Inject(series={f'{_STATE}{_NODE[:-1]},reason="held"}}': 0.0}),
        fleet=_state("held"),
        meaning="The controller had cordoned the node, and a person has taken over: they uncordoned it, or uncordoned and "
        "cordoned it again. The fault is still there. The controller does nothing more until a new fault appears or the "
        "node has rebooted.",
        impact="Pods that start on the node may fail or compute wrong results.",
        diagnosis=(
            "Run `kubectl get node NODE -o yaml --show-managed-fields`: `managedFields` names the client that last "
            "set `unschedulable`.",
            *_EXPLAIN,
        ),
        mitigation=(
            "`kubectl cordon NODE` keeps it out of service; it then also counts against the budget.",
            "If the node is used on purpose, silence the alert, or set the label "
            "`gpu-exporter.io/remediation=disabled`.",
        ),
        wrong="A script or an autoscaler may have uncordoned the node instead of a person.",
    ),
    _mode(
        "GpuRemediationStuck",
        severity=Severity.WARNING,
        hold=10 * MINUTE,
        summary="Node {{ $labels.node }} has been out of service for {{ $value | humanizeDuration }}: is its repair forgotten?",
        advice="Read the annotation gpu-exporter.io/repair of the node: it says which GPU needs what. Then ask who repairs it.",
        inject=Inject(series={f"gpu_remediation_cordoned_since_timestamp_seconds{_NODE}": _LONG_AGO}),
        fleet="time() - max by (cluster, namespace, pool, node) (gpu_remediation_cordoned_since_timestamp_seconds)"
        f" > {FORGOTTEN:.0f}",
        meaning="The controller cordoned the node more than two days ago. Either nobody has repaired it, or it is "
        "repaired and something is missing for its return to service.",
        impact="Its GPUs cost their full price, and it uses the budget: while it is out of service, another faulty node "
        "may have to wait.",
        diagnosis=(
            "Query `node:remediation_state:seconds`: the label `reason` says what the controller waits for, such as "
            "`awaiting_repair`, `needs_replacement` or `needs_reboot`.",
            *_EXPLAIN,
        ),
        mitigation=(
            "`awaiting_repair`: repair it as the annotation says.",
            "`needs_replacement`, `gpu_absent`, `needs_reboot`: if it is repaired, confirm that with the annotation "
            "`gpu-exporter.io/repaired` ([how](../remediation.md#what-can-people-do)).",
            "`unknown`: the exporter on the node does not answer, or its answer cannot be used; repair the exporter first.",
        ),
        wrong="Replacements that take longer than two days: silence the alert for this node.",
    ),
    _mode(
        "GpuRemediationDrainTimedOut",
        severity=Severity.WARNING,
        hold=MINUTE,
        summary="The drain of node {{ $labels.node }} has timed out: pods still run on a node with an unhealthy GPU",
        advice="Read the Events of the node: they name the pods that are left, and what keeps each. Ask their owners, then "
        "drain the node by hand.",
        inject=Inject(series={f'{_STATE}{_NODE[:-1]},reason="drain_timeout"}}': 0.0}),
        fleet=_state("drain_timeout"),
        action=Action.DRAIN,
        meaning="The controller could not evict all pods within `drain.timeout`, and has stopped trying. It never deletes "
        "a pod by force. The node stays cordoned.",
        impact="The node cannot be repaired while pods run on it, and these pods may fail or compute wrong results.",
        diagnosis=(
            *_EXPLAIN,
            "Run `kubectl get pdb -A`: a budget with 0 allowed disruptions blocks every eviction. Often, the other "
            "replicas of its workload are not ready.",
        ),
        mitigation=(
            "Let the owner end the pods, or make the disruption budget wider.",
            "`kubectl drain NODE --ignore-daemonsets --delete-emptydir-data` does what the controller did, with all pods.",
        ),
        wrong="Long jobs that are allowed to end by themselves: set a longer `drain.timeout` for their pool.",
    ),
)
