"""Conditions as people read them: "engine active, mean over 5 min, at least 0.85 (busyEngine)". Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpu_exporter.catalogue.conditions import (
    And,
    Calc,
    Compare,
    Condition,
    Fn,
    Is,
    Limit,
    Limits,
    Mark,
    Or,
    OrIfKnown,
    Over,
    PeerMedian,
    PeerShare,
    Term,
    Unless,
    children,
    leaves,
    no_case,
)
from gpu_exporter.catalogue.signal import Derived, Signal

# A part of a signal's name where it is not a word already.
_SPELLED: Mapping[str, str] = {
    "gr": "engine",
    "sm": "SM",
    "dram": "DRAM",
    "fb": "device memory",
    "fp64": "FP64",
    "fp32": "FP32",
    "fp16": "FP16",
    "int": "integer",
    "util": "utilisation",
    "pcie": "PCIe",
    "rx": "RX",
    "tx": "TX",
    "nvlink": "NVLink",
    "gen": "generation",
    "hw": "hardware",
    "sw": "driver",
    "temp": "temperature",
    "ecc": "ECC",
    "inforom": "InfoROM",
    "sram": "SRAM threshold",
    "crc": "CRC",
    "xid": "Xid",
    "max": "highest",
}
_OPERATORS: Mapping[str, tuple[str, str]] = {
    ">": ("more than", ">"),
    ">=": ("at least", "≥"),
    "<": ("less than", "<"),
    "<=": ("at most", "≤"),
    "==": ("exactly", "="),
    "!=": ("other than", "≠"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a condition in words, `depth` levels below the first."""

    depth: int
    text: str


def title(signal: Signal) -> str:
    """A signal's name in words: SM active."""
    return " ".join(_SPELLED.get(part, part) for part in signal.name.split("_"))


def derivation(of: Signal | Derived | float) -> str:
    """How a signal is made of others."""
    match of:
        case Signal():
            return title(of)
        case Derived(left, operator, right):
            sides = (
                f"({derivation(side)})" if isinstance(side, Derived) else derivation(side) for side in (left, right)
            )
            return f" {operator} ".join(sides)
    return f"{of:.15g}"


def with_roots(signals: Iterable[Signal]) -> tuple[Signal, ...]:
    """Signals, each followed by those that it is made of."""
    return tuple(dict.fromkeys(one for signal in signals for one in (signal, *_roots(signal))))


def _roots(side: Signal | Derived | float) -> Iterator[Signal]:
    match side:
        case Signal():
            for way in side.made:
                if isinstance(way, Derived):
                    yield from _roots(way)
        case Derived(left, _, right):
            for part in (left, right):
                if isinstance(part, Signal):
                    yield part
                yield from _roots(part)


