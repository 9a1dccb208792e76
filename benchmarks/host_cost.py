"""Measures what host evidence costs, on real processes. Needs Linux; no GPU.

    python -m benchmarks.host_cost [--gpus 8] [--workers 16] [--threads 50] [--others 10000] [--polls 60]

Starts a process for each GPU, with threads and workers, and reads their evidence as the exporter does; then again
beside many other processes. Exit code 1 if it takes more than 0.3 % of a core at the usual period of 5 s, or 3 MiB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.processes import SCAN_SECONDS
from gpu_exporter.host.watch import PERIOD_SECONDS, WAITING_SECONDS, HostWatch
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples

MOST_CPU, MOST_MIB = 0.003, 3.0
WAKE_SECONDS = 0.5


def fork(work: object) -> int:
    """Return the PID of a child that does the work and then sleeps until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if callable(work):
        work()
    while True:
        time.sleep(3600)


def training(workers: int, threads: int) -> int:
    """Return the PID of a process with threads and with workers that wake up now and then."""

    def work() -> None:
        os.setpgid(0, 0)
        for _ in range(threads):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        for _ in range(workers):
            fork(_wake)

    return fork(work)


def _wake() -> None:
    while True:
        time.sleep(WAKE_SECONDS)


def measure(jobs: list[int], polls: int) -> tuple[float, float]:
    """Return the CPU seconds of a poll, and of one that also reads what is read every 10 s."""
    watch = HostWatch(HostFiles(Path("/proc"), Path("/sys")))
    gpus = [Gpu(index, f"GPU-{index}", f"00000000:{index + 1:02X}:00.0") for index in range(len(jobs))]
    seen = [
        GpuSamples(gpu, time.monotonic(), [Sample(Series(m.PROCESS_MEMORY, gpu, (("pid", str(pid)),)), 1.0)], {})
        for gpu, pid in zip(gpus, jobs, strict=True)
    ]
    watch.rows(seen)
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(polls):
        thorough = number % 2 == 0
        for host in watch._hosts.values():
            host._scanned_at = -SCAN_SECONDS if thorough else time.monotonic()
        begin = time.thread_time()
        watch.poll(math.inf)
        watch.rows(seen)
        if number > 1:
            took[thorough].append(time.thread_time() - begin)
    if len(watch.rows(seen)) < len(jobs) * 10:
        sys.exit("no evidence: is /proc that of these processes?")
    return statistics.fmean(took[False]), statistics.fmean(took[True])


def share(quick: float, thorough: float, period: float) -> float:
    """Return the share of a core with a poll every `period` seconds."""
    return (quick * (1 - period / SCAN_SECONDS) + thorough * period / SCAN_SECONDS) / period


def resident_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    """Measure, print, write; return 1 if a bound is exceeded."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("gpus", 8), ("workers", 16), ("threads", 50), ("others", 10_000), ("polls", 60)):
        options.add_argument(f"--{name}", type=int, default=default)
    options.add_argument("--json", type=Path, metavar="FILE", help="file for the result")
    chosen = options.parse_args()
    jobs = [training(chosen.workers, chosen.threads) for _ in range(chosen.gpus)]
    others: list[int] = []
    try:
        time.sleep(2)
        before = resident_mib()
        alone = measure(jobs, chosen.polls)
        memory = resident_mib() - before
        others = [fork(None) for _ in range(chosen.others)]
        beside = measure(jobs, chosen.polls)
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        for pid in jobs:
            os.killpg(pid, signal.SIGKILL)
    result = {
        "processes": chosen.gpus * (chosen.workers + 1),
        "poll_ms": alone[0] * 1e3,
        "thorough_poll_ms": alone[1] * 1e3,
        "share_every_5_s": share(*alone, PERIOD_SECONDS),
        "share_every_1_s": share(*alone, WAITING_SECONDS),
        "others": chosen.others,
        "share_every_5_s_beside_others": share(*beside, PERIOD_SECONDS),
        "memory_mib": memory,
    }
    print(json.dumps(result, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=2) + "\n")
    return int(result["share_every_5_s"] > MOST_CPU or memory > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
