"""Measures with tracemalloc how much memory a collection of gpu-exporter allocates, and how much it leaks.

    python -m benchmarks.allocations TICKS serve …

Runs the exporter with these arguments for TICKS collections and prints one line of JSON. `benchmarks.cost` runs this in
a process of its own because tracing slows the exporter down.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import tracemalloc
from statistics import median

from gpu_exporter.cli.main import main

TICK_SECONDS = 1.0
WARM_TICKS = 5


def watch(ticks: int) -> None:
    """Print the median peak of a collection in KiB, and how many blocks each collection leaks."""
    while "pynvml" not in sys.modules:  # tracing makes the start slow
        time.sleep(0.1)
    time.sleep(WARM_TICKS * TICK_SECONDS)
    blocks, peaks = sys.getallocatedblocks(), []
    for _ in range(ticks):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        time.sleep(TICK_SECONDS)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
    kept = (sys.getallocatedblocks() - blocks) / ticks
    print(json.dumps({"peak_kib": median(peaks) / 1024, "blocks_kept": kept}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(int(sys.argv.pop(1)),), daemon=True).start()
    tracemalloc.start()
    main()
