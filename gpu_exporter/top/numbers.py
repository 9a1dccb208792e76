"""Values as short text with their unit, for columns of a table."""

from __future__ import annotations

from gpu_exporter.diagnosis.measurements import CELSIUS, SHARE, Measurement, amount, scaled

ABSENT = "-"


def short(measurement: Measurement, value: float | None) -> str:
    """Return a value in at most six columns: 93%, 642W, 56°, 98G; a dash if it is unknown."""
    if value is None:
        return ABSENT
    match measurement.unit:
        case "share":
            return f"{value:.0%}"
        case "W":
            return f"{value:.0f}W"
        case "celsius":
            return f"{value:.0f}°"
    return scaled(value)


def long(measurement: Measurement, value: float | None, limit: float | None) -> str:
    """Return a value with its unit and, if it has one, its limit: 642 W of 700 W."""
    if value is None:
        return "not measured"
    text = amount(measurement.unit, value)
    if limit is None or measurement.unit == SHARE:
        return text
    between = ", slowdown at " if measurement.unit == CELSIUS else " of "
    return f"{text}{between}{amount(measurement.unit, limit)}"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit: 42 s, 3 min, 2 h, 1 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
