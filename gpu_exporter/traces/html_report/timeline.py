"""What each GPU did over the span of a trace, as SVG: a column for each of some hundred moments, and the steps."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from gpu_exporter.traces.device_times import DeviceTimes
from gpu_exporter.traces.intervals import covered, union
from gpu_exporter.traces.model import Column, DeviceKind, Step

WIDTH, HEIGHT, BINS = 1000.0, 44, 500
MOST_STEPS = 200
# What is drawn first is on the bottom. Time in several is counted for the first: kernels hide communication.
LAYERS = (
    ("compute", "computing", "#4f9d4f"),
    ("communication", "only communicating", "#e0b400"),
    ("copies", "only copying", "#a56cc1"),
)
IDLE = ("idle", "idle", "#d9d9d9")


def shares(times: DeviceTimes, start: int, end: int) -> dict[str, Column]:
    """Return for each layer the share of each of BINS equal parts of a time, shape (BINS,), between 0 and 1."""
    edges = np.linspace(start, end, BINS + 1).astype(np.int64)
    begins, ends = edges[:-1], edges[1:]
    width = np.maximum(ends - begins, 1)
    events = times.events
    found, seen, before = {}, np.zeros(len(events), dtype=bool), np.zeros(BINS)
    kinds = (
        (DeviceKind.COMPUTE, DeviceKind.MEMSET),
        (DeviceKind.COMMUNICATION,),
        (DeviceKind.COPY,),
    )
    for (name, _, _), of_layer in zip(LAYERS, kinds, strict=True):
        seen = seen | np.isin(events.kind, of_layer)
        total = covered(union(events.start[seen], events.end[seen]), begins, ends) / width
        found[name] = total - before
        before = total
    return found


def timeline(times: DeviceTimes, steps: Sequence[Step], start: int, end: int, title: str) -> str:
    """Return an SVG of one GPU between two moments, ns."""
    step_width = WIDTH / BINS
    parts, bottom = [], np.zeros(BINS)
    for (name, _, colour), share in zip(LAYERS, shares(times, start, end).values(), strict=True):
        top = np.clip(bottom + share, 0.0, 1.0)
        parts.append(f'<path class="{name}" fill="{colour}" d="{_columns(bottom, top, step_width)}"/>')
        bottom = top
    span = max(end - start, 1)
    marks = [
        f'<path class="step" d="M{WIDTH * (step.start - start) / span:.2f} 0v{HEIGHT}"><title>'
        f"{escape(step.name, quote=True)}</title></path>"
        for step in steps[:MOST_STEPS]
        if start <= step.start <= end
    ]
    return (
        f'<svg class="timeline" viewBox="0 0 {WIDTH:.0f} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title, quote=True)}"><rect width="{WIDTH:.0f}" height="{HEIGHT}" fill="{IDLE[2]}"/>'
        f"{''.join(parts)}{''.join(marks)}</svg>"
    )


def _columns(bottom: Column, top: Column, width: float) -> str:
    """Return a path with one rectangle for each column that is not empty."""
    return "".join(
        f"M{at * width:.2f} {HEIGHT * (1 - high):.2f}h{width:.2f}V{HEIGHT * (1 - low):.2f}h-{width:.2f}z"
        for at, (low, high) in enumerate(zip(bottom.tolist(), top.tolist(), strict=True))
        if high - low > 0.002
    )
