"""Values as short text with their unit, for columns of a table."""

from __future__ import annotations

from gpu_exporter.diagnosis.measurements import BYTES, CELSIUS, SHARE, Measurement, amount
from gpu_exporter.reports.numbers import narrow_size

ABSENT = "-"


def short(measurement: Measurement, value: float | None) -> str:
    """Return a value in at most six columns: 93%, 642W, 56°, 91Gi, 1.2M; a dash if it is unknown."""
    if value is None:
        return ABSENT
    match measurement.unit:
        case "share":
            return f"{value:.0%}"
        case "W":
            return f"{value:.0f}W"
        case "celsius":
            return f"{value:.0f}°"
    return narrow_size(value, binary=measurement.unit == BYTES)


def long(measurement: Measurement, value: float | None, limit: float | None) -> str:
    """Return a value with its unit and, if it has one, its limit: 642 W of 700 W."""
    if value is None:
        return "not measured"
    text = amount(measurement.unit, value)
    if limit is None or measurement.unit == SHARE:
        return text
    between = ", slowdown at " if measurement.unit == CELSIUS else " of "
    return f"{text}{between}{amount(measurement.unit, limit)}"
