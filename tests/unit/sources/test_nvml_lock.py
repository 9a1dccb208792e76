"""The lock around NVML: one call at a time, and no wait without end."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpu_exporter.sources.nvml import source as lock_module
from gpu_exporter.sources.nvml.source import BRIEF, PATIENCE, DriverLock
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT
from tests.support.virtual_time import Clock

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


def test_a_stuck_holder_delays_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next thread enters after PATIENCE, others at once; the late return of the first releases no other's lock."""
    lock, stuck, back, clock = DriverLock(), threading.Event(), threading.Event(), Clock()
    monkeypatch.setattr(lock_module, "time", clock)

    def hang() -> None:
        with lock:
            stuck.set()
            back.wait()

    thread = threading.Thread(target=hang)
    thread.start()
    stuck.wait()

    def entering() -> tuple[threading.Thread, threading.Event]:
        entered = threading.Event()

        def enter() -> None:
            with lock:
                entered.set()

        other = threading.Thread(target=enter)
        other.start()
        return other, entered

    first, entered = entering()
    assert not entered.wait(0.1)
    clock.pass_by(PATIENCE)
    first.join(LIMIT)
    assert entered.is_set()
    for _ in range(2):
        with lock:  # time does not pass: a wait would have no end
            pass
    with lock:
        back.set()
        thread.join()
        other, entered = entering()
        assert not entered.wait(0.1)
    other.join(LIMIT)
    assert entered.is_set()


READS = """
import os, sys, threading, time
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import Pace
from gpu_exporter.sources.nvml.source import NvmlSource

source, fast = NvmlSource(), frozenset({Pace.FAST})
source.open()
devices = [source.attach(index, [m.POWER]) for index in range(2)]
for device in devices:
    device.read(frozenset(Pace))
print("ready", flush=True)
sys.stdin.readline()
threads = [threading.Thread(target=devices[index].read, args=(fast,)) for index in range(2)]
begin = time.monotonic()
threads[0].start()
while not source._read_lock._holder and threads[0].is_alive():
    pass
threads[1].start()
threads[1].join()
print(time.monotonic() - begin, threads[0].is_alive(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(("slow", "patience"), [(BRIEF * 0.8, BRIEF * 0.8), (3600.0, BRIEF)])
def test_gpus_are_read_one_after_another(tmp_path: Path, slow: float, patience: float) -> None:
    """The second read waits for the first, unless that takes too long."""
    driver = FakeDriver(tmp_path, 2)
    with subprocess.Popen(
        [sys.executable, "-c", READS],
        env={**os.environ, **driver.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        driver.delay("PowerUsage", slow, 0)
        second, first_goes_on = process.communicate("go on\n", timeout=LIMIT)[0].split()

    assert float(second) >= patience * 0.9
    assert first_goes_on == "True" or slow < BRIEF
