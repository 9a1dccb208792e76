"""Rules on inference servers beside their GPUs: throughput and latency by batch size, and where latency takes over.

By Little's law, the requests in a server are its throughput times its latency. When the batch doubles, the product of
both doubles: as long as throughput grows more than latency, a larger batch pays; beyond, it mostly makes users wait.
"""

from __future__ import annotations

from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.allocation import POD, own

_POD, _BATCH = ("namespace", "pod"), "batch"
_OF_POD = '{pod!=""}'
# Batches are compared by powers of two, over a day, which has hours with little and with much traffic.
SIZES = tuple(2**power for power in range(11))
WINDOW, RATE = "1d", "5m"


def _now(name: str) -> str:
    """Return the sum of a gauge by pod."""
    return f"sum by ({POD}) ({own(name + _OF_POD, *_POD)})"


def _rate(name: str) -> str:
    """Return the rate of a counter by pod, while the pod exists."""
    series = f"{name}{_OF_POD}"
    return f"sum by ({POD}) ({own(f'rate({series}[{RATE}]) and {series}', *_POD)})"


def _mean(histogram: str) -> str:
    """Return the mean of a histogram by pod."""
    return f"{_rate(f'{histogram}_sum')} / ({_rate(f'{histogram}_count')} > 0)"


def _first(*ways: str) -> str:
    return "\nor\n".join(ways)


BATCH = Aggregate(
    "pod:batch:count",
    "Requests that an inference server (vLLM, TGI) computes together, or the mean batch of Triton",
    _first(
        _now("vllm:num_requests_running"),
        _now("tgi_batch_current_size"),
        f"{_rate('nv_inference_count')} / ({_rate('nv_inference_exec_count')} > 0)",
    ),
    _POD,
)
OUTPUT = Aggregate(
    "pod:output:per_second",
    "Tokens per second that an inference server generates, or inferences per second of Triton",
    _first(
        _rate("vllm:generation_tokens_total"), _rate("tgi_request_generated_tokens_sum"), _rate("nv_inference_count")
    ),
    _POD,
)
LATENCY = Aggregate(
    "pod:output_latency:seconds",
    "Mean time for each generated token of a request, or for each batch of Triton",
    _first(
        _mean("vllm:inter_token_latency_seconds"),
        _mean("vllm:time_per_output_token_seconds"),
        _mean("tgi_request_mean_time_per_token_duration"),
        f"{_rate('nv_inference_compute_infer_duration_us')} / ({_rate('nv_inference_exec_count')} > 0) / 1e6",
    ),
    _POD,
)
_SIZE = f'count_values by ({POD}) ("{_BATCH}", 2 ^ floor(log2({BATCH.record} >= 1)))'


def _by_size(of: Aggregate, record: str, help: str) -> Aggregate:
    expression = f"{_SIZE} * on ({POD}) group_left () {of.record}"
    return Aggregate(record, help, expression, (*_POD, _BATCH))


OF_SIZE = _by_size(OUTPUT, "pod:batch_output:per_second", "The same, by the size of the batch, a power of two")
LATENCY_OF_SIZE = _by_size(LATENCY, "pod:batch_latency:seconds", "The same, by the size of the batch, a power of two")


def _next(record: str) -> str:
    """Return, for each size, the mean for batches of twice this size."""
    means = ((size, f'avg_over_time({record}{{{_BATCH}="{2 * size}"}}[{WINDOW}])') for size in SIZES[:-1])
    return _first(*(f'label_replace({mean}, "{_BATCH}", "{size}", "", "")' for size, mean in means))


def _growth(record: str) -> str:
    return f"(\n{_next(record)}\n) / avg_over_time({record}[{WINDOW}])"


_SIZES = _first(*(f'label_replace(vector({size}), "{_BATCH}", "{size}", "", "")' for size in SIZES[:-1]))
KNEE = Aggregate(
    "pod:batch_knee:count",
    "Batch size from which twice the batch makes latency grow more than throughput, over the last day",
    f"""min by ({POD}) (
  ({_growth(LATENCY_OF_SIZE.record)} > {_growth(OF_SIZE.record)}) * 0
  + on ({_BATCH}) group_left () ({_SIZES})
)""",
    _POD,
)
SERVING = (BATCH, OUTPUT, LATENCY, OF_SIZE, LATENCY_OF_SIZE, KNEE)
# What only panels read: the time from a request to its first token as a histogram, and the share of the cache of keys
# and values that is in use.
FIRST_TOKEN = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
CACHE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")


def first_token(quantile: float, pods: str, interval: str) -> str:
    """Return a quantile of the time to the first token, of the pods that `pods` has a series of."""
    rates = _first(*(own(f"rate({name}_bucket{_OF_POD}[{interval}])", *_POD) for name in FIRST_TOKEN))
    return f"histogram_quantile({quantile:g}, sum by ({POD}, le) (({rates}) and on ({POD}) {pods}))"


def cache_use(pods: str) -> str:
    """Return the share of the cache that is in use, of the pods that `pods` has a series of."""
    return f"max by ({POD}) (({_first(*(own(name + _OF_POD, *_POD) for name in CACHE))}) and on ({POD}) {pods})"
