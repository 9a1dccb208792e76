"""The class of a GPU and the shares of its time agree: on random windows, and on every recorded phase."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import nic_signals as n
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.time_shares import time_shares
from gpu_exporter.conditions.evaluate import Device, Points, holds
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Limits
from tests.support import phases
from tests.support.classes import classify
from tests.support.table import table_test
from tests.support.truth import PHASES

Shares = Mapping[Cause, float]
NOW = 1000.0


@dataclass(slots=True)
class Job:
    """A window of ranks, each with a constant value of some signals; the ranks may share a job."""

    ranks_: Sequence[Mapping[Signal, float]]
    together: bool = True
    now: float = NOW
    limits: Limits = field(default_factory=dict)
    memo: dict[Hashable, Any] = field(default_factory=dict)
    presence: ClassVar[Signal] = s.GR_ACTIVE

    @property
    def devices(self) -> Sequence[int]:
        """The ranks by number."""
        return range(len(self.ranks_))

    def by_device(self, signal: Signal) -> Mapping[Device, Points]:
        """Return the value of a signal at three times."""
        return {
            device: [(NOW - age, known[signal]) for age in (120.0, 60.0, 0.0)]
            for device, known in enumerate(self.ranks_)
            if signal in known
        }

    def ranks(self, device: Device) -> Sequence[Device]:
        """Return all ranks."""
        return self.devices if self.together else ()

    def alike(self, device: Device) -> Hashable:
        """Return the same for all ranks."""
        return ""


def gpu(chance: random.Random) -> Mapping[Signal, float]:
    """Return signals that a real GPU could have: no pipe is busier than the SMs, and these no more than the engine."""

    def share(most: float = 1.0) -> float:
        return most * chance.choice((0.0, 0.01, 0.04, 0.2, 0.5, 0.7, 1.0, chance.random()))

    engine = share()
    sm = share(engine)
    pipes = (s.TENSOR_ACTIVE, s.FP64_ACTIVE, s.FP32_ACTIVE, s.FP16_ACTIVE, s.INT_ACTIVE)
    traffic = (0.0, 1e6, 1e7, 1e8, 2e9, 1e11)
    link = [share(0.92), share(0.92)]
    drawn = {
        s.GR_ACTIVE: engine,
        s.SM_ACTIVE: sm,
        s.SM_IDLE: (1 - engine) + share(engine - sm),
        s.UTIL: engine + share(1 - engine),
        s.DRAM_ACTIVE: share(0.9 * engine),
        **{pipe: share(sm) for pipe in pipes},
        s.PCIE_RX_USE: link[0],
        s.PCIE_TX_USE: link[1],
        s.PCIE_RX: 6e10 * link[0],
        s.PCIE_TX: 6e10 * link[1],
        s.NVLINK: chance.choice(traffic),
        n.TX: chance.choice(traffic[:4]),
        n.RX: chance.choice(traffic[:4]),
        s.FB_USED: chance.choice((0.0, 1e9, 1e11)),
        s.HW_THERMAL: share(),
        s.SW_THERMAL: chance.choice((0.0, share())),
        s.POWER_BRAKE: chance.choice((0.0, share())),
        s.UP: float(chance.random() < 0.95),
    }
    if chance.random() < 0.5:  # most GPUs are not throttled
        drawn |= dict.fromkeys((s.HW_THERMAL, s.SW_THERMAL, s.POWER_BRAKE), 0.0)
    if chance.random() < 0.3:  # spins
        drawn |= {s.GR_ACTIVE: 1.0, s.UTIL: 1.0, s.SM_ACTIVE: chance.choice((0.008, 0.18)), s.NVLINK: 0.0}
        drawn |= dict.fromkeys((s.DRAM_ACTIVE, *pipes, s.PCIE_RX_USE, s.PCIE_TX_USE, s.PCIE_RX, s.PCIE_TX), 0.0)
    if chance.random() < 0.05:  # without profiling counters
        driver = {s.APPROXIMATE: 1.0, s.GR_ACTIVE: drawn[s.UTIL], s.POWER_USE: share(), s.POWER_CAP: share()}
        return driver | {signal: drawn[signal] for signal in (s.UTIL, s.FB_USED, s.DRAM_ACTIVE, s.UP)}
    absent = {signal for signal in drawn if signal not in (s.GR_ACTIVE, s.SM_ACTIVE) and chance.random() < 0.03}
    return {signal: value for signal, value in drawn.items() if signal not in absent}


def job(seed: int) -> Job:
    """Return one to four random ranks."""
    chance = random.Random(seed)
    return Job([gpu(chance) for _ in range(chance.choice((1, 1, 2, 4)))], chance.random() < 0.8)


def largest(shares: Shares) -> Cause:
    return max(shares, key=lambda cause: shares[cause])


def largest_loss(shares: Shares) -> Cause:
    """Return where most time is lost, apart from a clock that is lowered too rarely to be the class."""
    others = (Cause.USEFUL, Cause.THROTTLED)
    return max((cause for cause in shares if cause not in others), key=lambda cause: shares[cause])


def idle_time(shares: Shares) -> float:
    return sum(shares[cause] for cause in (Cause.HOST, Cause.COPIES, Cause.NO_PROCESS))


# What the shares of a GPU with a class must be, unless its job hangs. `pcie-bound` and `mixed` say nothing about them:
# copies may overlap with any work, and several things may limit a GPU in turn.
SAYS: Mapping[str, Callable[[Shares], bool]] = {
    "idle": lambda shares: shares[Cause.USEFUL] < c.IDLE_ENGINE.value,
    "waiting": lambda shares: largest(shares) is Cause.PEERS,
    "fake-load": lambda shares: largest(shares) is Cause.UNDERFILLED,
    "underfilled": lambda shares: largest_loss(shares) is Cause.UNDERFILLED,
    "data-loading-bound": lambda shares: idle_time(shares) > 1 - c.BUSY_ENGINE.value,
    "host-bound": lambda shares: idle_time(shares) > 1 - c.BUSY_ENGINE.value,
    "tensor-cores-idle": lambda shares: largest(shares) is Cause.USEFUL,
    "memory-bound": lambda shares: largest(shares) in (Cause.USEFUL, Cause.UNDERFILLED),
    "compute-bound": lambda shares: largest(shares) is Cause.USEFUL,
    "throttled": lambda shares: True,
    "pcie-bound": lambda shares: True,
    "mixed": lambda shares: True,
}


def contradiction(window: Any, device: Device) -> str:
    """Return how the class of a device contradicts the shares of its time; empty if it does not."""
    found, shares = classify(window, device), time_shares(window, device)
    if found is None or not shares:
        return ""
    text = f"{found.name}: {dict(shares)}"
    is_throttled = shares[Cause.THROTTLED] >= c.THROTTLED_TIME.value
    if is_throttled is not (found.name == "throttled"):
        return text
    if holds(c.HANGS, window, device):
        return "" if found.name in ("waiting", "idle") and shares[Cause.PEERS] == 1.0 else text
    if found.name == "communicating":
        # Without a job, no rank is known to wait for. A clock that is lowered takes its share first.
        waits = Cause.PEERS if holds(c.TRAFFIC, window, device) else Cause.UNDERFILLED
        return "" if shares[Cause.THROTTLED] > 0.05 or largest_loss(shares) is waits else text
    return "" if SAYS[found.name](shares) else text


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=12303)  # the ranks hang while one of them copies
def test_they_agree_on_random_windows(seed: int) -> None:
    """One to four ranks, of one job or of none."""
    window = job(seed)
    assert not [text for device in range(len(window.ranks_)) if (text := contradiction(window, device))]


def test_random_windows_have_every_class() -> None:
    """Otherwise the agreement would prove little."""
    lacking = set(c.BY_NAME)
    for seed in range(2000):
        window = job(seed)
        lacking -= {its.name for device in range(len(window.ranks_)) if (its := classify(window, device))}
        if not lacking:
            return
    assert not lacking


@pytest.mark.slow
@table_test("path, phase", PHASES, lambda path, phase: f"{path.name} {phase}")
def test_they_agree_on_recorded_phases(path: Path, phase: str) -> None:
    window = phases.window(path, phase)
    assert not [text for device in window.devices if (text := contradiction(window, device))]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "compute-bound"),
        ({s.SW_THERMAL: 0.6}, "throttled"),
        ({s.POWER_BRAKE: 0.2}, "throttled"),
        ({s.HW_THERMAL: 0.19}, "compute-bound"),
        ({s.HW_THERMAL: 1.0, s.GR_ACTIVE: 0.0, s.SM_ACTIVE: 0.0, s.TENSOR_ACTIVE: 0.0}, "idle"),
        ({s.UP: 0.0}, None),
        ({s.UP: 0.0, s.HW_THERMAL: 1.0}, None),
    ],
)
def test_a_throttled_gpu_and_one_that_does_not_answer(changed: Mapping[Signal, float], expected: str | None) -> None:
    """The clock is lowered while the GPU works; a GPU that does not answer has no class."""
    works = {s.GR_ACTIVE: 1.0, s.SM_ACTIVE: 0.95, s.TENSOR_ACTIVE: 0.6, s.DRAM_ACTIVE: 0.2, s.UP: 1.0, s.SM_IDLE: 0.0}
    known = {**works, **dict.fromkeys((s.PCIE_RX_USE, s.PCIE_TX_USE, s.NVLINK, s.PCIE_RX, s.PCIE_TX), 0.0), **changed}
    found = classify(Job([known]), 0)
    assert (found and found.name) == expected
