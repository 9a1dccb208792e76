"""One at a time, and nobody waits for ever."""

import threading
import time

from gpu_exporter.sources.nvml.turn import PATIENCE, Turn


def test_calls_do_not_overlap() -> None:
    """Many threads, one inside."""
    turn, inside, most = Turn(), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(50):
            with turn:
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (most, inside) == (1, 0)


def test_a_stuck_holder_costs_one_wait() -> None:
    """The next goes ahead after PATIENCE, others at once, and the late return of the first frees nobody's turn."""
    turn, stuck, back = Turn(), threading.Event(), threading.Event()

    def hang() -> None:
        with turn:
            stuck.set()
            back.wait(10)

    thread = threading.Thread(target=hang)
    thread.start()
    stuck.wait(10)
    waits = []
    for _ in range(3):
        begin = time.monotonic()
        with turn:
            waits.append(time.monotonic() - begin)
    assert PATIENCE - 0.1 < waits[0] < PATIENCE + 0.4
    assert max(waits[1:]) < 0.1
    with turn:
        back.set()
        thread.join()
        entered = threading.Event()

        def enter() -> None:
            with turn:
                entered.set()

        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.1)
    other.join()
    assert entered.is_set()
