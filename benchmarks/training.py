"""Measures what `gpu_exporter.read()` costs in a training loop. Needs PyTorch with CUDA.

    python -m benchmarks.training [--steps 300] [--rounds 4]

Rounds of training steps of about 30 ms alternate: without reads, with one read a second. Exit code 1 if reads make the
steps 1 % slower.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from benchmarks import harness
from benchmarks.workloads import timed, training
from gpu_exporter.app.library import INTERVAL_SECONDS, readings
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.pipeline.monitor import Monitor
from gpu_exporter.sources.nvml.source import NvmlSource

BOUND = 0.01
SHOWN = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_POWER_USAGE")


def main() -> int:
    """Measure, print and write; return 1 if the slowdown is not below the bound."""
    options = harness.options(__name__, __doc__)
    options.add_argument("--steps", type=int, default=300, help="steps in a round (default: %(default)s)")
    options.add_argument("--rounds", type=int, default=4, help="rounds without and with reads (default: %(default)s)")
    chosen = options.parse_args()
    run = harness.begin(__name__, chosen)
    step = training()
    plain: list[float] = []
    reading: list[float] = []
    reads: list[float] = []
    for _ in range(chosen.rounds):
        plain += (timed(step) for _ in range(chosen.steps))
        reading += _with_reads(step, chosen.steps, reads)
    before, after = statistics.fmean(plain), statistics.fmean(reading)
    slowdown = after / before - 1
    print(f"a read: median {statistics.median(reads) * 1e6:.0f} µs, longest {max(reads) * 1e6:.0f} µs")
    print(f"without: {before * 1e3:.3f} ms a step; with a read a second: {after * 1e3:.3f} ms ({slowdown:+.2%})")
    run.write(
        {
            "steps": len(plain),
            "without_ms": before * 1e3,
            "with_ms": after * 1e3,
            "slowdown": slowdown,
            "read_ms": statistics.median(reads) * 1e3,
        }
    )
    return harness.exit_code([f"slowdown {slowdown:.2%}, bound {BOUND:.0%}"] if slowdown >= BOUND else [])


def _with_reads(step: Callable[[], None], steps: int, reads: list[float]) -> list[float]:
    """Return the seconds of each step. Reads like `gpu_exporter.read()`, but with a monitor that can be stopped."""
    monitor = Monitor(NvmlSource(), selected(MetricSet.DEFAULT), INTERVAL_SECONDS, INTERVAL_SECONDS)
    monitor.start()
    took, last = [], time.perf_counter()
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        if begin - last >= 1:
            last = begin
            read_begin = time.perf_counter()
            gpus = [gpu.as_dict() for gpu in readings(monitor.snapshot())]
            reads.append(time.perf_counter() - read_begin)
        took.append(time.perf_counter() - begin)
    print(f"{len(gpus)} GPUs; the first: " + ", ".join(f"{name} {gpus[0].get(name)}" for name in SHOWN), flush=True)
    monitor.stop()
    return took


if __name__ == "__main__":
    sys.exit(main())
