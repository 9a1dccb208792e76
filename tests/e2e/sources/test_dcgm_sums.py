"""Sums of profiling values through DCGM: computed from their parts, though DCGM has a field of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.e2e.pipeline.test_faults import Watched
from tests.support.fakes.hostengine import FakeHostengine

BOTH, TX, RX = (
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_PROF_NVLINK_RX_BYTES",
)


def test_value_and_help_agree(serve: Serve, tmp_path: Path) -> None:
    """The sum has the window of its parts."""
    engine = FakeHostengine(tmp_path / "engine", gpus=1)
    engine.set(449, 5)
    engine.start()
    try:
        exporter = Watched(serve("--interval", "200ms", "--kernel-log", "none", *engine.flags, env=engine.environment))
        page = exporter.until(lambda page: bool(page.values(TX)) and bool(page.values(BOTH)), 20)
        assert page.value(BOTH) == pytest.approx((page.value(TX) + page.value(RX)) / 1e6)
    finally:
        engine.kill()
