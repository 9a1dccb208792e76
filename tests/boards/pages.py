"""What other exporters say about the simulated fleet: kube-state-metrics, and a vLLM server."""

from __future__ import annotations

import math

from tests.boards.plan import GPUS, LENGTH, MINUTE, PENDING, SERVER, START, placed

RESOURCE = 'resource="nvidia_com_gpu"'
# A token takes a server this long, and twice as long with a batch of `DOUBLES_AT` requests.
TOKEN_SECONDS, DOUBLES_AT = 0.009, 80.0
# What the cache has room for; and the bounds of the histogram of the time to the first token.
MOST_REQUESTS = 128
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, math.inf)


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
        "num_requests_waiting": max(0, _requests(int(now // MINUTE)) - MOST_REQUESTS),
        "kv_cache_usage_perc": min(1.0, _requests(int(now // MINUTE)) / MOST_REQUESTS),
        "generation_tokens_total": tokens,
        "inter_token_latency_seconds_sum": waited,
        "inter_token_latency_seconds_count": tokens,
    }
    lines = [f"vllm:{name}{labels} {value:.3f}\n" for name, value in values.items()]
    for bound in BOUNDS:
        # Half of the requests wait for less than `middle`, the longer, the more of them there are.
        count = sum(
            _requests(minute) * (1 - 0.5 ** (bound / (0.05 + 0.3 * (_requests(minute) / MOST_REQUESTS) ** 2)))
            for minute in range(math.ceil(now / MINUTE))
        )
        le = f'{labels[:-1]},le="{"+Inf" if math.isinf(bound) else bound}"}}'
        lines.append(f"vllm:time_to_first_token_seconds_bucket{le} {count:.3f}\n")
    return "".join(lines)


def _requests(minute: int) -> int:
    """Return the requests in the server: from 6 in the first minute to 150 in the last, with ups and downs."""
    trend = 6 * 25 ** (minute * MINUTE / LENGTH)
    return round(trend * (1 + 0.08 * math.sin(minute / 3)))
