"""Formulas on terms: numbers that are recorded for each device, in PromQL and in Python.

Each is unknown for a device whose engine activity is unknown.

Conditions compare terms (see `tree.py`); a formula computes with them and with conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_exporter.conditions import promql
from gpu_exporter.conditions.evaluate import TRUE, Device, SignalWindow, truths, values
from gpu_exporter.conditions.signal import DEVICE, OPERATORS, PRESENCE_INFO
from gpu_exporter.conditions.tree import (
    Calc,
    Condition,
    Leaf,
    Limit,
    Limits,
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
    """The lesser of two formulas; the second where the first is unknown."""

    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class Greatest:
    """The greater of two formulas; the second where the first is unknown."""

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
class OfBoard:
    """The maximum of terms of signals that have no owner, with all labels of the device; 0 if none is above 0."""

    of: tuple[Over, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Recorded:
    """A formula that is recorded under a name with a label, for other formulas to read."""

    record: str
    label: str
    name: str
    of: Formula


Formula = _TERMS | Arithmetic | Choice | Least | Greatest | Positive | Known | OfBoard | Recorded | Limit | float


def parts(of: Formula) -> Iterator[Leaf | Condition | Limit]:
    """Yield the terms, conditions and limits that a formula is made of, in order."""
    match of:
        case float() | int():
            return
        case Limit() | Over() | PeerShare() | PeerMedian() | PeerMean() | PeerMin():
            yield of
        case Calc():
            yield from leaves(of)
        case OfBoard():
            yield from of.of
        case Arithmetic() | Least() | Greatest():
            yield from parts(of.left)
            yield from parts(of.right)
        case Choice():
            yield of.condition
            yield from parts(of.then)
            yield from parts(of.otherwise)
        case Positive() | Known() | Recorded():
            yield from parts(of.of)
        case _:
            raise no_case(of)


def result(of: Formula, window: SignalWindow, device: Device) -> float | None:
    """Return the value of a formula for a device; None if it is unknown."""
    return results(of, window).get(device)


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
        case Over() | PeerShare() | PeerMedian() | PeerMean() | PeerMin() | Calc():
            return values(of, window)
        case OfBoard():
            columns = [values(term, window) for term in of.of]
            return {
                device: max((column[device] for column in columns if device in column), default=least)
                for device, least in results(0.0, window).items()
            }
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
            left, right = results(of.left, window), results(of.right, window)
            choose = min if isinstance(of, Least) else max
            return {device: choose(left.get(device, number), number) for device, number in right.items()}
        case Positive():
            return {device: max(number, 0.0) for device, number in results(of.of, window).items()}
        case Known():
            return {**results(0.0, window), **results(of.of, window)}
        case _:
            raise no_case(of)


def _computed(of: Arithmetic, window: SignalWindow) -> Mapping[Device, float]:
    right, compute = results(of.right, window), OPERATORS[of.operator]
    both = ((device, left, right[device]) for device, left in results(of.left, window).items() if device in right)
    return {device: compute(left, number) for device, left, number in both if number or of.operator != "/"}


def expression(of: Formula, limits: Limits) -> str:
    """Return the PromQL of a formula, for devices whose engine activity is known."""
    match of:
        case float() | int():
            return f"({PRESENCE_INFO} * 0 + {of:.15g})"
        case Limit(name, default):
            return expression(limits.get(name, default), limits)
        case Over() | PeerShare() | PeerMedian() | PeerMean() | PeerMin() | Calc():
            return promql.term(of)
        case OfBoard():
            return _of_board(of)
        case Arithmetic():
            return f"({_side(of.left, limits)} {of.operator} {_side(of.right, limits)})"
        case Choice():
            chosen = _chosen(of, limits)
            rest = f"({expression(of.otherwise, limits)} unless ({promql.condition(of.condition, limits)}))"
            return f"({chosen} or {rest})"
        case Least(float(most), capped):
            # A number needs no series of its own.
            return f"clamp_max({expression(capped, limits)}, {most:.15g})"
        case Least() | Greatest():
            left, right = expression(of.left, limits), expression(of.right, limits)
            return f"({left} {'<' if isinstance(of, Least) else '>'} {right} or {right})"
        case Positive():
            return f"clamp_min({expression(of.of, limits)}, 0)"
        case Known():
            return f"({expression(of.of, limits)} or {PRESENCE_INFO} * 0)"
        case Recorded():
            return f'sum without ({of.label}) ({of.record}{{{of.label}="{of.name}"}})'
        case _:
            raise no_case(of)


def _chosen(of: Choice, limits: Limits) -> str:
    """Return `then` where the condition is true. A number needs no series but those of the condition."""
    condition = promql.condition(of.condition, limits)
    if isinstance(of.then, float):
        return f"(({condition}) * 0 + {of.then:.15g})"
    return f"({expression(of.then, limits)} and ({condition}))"


def _of_board(of: OfBoard) -> str:
    device, engine = ", ".join(DEVICE), f"{PRESENCE_INFO} * 0"
    terms = (f'label_replace({promql.term(term)}, "part", "{part}", "", "")' for part, term in enumerate(of.of))
    # The values first: in VictoriaMetrics, the second side costs nothing if the first is empty.
    most = f"max by ({device}) (({' or '.join(terms)}) > 0)"
    return f"({most} + on ({device}) group_right () {engine} or {engine})"


def _side(of: Formula, limits: Limits) -> str:
    """Return one side of an operation, where a number needs no device."""
    match of:
        case float() | int():
            return f"{of:.15g}"
        case Limit(name, default):
            return f"{limits.get(name, default):.15g}"
    return expression(of, limits)
