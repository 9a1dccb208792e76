"""Walks over the tree of a condition: its parts, terms, signals and limits."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_exporter.catalogue.conditions import (
    And,
    Calc,
    Compare,
    Condition,
    Is,
    Leaf,
    Limit,
    Mark,
    Named,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Term,
    Unless,
    no_case,
)
from gpu_exporter.catalogue.signal import Signal


def children(condition: Condition) -> tuple[Condition, ...]:
    """Return the conditions that a condition is made of, in order."""
    match condition:
        case Compare():
            return ()
        case And() | Or():
            return condition.conditions
        case Unless() | OrIfKnown():
            return condition.condition, condition.other
        case Is():
            return (condition.classification.conditions[condition.name],)
        case _:
            raise no_case(condition)


def nodes(condition: Condition) -> Iterator[Condition]:
    """Yield a condition and all that it is made of."""
    yield condition
    for child in children(condition):
        yield from nodes(child)


def leaves(term: Term) -> Iterator[Leaf]:
    """Yield the recorded or read terms that a term is made of, in order."""
    match term:
        case Over() | PeerShare():
            yield term
        case PeerMedian() | PeerMean() | PeerMin():
            yield term
            yield term.of
        case Calc():
            yield from leaves(term.left)
            yield from leaves(term.right)
        case _:
            raise no_case(term)


def comparisons(condition: Condition) -> Iterator[Compare]:
    """Yield every comparison in a condition, in order."""
    if isinstance(condition, Compare):
        yield condition
    for child in children(condition):
        yield from comparisons(child)


def terms(condition: Condition) -> Iterator[Leaf]:
    """Yield the terms that a condition reads, in order."""
    for compare in comparisons(condition):
        yield from leaves(compare.left)
        if not isinstance(compare.right, Limit | float | int):
            yield from leaves(compare.right)


def marks_of(condition: Condition) -> tuple[Mark, ...]:
    """Return the marks of other ranks that a condition reads, in order."""
    return tuple(dict.fromkeys(term.mark for term in terms(condition) if not isinstance(term, Over)))


def signals_of(condition: Condition) -> tuple[Signal, ...]:
    """Return the signals that a condition reads, in order, including those of its marks."""
    return tuple(dict.fromkeys(_signals(condition)))


def _signals(condition: Condition) -> Iterator[Signal]:
    for term in terms(condition):
        if isinstance(term, Over):
            yield term.signal
            continue
        if not isinstance(term, PeerShare):
            yield term.of.signal
        yield from _signals(term.mark.condition)


def limits_of(condition: Condition) -> tuple[Limit, ...]:
    """Return the limits of a condition, in order, including those of its marks."""
    return tuple(dict.fromkeys(_limits(condition)))


def _limits(condition: Condition) -> Iterator[Limit]:
    for compare in comparisons(condition):
        if isinstance(compare.right, Limit):
            yield compare.right
        for mark in marks_of(compare):
            yield from _limits(mark.condition)


def shared(condition: Condition) -> Iterator[Named]:
    """Yield the parts of a condition that are recorded by name, inner ones first."""
    for child in children(condition):
        yield from shared(child)
    if isinstance(condition, Named) and condition.name:
        yield condition
