"""Numbers, durations, shares and sizes as text for people, and the capital letter of a sentence.

Each function is one precision: measured values are rounded, limits are exact, and columns of a table are narrow.
Memory has binary prefixes, as in nvidia-smi; links, bandwidth and all else have decimal ones, as in data sheets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

_LARGE_TIMES = (("d", 86400), ("h", 3600), ("min", 60))
_BINARY = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_DECIMAL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def capitalised(text: str) -> str:
    """Return a text with a capital first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def percent(share: float, digits: int = 0) -> str:
    """Return a share with a fixed number of digits: 39 %."""
    return f"{100 * share:.{digits}f} %"


def fine_percent(share: float) -> str:
    """Return a share, if it is small with two digits: 39 %, 2.3 %, 0.34 %."""
    return percent(share) if share >= 0.0995 else f"{100 * share:.2g} %"


def signed_percent(change: float) -> str:
    """Return a relative change: +35.1 %."""
    return f"{100 * change:+.1f} %"


def duration(seconds: float) -> str:
    """Return a duration with three digits in the largest unit in which it is at least 1: 1.5 h, 15 min."""
    number, unit = _in_largest_unit(seconds)
    return f"{number:.3g} {unit}"


def moment(at: float) -> str:
    """Return a Unix time with its date and zone: 2026-03-01 14:02:05 UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def clock(at: float, now: float) -> str:
    """Return the time of day with its zone, and with the date if that is not today's: 14:02 UTC."""
    of_today = time.gmtime(at)[:3] == time.gmtime(now)[:3]
    return time.strftime("%H:%M UTC" if of_today else "%Y-%m-%d %H:%M UTC", time.gmtime(at))


def whole_duration(seconds: float) -> str:
    """Return a duration as a whole number of its largest unit, rounded down: 42 s, 3 min, 47 h, 2 d."""
    number, unit = _in_largest_unit(max(0.0, seconds))
    if unit == "d" and number < 2:
        return f"{math.floor(24 * number)} h"
    return f"{math.floor(number)} {unit}"


def _in_largest_unit(seconds: float) -> tuple[float, str]:
    for unit, size in _LARGE_TIMES:
        if abs(seconds) >= size:
            return seconds / size, unit
    return seconds, "s"


def short_duration(seconds: float) -> str:
    """Return a duration with three digits, of which most take less than minutes: 12 us, 5.4 ms, 1.25 s, 250 s."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:  # what rounds to more is 1 of the next unit
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def exact_duration(seconds: float) -> str:
    """Return a time in the largest unit of which it is a whole number: 5 min."""
    return "{} {}".format(*_in_whole_units(seconds, ("d", "h", "min", "s")))


def spoken_duration(seconds: float) -> str:
    """Return a time as it follows "the last": 5 minutes, hour."""
    number, unit = _in_whole_units(seconds, ("day", "hour", "minute", "second"))
    return unit if number == "1" else f"{number} {unit}s"


def _in_whole_units(seconds: float, units: Sequence[str]) -> tuple[str, str]:
    for unit, (_, size) in zip(units, _LARGE_TIMES, strict=False):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}", unit
    return f"{seconds:g}", units[-1]


def scaled(value: float, unit: str) -> str:
    """Return a number with three digits and a decimal prefix: 3.01 TB/s, 98 kB."""
    size = math.floor(math.log10(abs(value)) / 3) if value else 0
    place = min(max(size, 0), 4)
    return f"{value / 1000**place:.3g} {('', 'k', 'M', 'G', 'T')[place]}{unit}"


def binary_size(count: float) -> str:
    """Return a number of bytes with three digits, or as a whole number of its unit: 1.5 GiB, 512 MiB."""
    for prefix, size in _BINARY:
        if count >= size:
            number = count / size
            return f"{number:.3g} {prefix}B" if number < 100 else f"{number:.0f} {prefix}B"
    return f"{count:.0f} B"


def narrow_size(value: float, *, binary: bool = False) -> str:
    """Return a number of bytes with a prefix, in four characters: 98G, 1.2M; binary in up to six: 91Gi, 1.1Mi."""
    for prefix, size in _BINARY if binary else _DECIMAL:
        if value >= size * 0.9995:
            number = value / size
            return f"{number:.1f}{prefix}" if number < 9.95 else f"{number:.0f}{prefix}"
    return f"{value:.0f}"


def measured(value: float, unit: str) -> str:
    """Return a measured value with its unit, in the size that people use; a ratio in percent."""
    match unit:
        case "ratio":
            return percent(value, 1 if 0.0005 <= abs(value) < 0.1 else 0)
        case "bool":
            return "yes" if value else "no"
        case "seconds":
            return duration(max(0.0, value))  # an age by another clock may be negative
        case "bytes":
            return binary_size(value)
        case "bytes_per_second":
            return scaled(value, "B/s")
        case "hertz":
            return f"{value / 1e6:.0f} MHz"
        case "watts" | "joules_per_second":
            return f"{value:.0f} W" if abs(value) >= 10 else f"{value:.2g} W"
        case "celsius":
            return f"{value:.4g} °C"
    return f"{value:.4g}"


def exact(value: float, unit: str) -> str:
    """Return a number such as a limit with its unit, unrounded; a ratio in percent."""
    if unit == "ratio":
        return f"{100 * value:g} %"
    if unit == "seconds":
        return exact_duration(value)
    if unit == "celsius":
        return f"{value:g} °C"
    if unit in ("bytes", "bytes per second", "bytes_per_second"):
        is_memory = unit == "bytes"
        prefixes = _BINARY[:-1] if is_memory else _DECIMAL[:-1]
        prefix, size = next(((prefix, size) for prefix, size in prefixes if abs(value) >= size), ("", 1))
        return f"{value / size:g} {prefix}B" + ("" if is_memory else "/s")
    return f"{value:g}" + (f" {unit}" if unit in ("watts", "errors", "USD") else "")
