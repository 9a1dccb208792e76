"""Records all GPUs until it is stopped, each value at every tick.

    python -m benchmarks.phases.recorder FILE

`gpu-exporter record` reads some profiling values once in five seconds, which is longer than a phase.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.cli.stop import stop_event
from gpu_exporter.model.metric import Gpm, Metric, MetricSet, Pace
from gpu_exporter.pipeline.recorder import record
from gpu_exporter.sources.nvml.source import NvmlSource

INTERVAL_SECONDS, LONGEST_SECONDS = 0.1, 3600.0


def fast(metric: Metric) -> Metric:
    """Return the row, read at each tick if it is a profiling value."""
    return replace(metric, nvml=replace(metric.nvml, pace=Pace.FAST)) if isinstance(metric.nvml, Gpm) else metric


def main(path: Path) -> None:
    """Record until SIGTERM."""
    rows = [fast(metric) for metric in selected(MetricSet.FULL)]
    ticks, _ = record(NvmlSource(), rows, path, INTERVAL_SECONDS, LONGEST_SECONDS, mask=True, stop=stop_event())
    print(f"{path}: {ticks} ticks")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
