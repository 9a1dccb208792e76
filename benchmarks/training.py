"""What does reading the GPUs cost a training loop? Needs torch and a GPU.

    python -m benchmarks.training [--steps 300] [--rounds 4]

The same training steps of about 30 ms, in turns without and with a read once a second in the loop.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from benchmarks import harness
from benchmarks.workloads import timed, training
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.collection.monitor import Monitor
from gpu_exporter.library import INTERVAL_SECONDS, readings
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.sources.nvml.source import NvmlSource

SHOWN = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_POWER_USAGE")


def main() -> int:
    """Print the mean step with and without, and what a read itself takes; 1 if the difference is 1 % or more."""
    options = harness.options(__name__, __doc__)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--rounds", type=int, default=4)
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
    print(f"a read: median {statistics.median(reads) * 1e6:.0f} µs, longest {max(reads) * 1e6:.0f} µs")
    print(
        f"without: {before * 1e3:.3f} ms a step; with a read a second: {after * 1e3:.3f} ms ({after / before - 1:+.2%})"
    )
    run.write(
        {
            "steps": len(plain),
            "without_ms": before * 1e3,
            "with_ms": after * 1e3,
            "slowdown": after / before - 1,
            "read_ms": statistics.median(reads) * 1e3,
        }
    )
    return 0 if after / before - 1 < 0.01 else 1


def _with_reads(step: Callable[[], None], steps: int, reads: list[float]) -> list[float]:
    """As `gpu_exporter.read()` does it, but so that it can be stopped."""
    monitor = Monitor(NvmlSource(), selected(MetricSet.DEFAULT), INTERVAL_SECONDS, INTERVAL_SECONDS)
    monitor.start()
    took, last = [], time.perf_counter()
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        if begin - last >= 1:
            last = begin
            asked = time.perf_counter()
            gpus = [gpu.as_dict() for gpu in readings(monitor.snapshot())]
            reads.append(time.perf_counter() - asked)
        took.append(time.perf_counter() - begin)
    print(f"{len(gpus)} GPUs; the first: " + ", ".join(f"{name} {gpus[0].get(name)}" for name in SHOWN), flush=True)
    monitor.stop()
    return took


if __name__ == "__main__":
    sys.exit(main())
