"""How much memory a tick takes and gives back, and whether it keeps any: gpu-exporter under tracemalloc.

    python -m benchmarks.allocations TICKS serve …

Runs the exporter with these arguments until it has ticked so often, and prints one line of JSON. In a process of its
own, for tracing costs time.
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
    """Look once a tick: memory at its highest beyond what is kept, in KiB (median), and blocks more a tick."""
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
