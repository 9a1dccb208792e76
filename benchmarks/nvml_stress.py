"""Checks that NVML survives many concurrent readers on real GPUs.

    python -m benchmarks.nvml_stress [--processes 3] [--seconds 60] [--unserialised]

Each process has a thread for every GPU and reads ten times a second, in two of three reads also the slow and rare
fields. On four H200s (driver 580.159.04), three exporters that did so died of a segmentation fault within a second, for
one or both of two reasons: calls of their threads overlapped (`sources/nvml/source.py` prevents it, `--unserialised`
allows it), and batches of field values ended in error counters of NVLinks (`sources/nvml/handle.py`). Exit code 1 if a
process fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import threading
import time

from benchmarks import harness
from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.sources.nvml.source import NvmlSource


def read(seconds: float, unserialised: bool) -> None:
    """Read every GPU on its own thread for `seconds`, then exit without destructors."""
    source = NvmlSource(lock=contextlib.nullcontext() if unserialised else None)
    source.open()
    end = time.monotonic() + seconds

    def one(index: int) -> None:
        device, turn = source.attach(index, selected(MetricSet.FULL)), 0
        while time.monotonic() < end:
            turn += 1
            device.read(frozenset(Pace) if turn % 3 else frozenset({Pace.FAST}))
            time.sleep(0.1)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(source.count())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)


def main() -> int:
    """Run the processes; return 1 if one of them fails or is killed."""
    options = harness.options(__name__, __doc__)
    options.add_argument("--processes", type=int, default=3, help="number of processes (default: %(default)s)")
    options.add_argument("--seconds", type=float, default=60, help="how long they read (default: %(default)s)")
    options.add_argument("--unserialised", action="store_true", help="let calls into NVML overlap")
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.child:
        read(chosen.seconds, chosen.unserialised)
    run = harness.begin(__name__, chosen)
    children = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "benchmarks.nvml_stress", "--child", *sys.argv[1:]]
        )
        for _ in range(chosen.processes)
    ]
    codes = [child.wait() for child in children]
    print(f"{chosen.processes} processes, {chosen.seconds:g} s: exit codes {codes}")
    settings = {"processes": chosen.processes, "seconds": chosen.seconds, "serialised": not chosen.unserialised}
    run.write({**settings, "gpus": harness.gpus(), "exit_codes": codes})
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
