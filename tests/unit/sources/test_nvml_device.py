"""One GPU through NVML, by itself."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pynvml
import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.sources.nvml.device import NvmlDevice


def link_count(monkeypatch: pytest.MonkeyPatch, code: int) -> int:
    """Return how many NVLinks a GPU has that answers 18 with this code."""
    answer = SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=18))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetFieldValues", lambda handle, fields: [answer])
    device = NvmlDevice.__new__(NvmlDevice)
    device._lock, device._handle = nullcontext(), None
    return device._link_count()


@pytest.mark.parametrize(("code", "count"), [(pynvml.NVML_SUCCESS, 18), (pynvml.NVML_ERROR_NOT_SUPPORTED, 0)])
def test_link_count(monkeypatch: pytest.MonkeyPatch, code: int, count: int) -> None:
    assert link_count(monkeypatch, code) == count


def test_link_count_that_fails_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is attached again later; else it would have no NVLinks for as long as the exporter runs."""
    with pytest.raises(pynvml.NVMLError):
        link_count(monkeypatch, pynvml.NVML_ERROR_UNKNOWN)


def test_means_between_pages_do_not_say_what_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a page shows that, and to find it out takes longer than to read the means."""
    series = Series(m.SM_ACTIVE, Gpu(0))

    def read_means(values: dict[Series, float], failed: dict[Series, str]) -> dict[Series, float]:
        values[series] = 0.5
        return {series: 0.1}

    device = NvmlDevice.__new__(NvmlDevice)
    device._read_lock = nullcontext()
    monkeypatch.setattr(device, "_handles", lambda: [SimpleNamespace(read_means=read_means)])
    monkeypatch.setattr(device, "_unsupported", lambda: pytest.fail("it is not needed"))
    reading = device.read_means()

    assert reading is not None
    assert (reading.values, reading.spans, reading.unsupported) == ({series: 0.5}, {series: 0.1}, {})
