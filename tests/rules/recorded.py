"""Values of recorded GPUs, for stories of devices."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gpu_exporter.catalogue.metrics import BY_KEY, ENERGY
from gpu_exporter.model.metric import Metric

# Ticks dropped at the beginning of a phase: work starts once, and not every few minutes.
START = 10

Values = Mapping[Metric, Sequence[float]]


def values_by_phase(paths: Iterable[Path]) -> Mapping[tuple[str, int], Values]:
    """Return the values of each metric, tick by tick, of each phase and GPU."""
    found: dict[tuple[str, int], dict[Metric, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        with gzip.open(path, "rt") as lines:
            next(lines)
            for tick in map(json.loads, lines):
                for key, value in tick["samples"].items():
                    if BY_KEY[key] is not ENERGY:  # it is the integral of power
                        found[tick["phase"], tick["gpu"]][BY_KEY[key]].append(value)
    return {key: {row: _odd(values[START:]) for row, values in rows.items()} for key, rows in found.items()}


def _odd(values: Sequence[float]) -> Sequence[float]:
    """Make the length odd: rules read every second value, and thus all values of a repeated odd number."""
    return values if len(values) % 2 else values[:-1]
