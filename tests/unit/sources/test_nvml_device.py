"""One GPU through NVML, by itself."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pynvml
import pytest

from gpu_exporter.model.errors import GpuLost
from gpu_exporter.sources.nvml.device import NvmlDevice


def link_count(monkeypatch: pytest.MonkeyPatch, code: int) -> int:
    """Return how many NVLinks a GPU has that answers 18 with this code."""
    answer = SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=18))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda handle, fields: [answer])
    device = NvmlDevice.__new__(NvmlDevice)
    device._lock, device._handle = nullcontext(), None
    return device._link_count()


@pytest.mark.parametrize(
    ("code", "count"),
    [(pynvml.NVML_SUCCESS, 18), (pynvml.NVML_ERROR_NOT_SUPPORTED, 0), (pynvml.NVML_ERROR_UNKNOWN, 0)],
)
def test_link_count(monkeypatch: pytest.MonkeyPatch, code: int, count: int) -> None:
    """A GPU whose number of links cannot be read has all other metrics."""
    assert link_count(monkeypatch, code) == count


def test_link_count_of_a_lost_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is attached again later; else it would have no NVLinks for as long as the exporter runs."""
    with pytest.raises(GpuLost):
        link_count(monkeypatch, pynvml.NVML_ERROR_GPU_IS_LOST)
