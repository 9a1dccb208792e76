"""Numbers, durations, shares, sizes and money as text for people: the same value has the same form everywhere.

What was measured has three digits, and a share two; a limit is exact, and a column of a table narrow. Memory has binary
prefixes, as in nvidia-smi; links, bandwidth and all else have decimal ones, as in data sheets. The live page's script
writes numbers in the same way (`live_page/static/format.js`).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence

ABSENT = "-"
# The end of the year 9999 (unix seconds): the last time that has a date.
LATEST = 253402300799.0
_LARGE_TIMES = (("d", 86400), ("h", 3600), ("min", 60))
_BINARY = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_DECIMAL = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
# A count of 1, and the noun that it counts: not of a range, nor the end of another number.
_OF_ONE = re.compile(
    r"(?<![\d.,-])(?<!to )\b1 (?!of )((?:[\w-]+ ){0,3}?)"
    r"(errors|recoveries|replays|NVLinks|banks|rows|lanes|times|CPUs|workers)\b( wait\b)?"
)
# What rounds to so much of a unit is written in this unit.
_NEARLY_ONE = 0.9995


def capitalised(text: str) -> str:
    """Return a text with a capital first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def counted(number: int, noun: str) -> str:
    """Return how many there are: 1 node, 3 nodes. The plural of the noun ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def agreeing(text: str) -> str:
    """Return a text with a count in the plural so that it agrees with a count of 1: 1 ECC errors -> 1 ECC error."""

    def singular(found: re.Match[str]) -> str:
        words, noun, verb = found.groups()
        noun = f"{noun[:-3]}y" if noun.endswith("ies") else noun.removesuffix("s")
        return f"1 {words}{noun}{' waits' if verb else ''}"

    return re.sub(r"(?<!\d)1 of its NVLinks are", "1 of its NVLinks is", _OF_ONE.sub(singular, text))


def percent(share: float) -> str:
    """Return a share as whole percent, if it is small with two digits: 39 %, 2.3 %, 0.34 %."""
    number = 100 * share
    return f"{number:.0f} %" if abs(number) >= 9.95 else f"{round(number, 2) + 0.0:.2g} %"


def signed_percent(change: float) -> str:
    """Return a relative change: +35.1 %."""
    return f"{100 * change:+.1f} %"


def moment(at: float) -> str:
    """Return a Unix time with its date and zone: 2026-03-01 14:02:05 UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", _utc(at))


def clock(at: float, now: float) -> str:
    """Return the time of day with its zone, and with the date if that is not today's: 14:02 UTC."""
    of_today = _utc(at)[:3] == _utc(now)[:3]
    return time.strftime("%H:%M UTC" if of_today else "%Y-%m-%d %H:%M UTC", _utc(at))


def _utc(at: float) -> time.struct_time:
    """Return a Unix time in UTC; one that another machine made up, as the nearest that can be written."""
    return time.gmtime(min(max(at, 0.0), LATEST))


def duration(seconds: float) -> str:
    """Return a duration in the largest unit in which it is at least 1: 12 us, 5.4 ms, 1.25 s, 15 min, 1.5 h."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if 0 < abs(seconds) * factor < 1e3 * _NEARLY_ONE:
            return f"{_digits(seconds * factor)} {unit}"
    number, unit = _in_largest_unit(seconds)
    return f"{_digits(number)} {unit}"


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


def gpu_hours(hours: float, price: float | None = None) -> str:
    """Return GPU time, and what it costs if the price of a GPU-hour is known: 5.4 GPU-hours (13.52 USD)."""
    money = f" ({hours * price:,.2f} USD)" if price is not None else ""
    return f"{hours:,.{1 if hours < 99.95 else 0}f} GPU-hours{money}"


def scaled(value: float, unit: str) -> str:
    """Return a number with a decimal prefix: 3.01 TB/s, 98 kB."""
    return _prefixed(value, _DECIMAL) + unit


def binary_size(count: float) -> str:
    """Return a number of bytes with a binary prefix: 1.5 GiB, 512 MiB."""
    return _prefixed(count, _BINARY) + "B"


def _prefixed(value: float, prefixes: Iterable[tuple[str, float]]) -> str:
    for prefix, size in prefixes:
        if abs(value) >= _NEARLY_ONE * size:
            return f"{_digits(value / size)} {prefix}"
    return f"{_digits(value)} "


def _digits(value: float) -> str:
    """Return a number with three digits, or more if it is a large one: 0.123, 5.4, 98, 1980."""
    return f"{value:.3g}" if abs(value) < 99.95 else f"{value:.0f}"


def measured(value: float, unit: str) -> str:
    """Return a measured value with its unit, in the size that people use; a ratio in percent."""
    match unit:
        case "ratio":
            return percent(value)
        case "bool":
            return "yes" if value else "no"
        case "seconds":
            return duration(max(0.0, value))  # an age by another clock may be negative
        case "bytes":
            return binary_size(value)
        case "bytes_per_second":
            return scaled(value, "B/s")
        case "hertz":
            return f"{_digits(value / 1e6)} MHz"
        case "joules_per_second":
            return f"{_digits(value)} W"
    return _digits(value) + _SYMBOLS.get(unit, "")


def exact(value: float, unit: str) -> str:
    """Return a number such as a limit with its unit, unrounded; a ratio in percent."""
    if unit == "ratio":
        return f"{100 * value:g} %"
    if unit == "seconds":
        return exact_duration(value)
    if unit in ("bytes", "bytes per second", "bytes_per_second"):
        prefixes = _BINARY if unit == "bytes" else _DECIMAL
        prefix, size = next(((prefix, size) for prefix, size in prefixes if abs(value) >= size), ("", 1))
        return f"{value / size:g} {prefix}B" + ("" if unit == "bytes" else "/s")
    return f"{value:g}" + (_SYMBOLS.get(unit) or f" {unit}" * (unit in ("errors", "USD")))


_SYMBOLS = {"watts": " W", "celsius": " °C"}


def narrow(value: float | None, unit: str) -> str:
    """Return a value in at most six columns: 93 %, 642 W, 56 °C, 91 Gi, 1.2 M; a dash if it is unknown."""
    if value is None:
        return ABSENT
    if unit in ("ratio", "watts", "celsius"):
        return f"{100 * value:.0f} %" if unit == "ratio" else f"{value:.0f}{_SYMBOLS[unit]}"
    for prefix, size in _BINARY if unit == "bytes" else _DECIMAL:
        if value >= _NEARLY_ONE * size:
            number = value / size
            return f"{number:.1f} {prefix}" if number < 9.95 else f"{number:.0f} {prefix}"
    return f"{value:.0f}"


def first_of(names: Sequence[object], most: int) -> str:
    """Return the first of many names, and how many more there are: a, b and 4 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in ascending order, more than two in a row as a range: 0-7, 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
