"""What other exporters say about the simulated fleet: kube-state-metrics, and a vLLM server."""

from __future__ import annotations

import math

from tests.boards.plan import GPUS, LENGTH, MINUTE, PENDING, SERVER, START, placed

RESOURCE = 'resource="nvidia_com_gpu"'
# A token takes a server this long, and twice as long with a batch of `DOUBLES_AT` requests.
TOKEN_SECONDS, DOUBLES_AT = 0.009, 80.0


def kube_page(now: float, start: float = START) -> str:
    """Return what kube-state-metrics exposes about the fleet, `now` seconds after its start."""
    lines = []
    for node, (job, rank) in placed().items():
        pod = f'namespace="{job.team}",pod="{job.name}-{rank}"'
        lines += [
            f'kube_node_status_allocatable{{node="{node}",{RESOURCE},unit="integer"}} {GPUS}',
            f'kube_node_labels{{node="{node}",label_karpenter_sh_nodepool="{job.pool}"}} 1',
            f'kube_node_status_condition{{node="{node}",condition="Ready",status="true"}} 1',
            f'kube_pod_container_resource_requests{{{pod},container="main",node="{node}",{RESOURCE}}} {GPUS}',
            f'kube_pod_status_phase{{{pod},phase="Running"}} 1',
        ]
    for team, name, gpus, waits in PENDING:
        created = LENGTH - waits
        if now >= created:
            pod = f'namespace="{team}",pod="{name}"'
            lines += [
                f'kube_pod_container_resource_requests{{{pod},container="main",{RESOURCE}}} {gpus}',
                f'kube_pod_status_phase{{{pod},phase="Pending"}} 1',
                f"kube_pod_status_unschedulable{{{pod}}} 1",
                f"kube_pod_created{{{pod}}} {start + created:.0f}",
            ]
    return "\n".join(lines) + "\n"


def server_page(now: float) -> str:
    """Return what the inference server exposes, `now` seconds after the fleet's start. Its traffic grows."""
    namespace, pod = SERVER
    labels = f'{{namespace="{namespace}",pod="{pod}",model_name="llm"}}'
    tokens = waited = 0.0
    for minute in range(math.ceil(now / MINUTE)):
        requests = _requests(minute)
        generating = min(MINUTE, now - minute * MINUTE)
        latency = TOKEN_SECONDS * (1 + requests / DOUBLES_AT)
        tokens += generating * requests / latency
        waited += generating * requests
    values = {
        "num_requests_running": _requests(int(now // MINUTE)),
        "num_requests_waiting": 0,
        "generation_tokens_total": tokens,
        "inter_token_latency_seconds_sum": waited,
        "inter_token_latency_seconds_count": tokens,
    }
    return "".join(f"vllm:{name}{labels} {value:.3f}\n" for name, value in values.items())


def _requests(minute: int) -> int:
    """Return the requests in the server: from 6 in the first minute to 150 in the last, with ups and downs."""
    trend = 6 * 25 ** (minute * MINUTE / LENGTH)
    return round(trend * (1 + 0.08 * math.sin(minute / 3)))
