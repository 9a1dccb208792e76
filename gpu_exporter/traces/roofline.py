"""How fast operators run, by their shapes, against the peak of the GPU.

An operator cannot be faster than its arithmetic at the peak of the GPU for its data type, nor than moving its inputs
and output once through memory.
"""

from __future__ import annotations

import numpy as np

from gpu_exporter.catalogue.gpu_models import BY_NAME, GpuModel, peak_of
from gpu_exporter.traces.device_times import NS, DeviceTimes
from gpu_exporter.traces.idle import Launches
from gpu_exporter.traces.model import UNKNOWN, Column, DeviceKind, Shapes, Trace
from gpu_exporter.traces.result import OperatorRate
from gpu_exporter.traces.work import parsed, work_of

# Data types of PyTorch's profiler, as `catalogue.gpu_models` names them. Products of `float` may use TF32.
_PEAKS = {"bfloat16": "bf16", "half": "fp16", "float": "tf32", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}
# So many operators that contain each other are looked through for the one that launched a kernel.
_MOST_NESTED = 16


def rates(trace: Trace, times: DeviceTimes, launches: Launches, model_name: str, most: int) -> tuple[OperatorRate, ...]:
    """Return how fast operators ran, by their shapes: first those that lost most time against the peak of the GPU."""
    events = times.events.rows(times.events.kind == DeviceKind.COMPUTE)
    shapes = trace.shapes
    if not len(shapes) or not len(events):
        return ()
    calls = launches.rows_of(events)
    known = calls != UNKNOWN
    host, duration = trace.host_events, (events.end - events.start)[known]
    row = _containing(shapes, host.start[calls[known]], host.thread[calls[known]])
    found = row != UNKNOWN
    seconds = np.bincount(row[found], weights=duration[found], minlength=len(shapes)) / NS
    used = np.flatnonzero(seconds > 0)
    keys = np.stack((shapes.name[used], shapes.inputs[used]))
    pairs, inverse, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    sums = np.bincount(inverse.reshape(-1), weights=seconds[used])
    made = [
        rate
        for (name, inputs), count, spent in zip(pairs.T.tolist(), counts.tolist(), sums.tolist(), strict=True)
        if (rate := _rate(trace.names[name], trace.names[inputs], count, spent, BY_NAME.get(model_name)))
    ]
    return tuple(sorted(made, key=lambda of: -(of.seconds if of.lost_seconds is None else of.lost_seconds))[:most])


def _containing(shapes: Shapes, time: Column, thread: Column) -> Column:
    """Return the row of the innermost operator that contains each moment on its thread, or UNKNOWN."""
    found = np.full(len(time), UNKNOWN, dtype=np.int64)
    for one in np.unique(thread).tolist():
        rows = np.flatnonzero(shapes.thread == one)
        rows = rows[np.argsort(shapes.start[rows], kind="stable")]
        chosen = np.flatnonzero(thread == one)
        at = np.searchsorted(shapes.start[rows], time[chosen], side="right") - 1
        for _ in range(_MOST_NESTED):
            over = (at >= 0) & (shapes.end[rows[np.maximum(at, 0)]] < time[chosen]) if len(rows) else at < at
            if not over.any():
                break
            at = np.where(over, at - 1, at)
        if len(rows):
            inside = (at >= 0) & (shapes.end[rows[np.maximum(at, 0)]] >= time[chosen])
            found[chosen[inside]] = rows[at[inside]]
    return found


def _rate(name: str, text: str, count: int, seconds: float, model: GpuModel | None) -> OperatorRate | None:
    inputs = parsed(text)
    work = work_of(name, inputs) if inputs else None
    if inputs is None or work is None:
        return None
    dtype = next((kind for shape, kind in zip(inputs.shapes, inputs.types, strict=True) if shape), "")
    peak = peak_of(model, _PEAKS.get(dtype.lower().removeprefix("c10::"), "")) if model else None
    arithmetic = work.flops / peak if peak else 0.0
    moving = work.bytes / model.memory_bandwidth if model else 0.0
    least = max(arithmetic, moving) * count if model and (peak or not work.flops) else None
    return OperatorRate(
        operator=name,
        shapes=tuple(shape for shape in inputs.shapes if shape),
        dtype=dtype,
        count=count,
        seconds=seconds,
        flops_per_second=work.flops * count / seconds,
        bytes_per_second=work.bytes * count / seconds,
        bound=("compute" if arithmetic > moving else "memory") if least is not None else "",
        peak_ratio=None if least is None else least / seconds,
        lost_seconds=None if least is None else max(0.0, seconds - least),
    )
