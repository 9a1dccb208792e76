"""Values of signals in plain words."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Fn, Leaf, Mark, Over, PeerMedian, PeerShare, terms
from gpu_exporter.diagnosis.words import series, statement

WAITS = Mark("waits", BOTTLENECKS[0].condition)
STALLED = Mark("stalled", BOTTLENECKS[0].condition)


@pytest.mark.parametrize(
    ("term", "values", "text"),
    [
        (Over(s.GR_ACTIVE), [0.32], "GPU idle 68 % of the time"),
        (Over(s.GR_ACTIVE), [0.99], "GPU busy 99 % of the time"),
        (Over(s.GR_ACTIVE), [0.99, 0.4], "GPU idle 1 % to 60 % of the time"),
        (Over(s.SM_ACTIVE, Fn.MEAN, 300), [0.9, 0.86], "86 % to 90 % of the SMs busy on average"),
        (Over(s.SM_ACTIVE, Fn.STDDEV, 300), [0.012], "SM activity varies by ±1.2 % (standard deviation)"),
        (
            Over(s.POWER_INSTANT_USE, Fn.STDDEV, 300),
            [0.39],
            "instantaneous power varies by ±39 % of its limit (standard deviation)",
        ),
        (Over(s.GR_ACTIVE, Fn.MAX, 7200), [0.0], "GPU busy at most 0 % of the time (last 2 h)"),
        (Over(s.FB_USE, Fn.MIN, 3600), [0.95], "device memory at least 95 % in use (last 1 h)"),
        (Over(s.FB_FREE, Fn.PREDICT, 3600, ahead=3600), [-3e9], "free device memory 0 B (predicted for 1 h from now)"),
        (Over(s.PCIE_REPLAYS, Fn.INCREASE, 900), [12.0], "12 new PCIe replays (last 15 min)"),
        (Over(s.XID_UNKNOWN), [35.0], "last undocumented XID 35 s ago"),
        (Over(s.READ_AGE), [90.0], "last successful read 1.5 min ago"),
        (Over(s.UP), [0.0], "GPU reachable: no"),
        (Over(s.RECOVERY), [4.0], "recovery action: drain, then reset the GPU"),
        (Over(s.RECOVERY), [9.0], "recovery action: 9"),
        (Over(s.FABRIC), [2.0], "NVSwitch fabric state: in progress"),
        (Over(s.NVLINK), [25.3e9, 0.0], "NVLink traffic 0 B/s to 25.3 GB/s"),
        (Over(s.SM_IDLE), [0.25], "at most 1 % of the SMs active 25 % of the time"),
        (Over(s.FB_USED), [1.5 * 2**40], "device memory used 1.5 TiB"),
        (Over(s.POWER_SWING), [188.6], "power swings by ±189 W"),
        (Over(s.SM_CLOCK), [1.98e9], "SM clock 1980 MHz"),
        (Over(s.MEMORY_TEMP), [95.0], "memory temperature 95 °C"),
        (Over(s.ECC_DBE), [2.0], "2 uncorrectable ECC errors"),
        (PeerShare(WAITS), [1.0], "100 % of the other ranks wait"),
        (PeerShare(STALLED), [0.5], "50 % of the other ranks are stalled"),
        (
            PeerMedian(Over(s.SM_ACTIVE), WAITS),
            [0.49],
            "median of the ranks that wait: 49 % of the SMs busy on average",
        ),
    ],
)
def test_statements(term: Leaf, values: list[float], text: str) -> None:
    """Each has its unit, and a range of several GPUs its limits."""
    assert statement(term, values) == text


def test_every_signal_has_words() -> None:
    """With one place for its value, and without its name."""
    for signal in SIGNALS:
        assert signal.plain.count("{}") == 1, f"{signal.name}: fix: add `plain` in gpu_exporter/catalogue/signals.py"
        assert "_" not in signal.plain


@pytest.mark.parametrize(
    ("signal", "name"),
    [
        (s.GR_ACTIVE, "engine activity"),
        (s.THERMAL_MARGIN, "thermal margin"),
        (s.PCIE_MAX_WIDTH, "maximum PCIe width"),
        (s.PCIE_MAX_GEN, "maximum PCIe generation"),
        (s.FABRIC, "NVSwitch fabric state"),
        (s.UP, "GPU reachable"),
        (s.ECC_DBE, "uncorrectable ECC errors"),
    ],
)
def test_names(signal: Signal, name: str) -> None:
    """A name is a noun, also of what is 0 or 1."""
    assert title(signal) == name


def test_every_term_of_a_condition_has_words() -> None:
    """Every deciding term can be printed with any value."""
    conditions = [mode.condition for mode in MODES if mode.condition] + [each.condition for each in BOTTLENECKS]
    for term in {term for condition in conditions for term in terms(condition)}:
        for value in (0.0, 1.0, -1e30, 1e30, 1e-300):
            assert statement(term, [value]).isprintable()
        assert series(term).startswith("gpu:")
