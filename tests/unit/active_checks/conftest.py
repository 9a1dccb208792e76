"""The CUDA driver of these tests."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from gpu_exporter.active_checks import arithmetic, bench, memory_test
from tests.support.fakes.libcuda import Libcuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Libcuda:
    """Return a driver that `Cuda` loads, whose time is that of measurements."""
    driver = Libcuda()
    monkeypatch.setattr(ctypes, "CDLL", driver.load)
    for module in (arithmetic, bench, memory_test):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: driver.now))
    return driver
