"""The limit on the rate of requests: a burst at once, then one at a time, and never more than the burst is saved."""

from __future__ import annotations

from gpu_exporter.kubernetes.writer import RequestLimit


class Clock:
    """A clock that only moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(round(seconds, 6))
        self.now += seconds


def limited(clock: Clock) -> RequestLimit:
    return RequestLimit(5.0, 3, clock, clock.wait)


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    limit = limited(clock)
    for _ in range(3):
        limit.take()
    assert clock.waits == []
    for _ in range(4):
        limit.take()
    assert clock.waits == [0.2] * 4


def test_a_long_pause_saves_no_more_than_the_burst() -> None:
    clock = Clock()
    limit = limited(clock)
    for _ in range(3):
        limit.take()
    clock.now += 3600
    for _ in range(4):
        limit.take()
    assert clock.waits == [0.2]
