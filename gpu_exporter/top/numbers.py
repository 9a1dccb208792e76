"""Values as short text with their unit, for columns of a table."""

from __future__ import annotations

from gpu_exporter.top.measurements import BYTES_PER_SECOND, CELSIUS, SHARE, WATTS, Measurement

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


def scaled(value: float) -> str:
    """Return a number of bytes in four significant columns at most: 98G, 1.2M."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size * 0.9995:
            amount = value / size
            return f"{amount:.1f}{prefix}" if amount < 9.95 else f"{amount:.0f}{prefix}"
    return f"{value:.0f}"


def long(measurement: Measurement, value: float | None, limit: float | None) -> str:
    """Return a value with its unit and, if it has one, its limit: 642 W of 700 W."""
    if value is None:
        return "not measured"
    if measurement.unit == SHARE:
        return f"{value:.0%}".replace("%", " %")
    text = _amount(measurement.unit, value)
    if limit is None:
        return text
    words = "slowdown at" if measurement.unit == CELSIUS else "of"
    return f"{text}{',' if measurement.unit == CELSIUS else ''} {words} {_amount(measurement.unit, limit)}"


def _amount(unit: str, value: float) -> str:
    if unit == WATTS:
        return f"{value:.0f} W"
    if unit == CELSIUS:
        return f"{value:.0f} °C"
    text = scaled(value)
    number, prefix = (text[:-1], text[-1]) if text[-1].isalpha() else (text, "")
    return f"{number} {prefix}B{'/s' if unit == BYTES_PER_SECOND else ''}"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit: 42 s, 3 min, 2 h, 1 d."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
