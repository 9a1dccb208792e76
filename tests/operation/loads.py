"""Loads of recorded GPUs as values at each scrape, and states of a GPU that loads do not change."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from gpu_exporter.model.metric import Kind, Metric
from tests import PACKAGED_RECORDINGS, ROOT
from tests.rules.shapes import Integral, Shape

Values = Mapping[Metric, "Shape | Integral"]

# The recordings of this repository, by the name under which a composition uses them.
RECORDINGS: Mapping[str, Path] = {
    "single": PACKAGED_RECORDINGS / "h200_workloads.jsonl.gz",
    "pair": PACKAGED_RECORDINGS / "h200_x2_ddp.jsonl.gz",
    "more": ROOT / "tests/recordings/h200_more_workloads.jsonl.gz",
    "pairs": ROOT / "tests/recordings/h200_x2_more_jobs.jsonl.gz",
    "four": ROOT / "tests/recordings/h200_x4_jobs.jsonl.gz",
}
# A gauge is a mean over 15 s, and recordings last a few seconds: each value is the mean of a random third of them.
LENGTH = 97
PART = 3
# Values of one moment, not means.
OF_A_MOMENT = {m.POWER_INSTANT, m.SM_CLOCK, m.CLOCK_EVENTS, m.GPU_TEMP, m.MEMORY_TEMP}
MEANS = {row for row in p.BALANCED if row not in OF_A_MOMENT}
TOTAL = p.BOARD[m.FB_TOTAL]
RESERVED = 615.0
COUNTERS = tuple(row for row in p.BOARD if row.kind is Kind.COUNTER)
# A healthy GPU, whose counters do not grow.
BOARD: Values = {**p.BOARD, **{row: Integral((0.0, 1.0)) for row in COUNTERS}, m.RETIRED_PENDING: 0.0}


def memory(used_mib: float) -> Values:
    """Return the memory rows of a GPU of which programs use so much."""
    assert isinstance(TOTAL, float)
    return {m.FB_USED: used_mib, m.FB_FREE: TOTAL - RESERVED - used_mib}


def growing(start_mib: float, end_mib: float, seconds: float) -> Values:
    """Return the memory rows of a GPU whose memory in use grows in a straight line."""
    assert isinstance(TOTAL, float)
    slope = (end_mib - start_mib) / seconds
    return {m.FB_USED: Ramp(start_mib, slope), m.FB_FREE: Ramp(TOTAL - RESERVED - start_mib, -slope)}


IDLE: Values = {**BOARD, **p.IDLE, **memory(0.0)}


@cache
def _ticks(recording: str) -> Mapping[tuple[str, int], Sequence[Mapping[str, float]]]:
    phases: dict[tuple[str, int], list[Mapping[str, float]]] = defaultdict(list)
    with gzip.open(RECORDINGS[recording], "rt") as lines:
        next(lines)
        for tick in map(json.loads, lines):
            phases[tick["phase"], tick["gpu"]].append(tick["samples"])
    # Work starts in the first ticks of a phase.
    return {key: ticks[len(ticks) // 6 :] for key, ticks in phases.items()}


@cache
def load(recording: str, phase: str, gpu: int = 0) -> Values:
    """Return the load of a GPU in a phase of a recording: a sequence of values for each metric, on a healthy board."""
    ticks = _ticks(recording)[phase, gpu]
    rng = random.Random(f"{recording} {phase} {gpu}")
    size = max(1, len(ticks) // PART)
    starts = [rng.randrange(len(ticks) - size + 1) for _ in range(LENGTH)]
    found: dict[Metric, Shape | Integral] = dict(BOARD)
    for row in (*MEANS, *OF_A_MOMENT):
        values = [tick[row.key] for tick in ticks if row.key in tick]  # some metrics are not read at each tick
        if not values:
            continue
        if row in OF_A_MOMENT:
            found[row] = [rng.choice(values) for _ in range(LENGTH)]
        else:
            found[row] = [fmean((values[start:] + values[:start])[:size]) for start in starts]
    for histogram, row in ((m.SM_SHARES, m.SM_ACTIVE), (m.POWER_SAMPLES, m.POWER_INSTANT)):
        values = [tick[row.key] for tick in ticks if row.key in tick]
        found[histogram] = [rng.choice(values) for _ in range(LENGTH)]
    found |= _throttled(ticks)
    return found


def _throttled(ticks: Sequence[Mapping[str, float]]) -> Values:
    """Return the counters of time at a clock limit: the share of ticks whose mask has its bit."""
    masks = [int(tick[m.CLOCK_EVENTS.key]) for tick in ticks if m.CLOCK_EVENTS.key in tick]
    bits = {dict(flag.labels)["reason"]: flag.bit for flag in m.CLOCK_EVENT_ACTIVE if flag.bit is not None}
    shares: dict[Metric, Shape | Integral] = {}
    for row in m.CLOCK_EVENT_SECONDS:
        bit = bits.get(dict(row.labels)["reason"])
        if bit is not None and masks:
            shares[row] = Integral((sum(mask >> bit & 1 for mask in masks) / len(masks), 1.0))
    return shares
