"""GPM: exact means between two samples of one GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import pynvml

from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import scaled
from gpu_exporter.sources.nvml.errors import outcome, raise_if_lost

# Accessed at import, so that a wrong module named pynvml is detected before it is used.
REQUEST_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
# A GPM window under 100 ms gives a wrong value without an error (nvml.h, and measured on an H200).
GPM_MIN_SPAN = 0.1
# How long a read waits at most until its window is long enough. Without this wait, every second read would come too
# early at an interval of 100 ms.
GPM_PATIENCE = 0.02
# Reads members of a metric's slot without the bindings' Python code for each access: this runs ten times a second.
_code, _value = pynvml.c_nvmlGpmMetric_t.nvmlReturn.__get__, pynvml.c_nvmlGpmMetric_t.value.__get__


class GpmWindow:
    """Two GPM samples and the exact means between them. `take` fills a sample, of a GPU or a MIG instance."""

    def __init__(
        self, take: Callable[[Any], Any], wanted: Sequence[tuple[int, Series]], lock: AbstractContextManager[None]
    ) -> None:
        self._take = take
        self._lock = lock
        self._wanted = list(wanted)
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._request.version = REQUEST_VERSION
        self._old, self._new = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        self._old_at: float | None = None
        self._measured = False
        self._closed = threading.Event()
        self._prepare()

    def _prepare(self) -> None:
        self._request.numMetrics = len(self._wanted)
        metrics = self._request.metrics
        for slot, (gpm, _) in enumerate(self._wanted):
            metrics[slot].metricId = gpm
        self._slots = [(metrics[slot], series) for slot, (_, series) in enumerate(self._wanted)]

    @property
    def begun(self) -> bool:
        """Whether it has a sample, and no mean yet."""
        return self._old_at is not None and not self._measured

    def read(self, values: dict[Series, float], failed: dict[Series, str]) -> float | None:
        """Fill in the means since the previous sample; return the seconds that they cover, None if there are none yet.

        After a late read the next window may be too short: then the old sample is kept and nothing is lost. A sample
        is dated when its call returns, which may take long: so no window is shorter than GPM_MIN_SPAN.
        """
        missing = 0.0 if self._old_at is None else GPM_MIN_SPAN - (time.monotonic() - self._old_at)
        if not self._wanted or missing > GPM_PATIENCE:
            return None
        if missing > 0 and self._closed.wait(missing):
            return None
        try:
            with self._lock:
                self._take(self._new)
                now = time.monotonic()
            span = None if self._old_at is None else now - self._old_at
            if span is not None:
                self._request.sample1, self._request.sample2 = self._old, self._new
                with self._lock:
                    pynvml.nvmlGpmMetricsGet(self._request)
        except pynvml.NVMLError as error:
            raise_if_lost(error.value, "GPM")
            reason = outcome(error.value)
            failed.update((series, reason) for _, series in self._wanted)
            if reason == "not_supported":  # the old sample may be of a MIG instance that was replaced
                self._old_at = None
            return None
        self._old, self._new, self._old_at = self._new, self._old, now
        if span is None:
            return None
        self._measured = True
        for slot, series in self._slots:
            code = _code(slot)
            if code == pynvml.NVML_SUCCESS:
                values[series] = scaled(_value(slot), series.metric.scale)
            else:
                raise_if_lost(code, "GPM")
                failed[series] = outcome(code)
        return span

    def drop(self, gone: Container[Series]) -> None:
        """Stop reading these series."""
        self._wanted = [entry for entry in self._wanted if entry[1] not in gone]
        self._prepare()

    def split(self, which: Callable[[Series], bool]) -> GpmWindow:
        """Move the series that `which` selects to a window of their own, which begins anew."""
        moved = [entry for entry in self._wanted if which(entry[1])]
        self.drop({series for _, series in moved})
        return GpmWindow(self._take, moved, self._lock)

    def close(self) -> None:
        samples = () if self._closed.is_set() else (self._old, self._new)
        self._closed.set()
        for sample in samples:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
