"""Measures what the CPU of `serve` consists of: the CPU and the wake-ups of each of its threads.

    python -m benchmarks.cpu_parts SECONDS serve …

Prints, by thread, the share of a core and the wake-ups in a second, as one line of JSON, while one scraper scrapes once
a second. `benchmarks.cost` runs this in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.exporter import Scraper, thread_wakeups

# An exporter that is younger than 30 s judges the GPUs more often.
SETTLED_SECONDS = 32.0
ENDED, WATCH = "threads that ended", "watch"


class Spent(NamedTuple):
    """CPU in seconds, and wake-ups."""

    cpu: float
    wakeups: int


def spent() -> dict[str, Spent]:
    """Return what each thread of this process has spent so far, by name."""
    found: defaultdict[str, Spent] = defaultdict(lambda: Spent(0.0, 0))
    for thread in threading.enumerate():
        task = Path(f"/proc/self/task/{thread.native_id}")
        try:
            cpu = int((task / "schedstat").read_text().split()[0]) / 1e9
            wakeups = thread_wakeups(task)
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
        before = found[thread.name]
        found[thread.name] = Spent(before.cpu + cpu, before.wakeups + wakeups)
    return {**found, ENDED: Spent(time.process_time() - sum(each.cpu for each in found.values()), 0)}


def watch(seconds: float, port: int) -> None:
    """Print what each thread spends once everything has settled."""
    time.sleep(SETTLED_SECONDS)
    scrape_once = Scraper(port)
    scrape_once()
    begin, before = time.monotonic(), spent()
    while (elapsed := time.monotonic() - begin) < seconds:
        scrape_once()
        time.sleep(min(1.0, max(0.0, seconds - elapsed)))
    after, passed = spent(), time.monotonic() - begin
    parts = {
        name: [(now.cpu - old.cpu) / passed, (now.wakeups - old.wakeups) / passed]
        for name, now in after.items()
        if name != WATCH
        for old in (before.get(name, Spent(0.0, 0)),)
    }
    print(json.dumps(parts), flush=True)
    os._exit(0)


if __name__ == "__main__":
    from gpu_exporter.cli.main import main

    duration, address = float(sys.argv.pop(1)), sys.argv[sys.argv.index("--address") + 1]
    threading.Thread(target=watch, args=(duration, int(address.rpartition(":")[2])), name=WATCH, daemon=True).start()
    main()
