"""The lock around NVML: one call at a time, and no wait without end."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpu_exporter.sources.nvml.lock import BRIEF, PATIENCE, DriverLock
from tests.support.fakes.driver import FakeDriver

pytestmark = pytest.mark.slow


def test_calls_do_not_overlap() -> None:
    """With many threads, one is inside."""
    lock, inside, most = DriverLock(), 0, 0
    count_lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with lock:
                with count_lock:
                    inside += 1
                    most = max(most, inside)
                with count_lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (most, inside) == (1, 0)


def test_a_stuck_holder_delays_one_wait() -> None:
    """The next thread enters after PATIENCE, others at once; the late return of the first releases no other's lock."""
    lock, stuck, back = DriverLock(), threading.Event(), threading.Event()

    def hang() -> None:
        with lock:
            stuck.set()
            back.wait(10)

    thread = threading.Thread(target=hang)
    thread.start()
    stuck.wait(10)
    waits = []
    for _ in range(3):
        begin = time.monotonic()
        with lock:
            waits.append(time.monotonic() - begin)
    assert PATIENCE - 0.1 < waits[0] < 2 * PATIENCE
    assert max(waits[1:]) < PATIENCE  # the duration of a wait
    with lock:
        back.set()
        thread.join()
        entered = threading.Event()

        def enter() -> None:
            with lock:
                entered.set()

        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.1)
    other.join()
    assert entered.is_set()


READS = """
import sys, threading, time
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Pace
from gpu_exporter.sources.nvml.source import NvmlSource

source, fast = NvmlSource(), frozenset({Pace.FAST})
source.open()
devices = [source.attach(index, [m.POWER]) for index in range(2)]
for device in devices:
    device.read(frozenset(Pace))
ends = [0.0, 0.0]

def read(index):
    devices[index].read(fast)
    ends[index] = time.monotonic() - begin

threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
begin = time.monotonic()
threads[0].start()
while not source._read_lock._holder and not ends[0]:
    pass
threads[1].start()
for thread in threads:
    thread.join()
print(*ends)
"""


@pytest.mark.parametrize(("slow", "patience"), [(BRIEF * 0.8, BRIEF * 0.8), (2.0, BRIEF)])
def test_gpus_are_read_one_after_another(tmp_path: Path, slow: float, patience: float) -> None:
    """The second read waits for the first, unless that takes too long."""
    driver = FakeDriver(tmp_path, 2)
    driver.delay("PowerUsage", slow, 0)
    env = {**os.environ, **driver.environment}
    said = subprocess.run([sys.executable, "-c", READS], env=env, capture_output=True, text=True, check=True).stdout
    first, second = map(float, said.split())

    assert first >= slow
    assert second >= patience * 0.9
    assert second < first or slow < BRIEF