def span(seconds: float) -> str:
    """A time as people say it: 5 min."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def quantity(value: float, unit: str) -> str:
    """A number with its unit, in the size that people use; a ratio is bare."""
    if unit == "seconds":
        return span(value)
    if unit == "celsius":
        return f"{value:g} °C"
    if unit in ("bytes", "bytes per second", "bytes_per_second"):
        size, prefix = next(((s, p) for s, p in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if abs(value) >= s), (1.0, ""))
        return f"{value / size:g} {prefix}B" + ("" if unit == "bytes" else "/s")
    return f"{value:g}" + (f" {unit}" if unit in ("watts", "errors", "USD") else "")


def term(of: Term, *, short: bool = False) -> str:
    """A term in words. `short` leaves out that it is a mean, and over which window."""
    match of:
        case Over():
            return _over(of, short=short)
        case Calc(left, operator, right):
            return f"{_side(left)} {operator} {_side(right)}" + ("" if short else _means(of))
        case PeerShare(mark):
            return f"share of the job's other ranks that {verb(mark)}"
        case PeerMedian(inner, where):
            return f"median of {term(inner, short=True)} over the job's ranks that {verb(where)}" + (
                "" if short else _means(of)
            )
        case _:
            raise no_case(of)


def _side(of: Term) -> str:
    """One side of a calculation; what begins with an operator that binds less has parentheses."""
    text = term(of, short=True)
    return f"({text})" if isinstance(of, Calc) and of.operator != "+" else text


def _means(of: Term) -> str:
    overs = [
        part.of if isinstance(part, PeerMedian) else part for part in leaves(of) if not isinstance(part, PeerShare)
    ]
    windows = dict.fromkeys(span(over.window) for over in overs if over.fn is Fn.MEAN)
    return "".join(f", means over {window}" for window in windows)


def verb(mark: Mark) -> str:
    """A mark is named after what one rank does: waits."""
    return f"are {mark.name}" if mark.name.endswith("ed") else mark.name.removesuffix("s")


def _over(of: Over, *, short: bool) -> str:
    name, window = title(of.signal), span(of.window)
    match of.fn:
        case Fn.LAST:
            return name
        case Fn.AGE:
            return f"age of {name}"
        case Fn.INCREASE:
            return f"growth of {name} within {window}"
        case Fn.PREDICT:
            return f"{name} in {span(of.ahead)}, by a straight line through the last {window}"
        case Fn.STDDEV:
            return f"standard deviation of {name}" + ("" if short else f" over {window}")
        case Fn.MEAN:
            return name if short else f"{name}, mean over {window}"
    most = "highest" if of.fn is Fn.MAX else "lowest"
    return f"{name}, {most} of {window}" + (" that are known from their beginning" if of.whole else "")


def compare(of: Compare, limits: Limits, *, short: bool = False) -> str:
    """One comparison in words; `short` with the sign instead of words, and without the limit's name."""
    word, sign = _OPERATORS[of.operator]
    left = term(of.left, short=short)
    if isinstance(of.left, Over) and of.left.fn is Fn.LAST and of.left.signal.unit == "bool":
        on = (of.operator, of.right) in ((">", 0.0), ("==", 1.0))
        return f"{left} is {on:d}"
    match of.right:
        case Limit(name, default, unit):
            number = quantity(limits.get(name, default), unit)
            return f"{left} {sign} {number}" if short else f"{left}, {word} {number} (`{name}`)"
        case float() | int():
            right = f"{of.right:.3g}"
        case _:
            right = term(of.right, short=short)
    return f"{left} {sign} {right}" if short else f"{left}, {word} {right}"


def lines(condition: Condition, limits: Limits, depth: int = 0) -> Iterator[Line]:
    """A condition, one comparison a line."""
    match condition:
        case Compare():
            yield Line(depth, compare(condition, limits))
        case And() | Or():
            yield Line(depth, "all of:" if isinstance(condition, And) else "any of:")
            for child in _flat(condition):
                yield from lines(child, limits, depth + 1)
        case Unless(inner, other):
            yield Line(depth, "all of:")
            for child in _flat(inner) if isinstance(inner, And) else (inner,):
                yield from lines(child, limits, depth + 1)
            yield Line(depth + 1, "and not (what is not known does not count):")
            yield from lines(other, limits, depth + 2)
        case OrIfKnown(inner, other):
            yield Line(depth, "any of:")
            yield from lines(inner, limits, depth + 1)
            yield Line(depth + 1, "where it is known, all of:")
            for child in _flat(other) if isinstance(other, And) else (other,):
                yield from lines(child, limits, depth + 2)
        case Is():
            yield Line(depth, f"the class is `{condition.name}`: no class before it matches, and")
            for child in children(condition):
                yield from lines(child, limits, depth + 1)
        case _:
            raise no_case(condition)


def _flat(condition: And | Or) -> Iterator[Condition]:
    for child in condition.conditions:
        if isinstance(child, And | Or) and type(child) is type(condition):
            yield from _flat(child)
        else:
            yield child


def sentence(condition: Condition, limits: Limits) -> str:
    """A condition on one line, short, with signs: what a flowchart or a table has room for."""
    match condition:
        case Compare():
            return compare(condition, limits, short=True)
        case And() | Or():
            word = " and " if isinstance(condition, And) else " or "
            return word.join(_grouped(child, limits) for child in _flat(condition))
        case Unless(inner, other):
            return f"{_grouped(inner, limits)}, unless {_grouped(other, limits)}"
        case OrIfKnown(inner, other):
            return f"{_grouped(inner, limits)} or {_grouped(other, limits)}"
        case Is():
            return f"class {condition.name}"
        case _:
            raise no_case(condition)


def _grouped(condition: Condition, limits: Limits) -> str:
    text = sentence(condition, limits)
    return text if isinstance(condition, Compare | Is) else f"({text})"
