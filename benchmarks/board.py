"""Reads a board's power as the driver buffers it, and its energy counter, apart from any exporter: the truth of a run.

    python -m benchmarks.board [GPU]

Once a second it prints one line of JSON: the time, joules so far, and what is new since the line before: the driver's
samples of power (unix seconds, watts), and the clock of the SMs as it was twenty times (unix seconds, MHz).
"""

from __future__ import annotations

import json
import sys
import time

import pynvml

from gpu_exporter.sources.nvml.buffers import MEMBERS

CLOCKS, CLOCK_SECONDS = 20, 0.05


def main(gpu: int) -> None:
    """Read until ended."""
    pynvml.nvmlInit()
    handle, newest = pynvml.nvmlDeviceGetHandleByIndex(gpu), 0
    while True:
        clocks = []
        for _ in range(CLOCKS):
            clocks.append((time.time(), pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)))
            time.sleep(CLOCK_SECONDS)
        kind, found = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
        values = [(each.timeStamp, getattr(each.sampleValue, MEMBERS[kind])) for each in found]
        samples = [(stamp, milliwatts) for stamp, milliwatts in values if stamp > newest]
        newest = max((stamp for stamp, _ in samples), default=newest)
        line = {
            "time": time.time(),
            "joules": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
            "samples": [(stamp / 1e6, milliwatts / 1e3) for stamp, milliwatts in samples],
            "clocks": clocks,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
