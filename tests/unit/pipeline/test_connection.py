"""The state of the connection: which reports count, what is logged, and what wakes the connect thread."""

from __future__ import annotations

import logging
import threading

import pytest

from gpu_exporter.model.errors import SourceLost
from gpu_exporter.pipeline.connection import NOT_ANSWERED, DriverConnection
from tests.support.tools import LIMIT
from tests.unit.pipeline.test_metrics_change import FakeSource

GONE = SourceLost("driver: gone", "driver_gone")


@pytest.fixture
def connection() -> DriverConnection:
    """Return a connection that is up, after its first attempt."""
    connection = DriverConnection(FakeSource(), threading.Event())
    connection.invalidate()
    connection.opened()
    connection.wake()
    connection.sleep(0)
    return connection


def test_before_the_first_attempt() -> None:
    """Down without an error; the first failure is not logged, because the caller of `start` reports it."""
    connection = DriverConnection(FakeSource(), threading.Event())

    assert (connection.up, connection.problem(), connection.reason) == (False, NOT_ANSWERED, "no_answer")
    assert not connection.await_attempt(0)


def test_the_first_failure_is_left_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    connection = DriverConnection(FakeSource(), threading.Event())
    connection.failed(GONE)
    connection.sleep(0)

    assert connection.await_attempt(0)
    assert (connection.up, connection.problem(), connection.reason) == (False, "driver: gone", "driver_gone")
    assert caplog.messages == []


@pytest.mark.parametrize(("generation", "counts"), [(0, False), (1, True), (2, False)])
def test_only_a_read_of_this_generation_can_lose_it(
    connection: DriverConnection, generation: int, counts: bool
) -> None:
    """A late error of an earlier library does not affect the current one."""
    connection.lost(generation, GONE)

    assert connection.up is not counts


def test_one_line_per_change(connection: DriverConnection, caplog: pytest.LogCaptureFixture) -> None:
    """However many workers report it, and however often it is retried."""
    caplog.set_level(logging.INFO)
    for _ in range(8):
        connection.lost(1, GONE)
    connection.failed(GONE)
    connection.failed(SourceLost("driver: no GPU", "no_gpu"))
    connection.opened()
    connection.opened()

    assert caplog.messages == [
        "source fake is down: driver: gone",
        "source fake is down: driver: no GPU",
        "source fake answers",
    ]
    assert connection.problem() == ""


def test_a_generation_ends_all_handles(connection: DriverConnection) -> None:
    before = connection.generation
    connection.invalidate()

    assert (connection.up, connection.generation) == (False, before + 1)


def test_a_release_is_no_error(connection: DriverConnection) -> None:
    """Meanwhile the library counts as never opened; begin and end wake the connect thread."""
    connection.hand_over_state.begin(60)
    assert connection.released
    connection.begin_hand_over()
    connection.invalidate()
    assert connection.problem() == NOT_ANSWERED
    connection.hand_over_state.end()
    assert not connection.released


@pytest.mark.parametrize(
    "change",
    [
        lambda connection: connection.lost(1, GONE),
        lambda connection: connection.hand_over_state.begin(60),
        lambda connection: connection.hand_over_state.end(),
        lambda connection: connection.wake(),
    ],
    ids=["lost", "release", "resume", "wake"],
)
def test_a_change_wakes_the_connect_thread(connection: DriverConnection, change: object) -> None:
    """A change is not missed if the thread does not wait at that moment."""
    assert callable(change)
    change(connection)
    thread = threading.Thread(target=connection.sleep, args=(600,), daemon=True)
    thread.start()
    thread.join(LIMIT)

    assert not thread.is_alive()


def test_a_late_library_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The caller of `start` does not wait any more, so the result is logged, too."""
    caplog.set_level(logging.INFO)
    connection = DriverConnection(FakeSource(), threading.Event())
    connection.log_late(1.0)
    connection.failed(GONE)
    connection.sleep(0)
    connection.opened()

    assert caplog.messages == [
        "source fake: the driver's library has not answered for 1 s; GPU metrics follow as soon as it answers",
        "source fake is down: driver: gone",
        "source fake answers",
    ]
