"""Readable names: unique, with a unit, and allowed by experiment trackers."""

from __future__ import annotations

import re

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.catalogue.readable import READABLE, readable


def test_names_are_unique() -> None:
    """Also those of metrics without a row."""
    names: dict[str, str] = {}
    for metric in METRICS:
        name = readable(metric, metric.name, dict(metric.labels)).name
        assert names.setdefault(name, metric.key) == metric.key
    assert len(names) == len({metric.key for metric in METRICS})


def test_names_are_allowed_by_trackers() -> None:
    """MLflow allows these characters in a name, TensorBoard groups by what is before a slash."""
    for metric in METRICS:
        name = readable(metric, metric.name, {**dict(metric.labels), "label": 'a "b" {c}'}).name
        assert re.fullmatch(r"[a-z0-9][A-Za-z0-9_./-]*", name)


def test_units_are_those_of_the_names() -> None:
    for metric, row in READABLE.items():
        unit = {"MiB": "bytes", "percent": "", "watts": "watts", "celsius": "celsius", "MHz": "mhz"}.get(metric.unit)
        assert unit is None or row.name.endswith(unit)
        assert (row.factor != 1) == (metric.unit in ("MiB", "percent", "millijoules"))
    assert readable(m.FB_USED, m.FB_USED.name, {}) == ("memory_used_bytes", 2**20)
