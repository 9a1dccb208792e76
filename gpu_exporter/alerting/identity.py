"""Render the rules that record GPU, node and owner of each series; every signal is joined to them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_exporter.alerting.allocation import own
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import workloads
from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from gpu_exporter.conditions.signal import DEVICE, DEVICE_INFO, DEVICE_KEY, IDENTITY, IDENTITY_INFO, OWNER, OWNERS_INFO

# Every exporter exposes at least one of these for a GPU.
_IDENTIFYING = (m.GPU_UTIL, m.GPU_TEMP, m.POWER, m.FB_USED, m.SM_CLOCK, m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.DRAM_ACTIVE)
_CLASSIC = "|".join(name for row in _IDENTIFYING for name in (row.name, RENAMED[row.name][0]))
_OURS = "|".join((m.UP.name, *(str(row) for row in m.METRICS if row.integral_of in _IDENTIFYING)))
_EXPORTER = ("cluster", "job", "instance")
_NODES = ("node", "hostname", "Hostname")
_EXPORTED = ("exported_namespace", "exported_pod")
# The labels of a GPU's series except the node. Each series is selected only once, because selecting all is expensive.
_LABELS = (
    *("job", "instance", *DEVICE, "GPU_I_PROFILE", "gpu", "modelName"),
    *("namespace", "pod", *_EXPORTED, *workloads.JOB_LABELS, "source"),
)
SCRAPED = "gpu:scraped:info"
# The node of each exporter.
EXPORTER = "gpu:exporter:info"
# The minutes after which the owner and the rank that a GPU had are looked up, once it has none.
AFTERWARDS = (5, 10, 15)
# The owner of a whole GPU within the last 15 minutes; a GPU without one has no labels of an owner.
LAST_OWNER = "gpu:last_owner:info"
# The owner of a GPU, if it has only one, and if an alert about the GPU does not name it. Each row of a table of alerts
# reads it several times, which would take too long with a series for every GPU of a large fleet.
ALERT_OWNER = "gpu:alert_owner:info"
_ALERT_OWNERS = "gpu:alert_owners:info"


def recorded() -> Iterator[tuple[str, str]]:
    """Yield name and expression of each rule, in the order in which they depend on each other."""
    device, owners = DEVICE_KEY, ", ".join((*DEVICE, *OWNER))
    yield (SCRAPED, _scraped())
    exporter, identity = ", ".join((*_EXPORTER, "node")), ", ".join(("cluster", "UUID", *IDENTITY))
    yield (EXPORTER, f"group by ({exporter}) ({m.INFO}) or group by ({exporter}) ({SCRAPED})")
    gpus = f"group by ({', '.join(_EXPORTER)}, UUID) ({SCRAPED})"
    yield (
        "gpu:dcgm_gpus:count",
        f"count by ({', '.join(_EXPORTER)}) ({gpus} unless on ({', '.join(_EXPORTER)}) {m.BUILD_INFO})",
    )
    ours = f'label_replace(group by (cluster, UUID, node, gpu, model) ({m.INFO}), "modelName", "$1", "model", "(.+)")'
    alternatives = [
        f"topk by (cluster, UUID) (1, group by ({identity}) ({each}))"
        for each in (ours, SCRAPED, f'{{__name__=~"{_OURS}", UUID!=""}}')
    ]
    yield (IDENTITY_INFO, "\nor on (cluster, UUID)\n".join(alternatives))
    yield (OWNERS_INFO, _owners(owners))
    yield (
        "gpu:device_parts:info",
        f"topk by ({device}) (1, group by ({device}, GPU_I_PROFILE) "
        f'({{__name__=~"{SCRAPED}|{_OURS}", GPU_I_ID!=""}}))\n'
        f"* on (cluster, UUID) group_left ({', '.join(IDENTITY)}) {IDENTITY_INFO}\n"
        f"or\n{IDENTITY_INFO}",
    )
    # A GPU that several pods share has no single owner.
    yield (
        "gpu:device_owner:info",
        f"{OWNERS_INFO}\nand on ({device})\ncount by ({device}) ({OWNERS_INFO}) == 1",
    )
    yield (
        DEVICE_INFO,
        f"gpu:device_parts:info * on ({device}) group_left ({', '.join(OWNER)}) gpu:device_owner:info\n"
        f"or\n(gpu:device_parts:info unless on ({device}) gpu:device_owner:info)",
    )
    # Also for a while after its pod is gone: a job fails when it loses a GPU.
    last = [
        f'group by (cluster, UUID, namespace, workload) (gpu:device_owner:info{{GPU_I_ID=""}}{ago})'
        for ago in ("", *(f" offset {minutes}m" for minutes in AFTERWARDS))
    ]
    yield (LAST_OWNER, "\nor on (cluster, UUID)\n".join([*last, f"group by (cluster, UUID) ({IDENTITY_INFO})"]))
    yield (
        _ALERT_OWNERS,
        "group by (cluster, UUID, namespace, workload) "
        f'({DEVICE_INFO} and on (cluster, UUID) (ALERTS{{alertstate="firing"}} and on (workload) vector(0)))',
    )
    yield (
        ALERT_OWNER,
        f"{_ALERT_OWNERS}\nand on (cluster, UUID)\ncount by (cluster, UUID) ({_ALERT_OWNERS}) == 1",
    )


def _scraped() -> str:
    """Return a series for each GPU, exporter and owner, with the labels of classic names and the node."""
    series = f'group by ({", ".join((*_LABELS, *_NODES))}) ({{__name__=~"{_CLASSIC}", UUID!=""}})'
    # Not into `node` directly: series that differ in nothing else would become duplicates, which is an error.
    for label in _NODES:
        series = f'label_replace({series}, "named", "$1", "{label}", "(.+)")'
    series = f'label_replace(group by ({", ".join((*_LABELS, "named"))}) ({series}), "node", "$1", "named", "(.+)")'
    return f"group by ({', '.join((*_LABELS, 'node'))}) ({series})"


def _owners(labels: str) -> str:
    # Without the labels that are overwritten: the old and the new pod of an exporter would give duplicates, an error.
    jobs = ", ".join((*DEVICE, *workloads.JOB_LABELS))
    exported = _exported(f'{SCRAPED}{{exported_pod!=""}}', jobs)
    plain = f'{SCRAPED}{{exported_pod="", pod!="", pod!~"{workloads.EXPORTER_PODS}"}}'
    # For a GPU without a pod, the pod label is that of the scraped exporter, if any.
    free = f'{SCRAPED}{{exported_pod="", pod=~"|{workloads.EXPORTER_PODS}"'
    recorded = f'{free}, hpc_job="", source="{workloads.RECORDED}"}}'
    recorded = f'label_replace(group by ({jobs}, source) ({recorded}), "hpc_job", "$1", "source", "(.+)")'
    slurm = f'group by ({jobs}) ({free}, hpc_job!=""}}) or {recorded}'
    pods = f"{exported} or group by ({jobs}, namespace, pod) ({plain})"
    theirs = f'label_replace({pods} or {slurm}, "named", "$1", "workload", "(.+)")'
    by_pod = f'label_replace({theirs}, "workload", "$1", "pod", "{workloads.WORKLOAD_OF_POD}")'
    mine = " or ".join(_own_series(operator) for operator in ("!=", "="))
    for label in workloads.JOB_LABELS:
        label = "named" if label == "workload" else label
        by_pod = f'label_replace({by_pod}, "workload", "$1", "{label}", "(.+)")'
    return f"group by ({labels}) ({mine})\nor on ({DEVICE_KEY})\ngroup by ({labels}) ({by_pod})"


def _own_series(operator: str) -> str:
    """Return the owner from gpu-exporter's own series; the workload from its label, or from the name of the pod."""
    info, by = f'{m.POD_INFO}{{workload{operator}""', ", ".join((*DEVICE, "workload"))
    exported = _exported(f'{info}, exported_pod!=""}}', by)
    pods = f'{exported} or group by ({by}, namespace, pod) ({info}, exported_pod=""}})'
    if operator == "!=":
        return pods
    return f'label_replace({pods}, "workload", "$1", "pod", "{workloads.WORKLOAD_OF_POD}")'


def _exported(series: str, by: str) -> str:
    """Return the series with the pod that uses the GPU where Prometheus replaced it by the pod that it scraped."""
    return own(f"group by ({by}, exported_namespace, exported_pod) ({series})", "namespace", "pod")
