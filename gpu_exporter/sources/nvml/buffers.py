"""Samples that the driver takes at its own rate and keeps for a while.

On an H100: of board power, about 50 a second, for 2.4 s; of utilisation, five a second, for 14 s.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_uint, c_ulonglong
from typing import Any

import pynvml

from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import Buffered, Metric, Pace, scaled
from gpu_exporter.sources.nvml.errors import UNSUPPORTED, outcome, raise_if_lost

# How often buffers of pace FAST are read: well before one is full, but not ten times a second, which would cost more.
PERIOD_SECONDS = 0.9
# A sample by the type of its value (from NVML_VALUE_TYPE_DOUBLE on): a timestamp, and a union of 8 bytes.
SAMPLES = tuple(struct.Struct(f"=Q{value}") for value in ("d", "I4x", "Q", "Q", "q", "i4x", "H6x"))
# The reason while the driver has never had a sample.
NO_SAMPLES = "no_value"
# Room for several times what an H200 keeps, which is 120; and for a driver that keeps far more.
ROOM, MOST = 512, 1 << 16

Stamped = Sequence[tuple[float, float]]


def _newer(handle: Any, kind: int, stamp: int, most: int = ROOM) -> list[tuple[int, float]]:
    """Return the timestamp and the value of each sample that is newer than `stamp`. Raises NVMLError.

    This replaces the bindings' function, which takes twice the CPU: it first calls the driver for the size, and reads
    each member with Python code.
    """
    if pynvml.nvmlLib is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
    ask = getattr(pynvml.nvmlLib, "nvmlDeviceGetSamples", None)
    if ask is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    value_type, count, room = c_uint(), c_uint(most), (pynvml.c_nvmlSample_t * most)()
    code = ask(handle, kind, c_ulonglong(stamp), byref(value_type), byref(count), room)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE and most < MOST:
        return _newer(handle, kind, stamp, MOST)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    form = SAMPLES[value_type.value]
    return list(form.iter_unpack(memoryview(room).cast("B")[: count.value * form.size]))


class Buffers:
    """The buffers of one GPU. Each read asks the driver for samples newer than the last one.

    The driver stamps samples by the system clock. After a read without samples, the next one reads the whole buffer, so
    that a clock that was set back costs one period. Consumers see by the timestamps which samples are new.
    """

    def __init__(self, handle: Any, gpu: Gpu, metrics: Iterable[Metric], lock: AbstractContextManager[None]) -> None:
        self.unsupported: dict[Metric, str] = {}
        self._handle, self._gpu, self._lock = handle, gpu, lock
        self._kinds = [(Series(row, gpu), row.nvml) for row in metrics if isinstance(row.nvml, Buffered)]
        self._newest: dict[Series, int] = {}
        self._read_at = -float("inf")

    def read(
        self, paces: frozenset[Pace], failed: dict[Series, str], missing: Container[Metric]
    ) -> Mapping[Series, Stamped]:
        """Return the new samples by series; none for a series that is not due. Raises GpuLost, SourceLost.

        Rows that stand in for another one are read if that is among the `missing` ones.
        """
        now = time.monotonic()
        due = paces
        if Pace.FAST in paces and now - self._read_at < PERIOD_SECONDS:
            due = paces - {Pace.FAST}
        elif Pace.FAST in paces:
            self._read_at = now
        samples: dict[Series, Stamped] = {}
        for series, kind in self._kinds:
            if series.metric.instead_of is not None and series.metric.instead_of not in missing:
                continue
            if kind.pace in due:
                taken = self._read(series, kind, failed)
                if taken is not None:
                    samples[series] = taken
            elif kind.pace in paces and series in self._newest:
                samples[series] = ()
        return samples

    def _read(self, series: Series, kind: Buffered, failed: dict[Series, str]) -> Stamped | None:
        metric = series.metric
        if self.unsupported.get(metric, NO_SAMPLES) != NO_SAMPLES:
            return None
        try:
            with self._lock:
                samples = _newer(self._handle, kind.id, self._newest.get(series, 0))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND and series in self._newest:  # no newer sample
                self._newest[series] = 0
                return ()
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                self.unsupported[metric] = NO_SAMPLES
                return None
            raise_if_lost(error.value, f"GPU {self._gpu.index}, samples")
            if series not in self._newest and error.value in UNSUPPORTED:
                self.unsupported[metric] = outcome(error.value)
            else:
                failed[series] = outcome(error.value)
            return None
        taken = [(stamp, scaled(value, metric.scale)) for stamp, value in samples if stamp]
        self.unsupported.pop(metric, None)
        self._newest[series] = max((stamp for stamp, _ in taken), default=0)
        return taken
