"""The lock around NVML: one call at a time, and no wait without end."""

import threading

import pytest

from gpu_exporter.sources.nvml import source as lock_module
from gpu_exporter.sources.nvml.source import PATIENCE, DriverLock
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
