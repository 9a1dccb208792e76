"""The margin of a condition: by which factor its deciding comparison would have to change for it to flip.

A comparison `value >= limit` has the margin `value / limit` where it is true, `limit / value` where it is false; of a
share of time or ranks, also that of the complements. Of an
`and` that is true, the smallest margin decides; of one that is false, the largest of those that are false; an `or`
is the reverse. This is the robustness of temporal logic, as a factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpu_exporter.conditions.evaluate import COMPARE, Device, SignalWindow, bounds, value
from gpu_exporter.conditions.tree import (
    And,
    Compare,
    Condition,
    Is,
    Or,
    OrIfKnown,
    Over,
    PeerShare,
    Unless,
    no_case,
    terms,
)


@dataclass(frozen=True, slots=True)
class Margin:
    """Whether a condition is true, by which factor, and the comparison that decides, with its two sides.

    `holds` is None if it is unknown; no factor keeps it from flipping then.
    """

    holds: bool | None
    factor: float
    compare: Compare | None = None
    left: float = math.nan
    right: float = math.nan

    def negated(self) -> Margin:
        """Return the margin of the opposite condition."""
        return replace(self, holds=None if self.holds is None else not self.holds)


# Units of values that are whole numbers: they do not drift across a limit.
DISCRETE = ("bool", "action", "status", "lanes", "generation", "links", "banks", "errors", "rows")
UNKNOWN = Margin(None, math.inf)


def margin(of: Condition, window: SignalWindow, device: Device) -> Margin:
    """Return the margin of a condition for a device."""
    match of:
        case Compare():
            return _of_compare(of, window, device)
        case And():
            return _all([margin(child, window, device) for child in of.conditions])
        case Or():
            return _any([margin(child, window, device) for child in of.conditions])
        case Unless():
            other = margin(of.other, window, device)
            inner = margin(of.condition, window, device)
            return inner if other.holds is None else _all([inner, other.negated()])
        case OrIfKnown():
            other = margin(of.other, window, device)
            inner = margin(of.condition, window, device)
            return inner if other.holds is None else _any([inner, other])
        case Is():
            before = [margin(condition, window, device) for condition in of.before]
            own = margin(of.classification.conditions[of.name], window, device)
            return _all([*(each.negated() for each in before if each.holds is not None), own])
        case _:
            raise no_case(of)


def _of_compare(of: Compare, window: SignalWindow, device: Device) -> Margin:
    left, right = value(of.left, window, device), bounds(of, window).get(device)
    if left is None or right is None:
        return UNKNOWN
    holds = COMPARE[of.operator](left, right)
    discrete = of.operator in ("==", "!=") or any(each.signal.unit in DISCRETE for each in overs(of))
    factor = math.inf if discrete else _factor(left, right)
    if not discrete and _is_share(of) and left <= 1:  # an engine that is busy 99 % of the time is idle 1 % of it
        factor = max(factor, _factor(1 - left, 1 - right))
    return Margin(holds, factor, of, left, right)


def overs(of: Compare) -> list[Over]:
    """Return the signals that a comparison reads, each over its window."""
    return [term for term in terms(of) if isinstance(term, Over)]


def _is_share(of: Compare) -> bool:
    return isinstance(of.left, PeerShare) or (isinstance(of.left, Over) and of.left.signal.unit == "ratio")


def _factor(left: float, right: float) -> float:
    """Return the ratio of two numbers, at least 1; infinite if one is 0 or they have different signs."""
    small, large = sorted((abs(left), abs(right)))
    return math.inf if small == 0 or (left < 0) != (right < 0) else large / small


def _all(children: list[Margin]) -> Margin:
    false = [child for child in children if child.holds is False]
    if false:
        return max(false, key=lambda child: child.factor)
    return UNKNOWN if any(child.holds is None for child in children) else min(children, key=lambda child: child.factor)


def _any(children: list[Margin]) -> Margin:
    return _all([child.negated() for child in children]).negated()
