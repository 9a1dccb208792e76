"""Faults for a long time: the exporter keeps serving and does not grow. `make soak`; CI runs it briefly.

    python -m tests.soak.faults [--seconds 1800] [--seed 1]

Eight fake GPUs are read ten times a second and scraped all the time. Meanwhile GPUs are lost, wedged and restored, and
the driver is unloaded and reloaded, at random. Then memory and descriptors of the last quarter are compared with those
of the second. Threads are bounded at all times: each wedged GPU holds one more, until it is repaired.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Page, serving
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import until

GPUS = 8


def fault(driver: FakeDriver, rng: random.Random) -> None:
    """Break one thing, or repair everything."""
    gpu = rng.randrange(GPUS)
    kinds: list[Callable[[], None]] = [
        lambda: driver.lose(gpu),
        lambda: driver.require_reset(gpu),
        lambda: driver.block(gpu),
        lambda: driver.fail("PowerUsage", 999, gpu=gpu),
        lambda: driver.set("UtilizationRates.gpu", 808, gpu=gpu),
        driver.unload,
        lambda: driver.count(rng.randint(1, GPUS)),
        lambda: mend(driver),
        lambda: mend(driver),
    ]
    rng.choice(kinds)()


def mend(driver: FakeDriver) -> None:
    """Repair everything."""
    with driver.batch():
        driver.load()
        driver.count(GPUS)
        for gpu in range(GPUS):
            driver.restore(gpu)
            driver.unblock(gpu)
            driver.unset("PowerUsage", gpu)
            driver.unset("UtilizationRates.gpu", gpu)


def usage(pid: int) -> tuple[float, int, int]:
    """Return resident MiB, threads and open descriptors."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024, int(status["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def all_gpus(page: Page) -> bool:
    """Return whether every GPU is read."""
    return len(page.values("gpu_sm_active_seconds_total")) == GPUS


def soak(folder: Path, seconds: float, seed: int) -> list[tuple[float, int, int]]:
    """Run for a while, then repair everything and wait; return the process's usage at each scrape.

    Raise `AssertionError` if there are more threads than at the start and one for each GPU, or not as few in the end.
    """
    rng, driver = random.Random(seed), FakeDriver(folder / "driver", gpus=GPUS)
    used: list[tuple[float, int, int]] = []
    with serving(folder) as serve:
        arguments = ("--interval", "100ms", "--metrics", "full", "--log-level", "error")
        exporter = serve(*arguments, env=driver.environment, new=True)
        exporter.until(all_gpus, timeout=20)
        _, threads, _ = usage(exporter.process.pid)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            exporter.get(headers={"Accept-Encoding": "gzip"})
            used.append(usage(exporter.process.pid))
            if rng.random() < 0.1:
                fault(driver, rng)
            time.sleep(0.05)
        assert max(each for _, each, _ in used) <= threads + GPUS
        mend(driver)
        exporter.until(all_gpus, timeout=60)
        until(lambda: usage(exporter.process.pid)[1] <= threads, timeout=30, what=f"{threads} threads")
        begin = time.monotonic()
        code, took = exporter.stop(), time.monotonic() - begin
        assert (code, took < 3) == (0, True), f"ended with {code} after {took:.1f} s"
    return used


def main() -> int:
    """Run and print the result."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=1800)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        used = soak(Path(folder), chosen.seconds, chosen.seed)
    quarter = len(used) // 4
    second, last = used[quarter : 2 * quarter], used[3 * quarter :]
    rss = [statistics.median(each[0] for each in part) for part in (second, last)]
    descriptors = [max(fds for *_, fds in part) for part in (second, last)]
    print(f"{len(used)} scrapes in {chosen.seconds:.0f} s; second quarter -> last quarter")
    print(f"RSS {rss[0]:.1f} -> {rss[1]:.1f} MiB, descriptors {descriptors[0]} -> {descriptors[1]}")
    return 0 if rss[1] < rss[0] * 1.02 and descriptors[1] <= descriptors[0] + 2 else 1


if __name__ == "__main__":
    sys.exit(main())
