"""Formulas on terms: numbers that are recorded for each device, in PromQL and in Python.

Python sees all signals of a device end at once. Rules record them in several groups, so one operand may end minutes
after another: nothing may stand in for an operand that is absent, except where a formula says so.

Conditions compare terms (see `tree.py`); a formula computes with them and with conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_exporter.conditions import promql
from gpu_exporter.conditions.evaluate import TRUE, Device, SignalWindow, truths, values
from gpu_exporter.conditions.signal import OPERATORS, PRESENCE_INFO
from gpu_exporter.conditions.tree import (
    Calc,
    Condition,
    Leaf,
    Limit,
    Limits,
    NodeMax,
    OfBoard,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    leaves,
    no_case,
)

_TERMS = Leaf | Calc


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`left operator right`; unknown if a side is, or after a division by 0."""

    left: Formula
    operator: str
    right: Formula


@dataclass(frozen=True, slots=True)
class Choice:
    """`then` where the condition is known to be true, `otherwise` elsewhere."""

    condition: Condition
    then: Formula
    otherwise: Formula


@dataclass(frozen=True, slots=True)
class Least:
    """The lesser of two formulas; unknown if a side is."""

    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Greatest:
    """The greater of two formulas; unknown if a side is."""

    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Positive:
    """A formula, or 0 where it is negative."""

    of: Formula


@dataclass(frozen=True, slots=True)
class Known:
    """A formula, or 0 where it is unknown."""

    of: Formula


@dataclass(frozen=True, slots=True)
class WhereKnown:
    """A formula, for devices of which all of `known` are known."""

    of: Formula
    known: tuple[Formula, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Recorded:
    """A formula that is recorded under a name with a label, for other formulas to read."""

    record: str
    label: str
    name: str
    of: Formula


Formula = (
    _TERMS
    | Arithmetic
    | Choice
    | Least
    | Greatest
    | Positive
    | Known
    | WhereKnown
    | OfBoard
    | NodeMax
    | Recorded
    | Limit
    | float
)


def parts(of: Formula) -> Iterator[Leaf | Condition | Limit]:
    """Yield the terms, conditions and limits that a formula is made of, in order."""
    match of:
        case float() | int():
            return
        case Limit() | Over() | PeerShare() | PeerMedian() | PeerMean() | PeerMin():
            yield of
        case Calc() | OfBoard() | NodeMax():
            yield from leaves(of)
        case Arithmetic() | Least() | Greatest():
            yield from parts(of.left)
            yield from parts(of.right)
        case Choice():
            yield of.condition
            yield from parts(of.then)
            yield from parts(of.otherwise)
        case Positive() | Known() | Recorded():
            yield from parts(of.of)
        case WhereKnown():
            for each in (of.of, *of.known):
                yield from parts(each)
        case _:
            raise no_case(of)


def results(of: Formula, window: SignalWindow) -> Mapping[Device, float]:
    """Return the value of a formula for each device of which it is known."""
    match of:
        case Recorded():
            if of not in window.memo:
                window.memo[of] = results(of.of, window)
            column: Mapping[Device, float] = window.memo[of]
            return column
        case float() | int():
            return dict.fromkeys(values(Over(window.presence), window), float(of))
        case Limit(name, default):
            return dict.fromkeys(window.devices, window.limits.get(name, default))
        case Over() | PeerShare() | PeerMedian() | PeerMean() | PeerMin() | Calc() | OfBoard() | NodeMax():
            return values(of, window)
        case Arithmetic():
            return _computed(of, window)
        case Choice():
            then, otherwise, truth = (
                results(of.then, window),
                results(of.otherwise, window),
                truths(of.condition, window),
            )
            chosen = (
                (device, then if each == TRUE else otherwise)
                for device, each in zip(window.devices, truth, strict=True)
            )
            return {device: column[device] for device, column in chosen if device in column}
        case Least() | Greatest():
            left, right = _side_values(of.left, window), _side_values(of.right, window)
            choose = min if isinstance(of, Least) else max
            return {device: choose(number, right[device]) for device, number in left.items() if device in right}
        case Positive():
            return {device: max(number, 0.0) for device, number in results(of.of, window).items()}
        case Known():
            return {**results(0.0, window), **results(of.of, window)}
        case WhereKnown():
            known = [results(each, window) for each in of.known]
            column = results(of.of, window)
            return {device: number for device, number in column.items() if all(device in each for each in known)}
        case _:
            raise no_case(of)


def _side_values(of: Formula, window: SignalWindow) -> Mapping[Device, float]:
    """Return the values of one side of an operation, where a number needs no signal."""
    return dict.fromkeys(window.devices, float(of)) if isinstance(of, float | int) else results(of, window)


def _computed(of: Arithmetic, window: SignalWindow) -> Mapping[Device, float]:
    right, compute = _side_values(of.right, window), OPERATORS[of.operator]
    both = ((device, left, right[device]) for device, left in _side_values(of.left, window).items() if device in right)
    return {device: compute(left, number) for device, left, number in both if number or of.operator != "/"}


def expression(of: Formula, limits: Limits) -> str:
    """Return the PromQL of a formula."""
    match of:
        case float() | int():
            return f"({PRESENCE_INFO} * 0 + {of:.15g})"
        case Limit(name, default):
            return expression(limits.get(name, default), limits)
        case Over() | PeerShare() | PeerMedian() | PeerMean() | PeerMin() | Calc() | OfBoard() | NodeMax():
            return promql.term(of)
        case Arithmetic():
            return f"({_side(of.left, limits)} {of.operator} {_side(of.right, limits)})"
        case Choice():
            chosen = _chosen(of, limits)
            rest = f"({expression(of.otherwise, limits)} unless ({promql.condition(of.condition, limits)}))"
            return f"({chosen} or {rest})"
        case Least() | Greatest():
            return _extreme(of, limits)
        case Positive():
            return f"clamp_min({expression(of.of, limits)}, 0)"
        case Known():
            return f"({expression(of.of, limits)} or {PRESENCE_INFO} * 0)"
        case WhereKnown():
            return f"({' and '.join(expression(each, limits) for each in (of.of, *of.known))})"
        case Recorded():
            return f'sum without ({of.label}) ({of.record}{{{of.label}="{of.name}"}})'
        case _:
            raise no_case(of)


def _extreme(of: Least | Greatest, limits: Limits) -> str:
    """Return the lesser or the greater of two sides, by arithmetic, which has no result where a side is absent."""
    left, right = _side(of.left, limits), _side(of.right, limits)
    numbers = [isinstance(side, float | int | Limit) for side in (of.left, of.right)]
    if any(numbers):
        series, number = (right, left) if numbers[0] else (left, right)
        return f"{'clamp_max' if isinstance(of, Least) else 'clamp_min'}({series}, {number})"
    if isinstance(of, Least):
        return f"({right} - clamp_min({right} - {left}, 0))"
    return f"({right} + clamp_min({left} - {right}, 0))"


def _chosen(of: Choice, limits: Limits) -> str:
    """Return `then` where the condition is true. A number needs no series but those of the condition."""
    condition = promql.condition(of.condition, limits)
    if isinstance(of.then, float):
        return f"(({condition}) * 0 + {of.then:.15g})"
    return f"({expression(of.then, limits)} and ({condition}))"


def _side(of: Formula, limits: Limits) -> str:
    """Return one side of an operation, where a number needs no device."""
    match of:
        case float() | int():
            return f"{of:.15g}"
        case Limit(name, default):
            return f"{limits.get(name, default):.15g}"
    return expression(of, limits)
