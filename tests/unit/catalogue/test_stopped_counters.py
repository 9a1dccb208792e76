"""When profiling counters that are all 0 have stopped, and when the GPU is idle."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.stopped_counters import REMEMBERED_SECONDS, StoppedCounters

ENGINE, DRAM, PCIE = m.GR_ENGINE_ACTIVE.name, m.DRAM_ACTIVE.name, m.PCIE_RX.name
ZEROS = {ENGINE: 0.0, DRAM: 0.0, PCIE: 0.0}


@pytest.mark.parametrize(
    ("util", "counters", "stopped"),
    [
        (1.0, ZEROS, True),
        (0.24, ZEROS, True),
        (0.02, ZEROS, False),
        (None, ZEROS, False),
        (42.0, ZEROS, False),
        # Copies alone.
        (1.0, {**ZEROS, PCIE: 5e10}, False),
        (1.0, {ENGINE: 0.0}, False),
        (1.0, {}, False),
    ],
)
def test_one_sample(util: float | None, counters: dict[str, float], stopped: bool) -> None:
    assert StoppedCounters().take("GPU-1", 0.0, util, counters.items()) is stopped


def test_a_gpu_that_works_at_times() -> None:
    """Utilisation is that of a moment. After five minutes without any, the GPU is idle."""
    counters = StoppedCounters()
    assert counters.take("GPU-1", 0.0, 0.9, ZEROS.items())
    assert counters.take("GPU-1", 30.0, 0.0, ZEROS.items())
    assert not counters.take("GPU-2", 30.0, 0.0, ZEROS.items())
    assert not counters.take("GPU-1", 60.0, 0.9, {**ZEROS, ENGINE: 0.3}.items())
    assert not counters.take("GPU-1", REMEMBERED_SECONDS, 0.0, ZEROS.items())
