"""Counters of sources that have no samples of the driver, but exact means: the integrals of these."""

from __future__ import annotations

from collections.abc import MutableMapping

from gpu_exporter.model.gpu import Series

# Of seconds.
DIGITS = 6


def integrate(values: MutableMapping[Series, float], totals: MutableMapping[Series, float], span: float | None) -> None:
    """Replace the means over `span` seconds of rows that integrate samples by their integrals; `totals` are these."""
    for series in [series for series in values if series.metric.integrates_samples]:
        totals[series] = totals.get(series, 0.0) + values[series] * (span or 0.0)
        values[series] = round(totals[series], DIGITS)
