"""What GPUs of the fake driver do while their processes wait."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.fakes.driver import FakeDriver


def host_bound(driver: FakeDriver, *pids: int) -> None:
    """Make GPU 0 wait for data that comes over PCIe, and list these processes on it."""
    with driver.batch():
        driver.set("Gpm.1", 24.0)
        driver.set("Gpm.2", 7.0)
        driver.set("Gpm.5", 2.0)
        driver.set("Gpm.10", 3.0)
        driver.set("Gpm.21", 9000.0)
        driver.set("Gpm.60", 0.0)  # beside traffic of collectives, what comes over PCIe is not known to be data
        driver.set("Gpm.61", 0.0)
        driver.set("ComputeRunningProcesses", ",".join(f"{pid}:1000" for pid in pids))


def hangs(driver: FakeDriver, absent: int, pids: Sequence[int], gpus: int | None = None) -> None:
    """Make all GPUs but one wait in a collective, each with a process, or with several if there are fewer `gpus`."""
    gpus = gpus or len(pids)
    idle = {**dict.fromkeys((1, 2, 3, 5, 7, 10, 11, 12, 13, 60, 61), 0.0), 20: 1.0, 21: 1.0}
    spinning = {**idle, 1: 100.0, 2: 18.0, 3: 5.0}
    with driver.batch():
        for gpu in range(gpus):
            for number, value in (idle if gpu == absent else spinning).items():
                driver.set(f"Gpm.{number}", value, gpu)
            of_gpu = pids[gpu::gpus]
            driver.set("ComputeRunningProcesses", ",".join(f"{pid}:1000" for pid in of_gpu), gpu)
