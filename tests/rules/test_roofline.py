"""Rules on what GPUs achieve, and on the batch size of inference servers, in Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from tests import ROOT
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, minutes
from tests.rules.shapes import STEP

RULES = [ROOT / "alerts" / "recording.yaml"]
POD = 'namespace="inference",pod="llm-0"'
# Stretches of ten minutes with one batch size each: output, and time for each token. Latency takes over from 16 on.
MINUTES = 10
LOAD = {4: (400.0, 0.010), 8: (760.0, 0.0105), 16: (1250.0, 0.0128), 32: (1400.0, 0.0229)}


def test_achieved_rates(tmp_path: Path) -> None:
    """Of the model; and of the GPU itself, where its active check measured the memory. No share exceeds 1."""
    product = {**profiles.HEALTHY, **profiles.GEMM}
    copy = {**profiles.HEALTHY, **profiles.COPY}
    best = {**product, m.DRAM_ACTIVE: 0.95, m.SM_CLOCK: 1980.0}
    fleet = [Device("node", gpu, [minutes(10, values)]) for gpu, values in enumerate((product, copy, copy, best))]
    target = ",".join(f'{name}="{value}"' for name, value in fleet[2].scrape.items())
    checked = {
        "series": f'gpu_probe_bytes_per_second{{gpu="2",UUID="{fleet[2].uuid}",quantity="memory_copy",{target}}}',
        "values": "4.5e12x60",
    }
    bandwidth = 0.887 * 4.8e12
    expected = [
        Expect(_rounded("gpu:tensor_achieved:ratio"), [_of(0, 1.0), _of(1, 0.0), _of(2, 0.0), _of(3, 1.0)]),
        Expect(
            _rounded("gpu:memory_achieved:ratio"),
            [_of(0, round(0.17 / 0.887, 2)), _of(1, 1.0), _of(2, round(bandwidth / 4.5e12, 2)), _of(3, 1.0)],
        ),
    ]
    check(tmp_path, [Case("roofline", fleet, expected, more=[checked])], rules=RULES)
    assert m.TENSOR_ACTIVE in profiles.GEMM


def _rounded(record: str) -> str:
    return f"max by (gpu) (round({record}, 0.01))"


def _of(gpu: int, value: float) -> tuple[Mapping[str, str], float]:
    return {"gpu": str(gpu)}, value


def vllm() -> Iterator[tuple[str, Sequence[float]]]:
    """Yield each series of the server, with its value at each scrape."""
    batch, tokens, seconds, count = [], [0.0], [0.0], [0.0]
    for size, (output, latency) in LOAD.items():
        for _ in range(round(MINUTES * 60 / STEP)):
            batch.append(float(size))
            tokens.append(tokens[-1] + STEP * output)
            count.append(tokens[-1])
            seconds.append(seconds[-1] + STEP * output * latency)
    yield "vllm:num_requests_running", batch
    yield "vllm:generation_tokens_total", tokens[1:]
    yield "vllm:inter_token_latency_seconds_sum", seconds[1:]
    yield "vllm:inter_token_latency_seconds_count", count[1:]


def test_the_batch_size_at_which_latency_takes_over(tmp_path: Path) -> None:
    """The output by the present size, and the size from which twice the batch raises the latency more."""
    series = [{"series": f"{name}{{{POD}}}", "values": " ".join(map(repr, values))} for name, values in vllm()]
    labels = {"namespace": "inference", "pod": "llm-0"}
    present = {**labels, "batch": "32"}
    expected = [
        Expect("max by (namespace, pod) (pod:batch_knee:count)", [(labels, 16.0)]),
        Expect("round(pod:batch_output:per_second)", [(present, 1400.0)]),
        Expect("round(pod:batch_latency:seconds, 0.0001)", [(present, 0.0229)]),
    ]
    device = Device("node", 0, [minutes(MINUTES * len(LOAD))])
    check(tmp_path, [Case("serving", [device], expected, more=series)], rules=RULES)
