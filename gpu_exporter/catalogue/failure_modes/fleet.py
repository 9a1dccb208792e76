"""The same fault on many nodes at once. Only Prometheus sees it, from the alerts of the nodes."""

from __future__ import annotations

from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Inject, Place, Scope, Severity
from gpu_exporter.catalogue.fleet_faults import AT_ONCE, NODES, SHARE, WINDOW
from gpu_exporter.conditions.tree import duration
from gpu_exporter.model.verdict import Action

# The labels of a fault: the name of its alert, and the code of an XID.
CAUSE, XID = "cause", "xid"
# A fault that a node has had within so long is not new. It bridges the restart of Prometheus.
FLEET_FAULT = "GpuFleetFault"
BEFORE = "1h"
FAULTS = "incident:fault:nodes"
FAULT_KEY = f"cluster, {CAUSE}, {XID}"
_COUNT = f"count by ({FAULT_KEY})"


def _begun(within: float) -> str:
    """Return on how many nodes a fault has begun within so many seconds."""
    return f"{_COUNT} ({FAULTS} unless max_over_time({FAULTS}[{BEFORE}] offset {duration(within)}))"


def _query(expression: str) -> str:
    """Return a template that queries an expression; `FAULT` in it selects the nodes with the fault."""
    fault = f"{FAULTS}{{cluster=%[1]q, {CAUSE}=%[2]q, {XID}=%[3]q}}"
    text = expression.replace("FAULT", fault)
    return f"printf `{text}` $labels.cluster $labels.{CAUSE} $labels.{XID} | query"


def _common(words: str, label: str, series: str, end: str = "") -> str:
    """Return a template for the value of a label that all of these nodes share; empty if they have several."""
    values = _query(f'group by ({label}) (last_over_time({series}{{{label}!=""}}[1h]) and on (cluster, node) FAULT)')
    shown = f'{words} {{{{ . | first | label "{label}" }}}}{end}'
    return f"{{{{ with {values} }}}}{{{{ if eq (len .) 1 }}}}{shown}{{{{ end }}}}{{{{ end }}}}"


_HARDWARE = "node:hardware:info"
_DAY_AGO = f"max_over_time({_HARDWARE}[1h] offset 1d)"
_CHANGED = _query(
    f"count((({_HARDWARE} and on (cluster, node) {_DAY_AGO}) unless {_DAY_AGO}) and on (cluster, node) FAULT)"
)
_NODES, _NAMED = _query("FAULT"), 20
_INJECTED = (
    'ALERTS{alertname="GpuXidFatal",alertstate="firing",severity="critical",domain="health",xid="79",node="node-%d"}'
)

MODES = (
    FailureMode(
        FLEET_FAULT,
        Domain.HEALTH,
        Severity.CRITICAL,
        0,
        Action.NONE,
        f"{{{{ if $labels.{XID} }}}}XID {{{{ $labels.{XID} }}}}{{{{ else }}}}{{{{ $labels.{CAUSE} }}}}{{{{ end }}}} on "
        f"{{{{ $value }}}}{{{{ with {_query('max_over_time(cluster:nodes:count{cluster=%[1]q}[1h])')} }}}} of "
        f"{{{{ . | first | value }}}}{{{{ end }}}} nodes within 10 min"
        f"{_common('; driver', 'driver_version', _HARDWARE)}: is there a common cause?",
        "Look for a common cause before any node is drained or repaired: a rollout of a driver or firmware, a failure of "
        "power or cooling, a switch. Stop the rollout or roll it back.",
        Inject(series={_INJECTED % number: 1.0 for number in range(3)}),
        fleet=f"""{_COUNT} ({FAULTS}) >= {{{NODES.name}}}
and on ({FAULT_KEY}) (
  {_begun(AT_ONCE)} >= {{{NODES.name}}}
  or
  ({_begun(WINDOW)} >= {{{NODES.name}}}) / on (cluster) group_left () max_over_time(cluster:nodes:count[1h]) >= {{{SHARE.name}}}
  or
  max_over_time(ALERTS{{alertname="{FLEET_FAULT}", alertstate="firing"}}[1h])
)""",
        limits=(NODES, SHARE),
        scope=Scope.FLEET,
        explains={Place.CLUSTER: ("GpuRemediationBreakerOpen",)},
        requires="alerts",
        annotations={
            "common": f"{_common('Driver', 'driver_version', _HARDWARE, '. ')}{_common('GPU', 'model', _HARDWARE, '. ')}"
            f"{_common('Pool', 'pool', 'node:pool:info', '. ')}{_common('Rack', 'rack', 'node:rack:info', '. ')}"
            f"{{{{ with {_CHANGED} }}}}Nodes whose driver or GPUs changed within a day: {{{{ . | first | value }}}}.{{{{ end }}}}",
            "nodes": f'{{{{ range $number, $node := {_NODES} | sortByLabel "node" }}}}{{{{ if lt $number {_NAMED} }}}}'
            '{{ if $number }}, {{ end }}{{ $node | label "node" }}{{ end }}{{ end }}',
        },
        meaning="The same critical alert began on many nodes of the cluster: on at least three nodes within two minutes, "
        "or on at least three nodes and 5 % of all nodes within ten minutes. A common cause is more likely than as many "
        f"broken GPUs. The label `{CAUSE}` is the name of the nodes' alert, and `{XID}` the code if it is about an XID. "
        "What follows from another alert on the same node or GPU is not counted.",
        impact="Jobs on these nodes fail or hang. If nodes are drained one by one, the cluster loses them all, and "
        "they come back with the same fault.",
        diagnosis=(
            "Read the annotations of the alert: `common` says which driver, GPU model, node pool and rack all of these "
            "nodes have in common, and on how many of them the driver or the GPUs changed within a day; `nodes` names up "
            f"to {_NAMED} of them.",
            f"Query `{FAULTS}` for all of them. Which nodes of the cluster do *not* have the fault, and how do they differ? "
            f"Compare `{_HARDWARE}`, which has the driver and the GPU model of each node.",
            "Look up what was rolled out, and when: driver, firmware, kernel, GPU Operator, node image. Ask the facility "
            "about power and cooling.",
            "Then follow the runbook of the alert that is the cause, on one node.",
        ),
        mitigation=(
            "Stop the rollout, and roll it back on one node. If that helps, roll it back everywhere.",
            "If only the nodes of a rack or pool have the fault, cordon them, and repair what they share.",
            "If the nodes have nothing in common, repair them one by one.",
        ),
        wrong="Three nodes of 5000 have the same fault within two minutes by chance about once in nine years, at the rate at "
        "which GPUs failed in Meta's training of Llama 3; it grows with the cube of the number of nodes. Codes of XIDs are "
        "different faults. The alert lasts as long as three nodes have the fault. Until then, Alertmanager sends no messages about this "
        "fault on single nodes, nor on nodes on which it begins later; it sends those about other faults. In the first hour "
        "after these rules are loaded, faults that already exist count as new. The total is the number of nodes with "
        "GPUs within the last hour. Pools and racks are known only with kube-state-metrics and its option "
        "`--metric-labels-allowlist`.",
    ),
)
