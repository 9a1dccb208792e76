"""Reads a board's buffered power samples and its energy counter, as a reference that is independent of exporters.

    python -m benchmarks.board GPU

Prints one line of JSON a second: the time, joules so far, and the new power samples (unix seconds, watts).
"""

from __future__ import annotations

import json
import sys
import time

import pynvml

from gpu_exporter.sources.nvml.handle import FIELD_MEMBERS

READ_SECONDS = 1.0


def main(gpu: int) -> None:
    """Print until killed."""
    pynvml.nvmlInit()
    handle, newest = pynvml.nvmlDeviceGetHandleByIndex(gpu), 0
    while True:
        kind, found = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
        values = [(each.timeStamp, getattr(each.sampleValue, FIELD_MEMBERS[kind])) for each in found]
        samples = [(stamp, milliwatts) for stamp, milliwatts in values if stamp > newest]
        newest = max((stamp for stamp, _ in samples), default=newest)
        line = {
            "time": time.time(),
            "joules": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "samples": [(stamp / 1e6, milliwatts / 1e3) for stamp, milliwatts in samples],
        }
        print(json.dumps(line), flush=True)
        time.sleep(READ_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
