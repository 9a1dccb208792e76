"""Window of signals -> the bottleneck of each GPU and the failure modes that match, with the evidence. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.catalogue.bottlenecks import Bottleneck, classify
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Scope
from gpu_exporter.catalogue.roofline import Headroom, Position, headroom, position
from gpu_exporter.catalogue.signals import UP
from gpu_exporter.catalogue.time_shares import time_shares
from gpu_exporter.conditions.evaluate import holds, value
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import (
    And,
    Compare,
    Condition,
    Is,
    Leaf,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Unless,
    no_case,
    terms,
)
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import DeviceIdentity, Window

# The values of the terms that decided a condition, in order.
Evidence = Mapping[Leaf, float]


@dataclass(frozen=True, slots=True)
class Match:
    """A failure mode that matches a GPU, and the evidence for it."""

    mode: FailureMode
    because: Evidence


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with one GPU. `unknown` are the modes that could not be judged, with the missing signals.

    `numbers` is the evidence for the bottleneck. `shares` is where its time went; empty if that is unknown. `headroom`
    is how close it is to the limits of its chip, if its kernels fill it, and `position` how close to what the best
    kernels reach on its model, if that is known.
    """

    device: DeviceKey
    identity: DeviceIdentity
    bottleneck: Bottleneck | None
    matches: tuple[Match, ...]
    unknown: Mapping[str, tuple[Signal, ...]]
    numbers: Evidence
    is_down: bool = False
    shares: Mapping[Cause, float] = field(default_factory=dict)
    headroom: Headroom | None = None
    position: Position | None = None


def diagnose(window: Window, modes: Sequence[FailureMode] = MODES) -> tuple[Diagnosis, ...]:
    """Return a diagnosis for each GPU and MIG instance, modes in triage order.

    A mode matches as soon as its condition holds; only its alert waits. Modes that concern a whole fleet are left out.
    """
    return tuple(_of(window, device, identity, modes) for device, identity in window.devices.items())


def _of(window: Window, device: DeviceKey, identity: DeviceIdentity, modes: Sequence[FailureMode]) -> Diagnosis:
    matches, unknown = [], {}
    is_down = value(Over(UP), window, device) == 0
    for mode in modes:
        if mode.condition is None or mode.scope is Scope.FLEET or (is_down and mode.domain is not Domain.HEALTH):
            continue
        answer = holds(mode.condition, window, device)
        if answer:
            matches.append(Match(mode, because(mode.condition, window, device)))
        elif answer is None:
            missing = tuple(signal for signal in required_by(mode.condition) if not window.points(device, signal))
            # The signal of an XID, which has extra labels, is missing until one occurs.
            if not all(signal.extra_labels for signal in mode.needs):
                unknown[mode.name] = missing
    bottleneck = None if is_down else classify(window, device)
    numbers = because(bottleneck.condition, window, device) if bottleneck else {}
    shares, room = ({}, None) if is_down else (time_shares(window, device), headroom(window, device))
    place = None if is_down or device.instance else position(window, device, identity.model)
    return Diagnosis(device, identity, bottleneck, tuple(matches), unknown, numbers, is_down, shares, room, place)


def required_by(condition: Condition) -> tuple[Signal, ...]:
    """Return the signals of a device without which a condition can be unknown, in order.

    An exception, an alternative and a mark count as false where they are unknown.
    """
    return tuple(dict.fromkeys(_required(condition)))


def _required(condition: Condition) -> Iterator[Signal]:
    match condition:
        case Unless() | OrIfKnown():
            yield from _required(condition.condition)
        case And() | Or():
            for child in condition.conditions:
                yield from _required(child)
        case Compare():
            for term in terms(condition):
                if not isinstance(term, PeerShare):
                    yield term.signal if isinstance(term, Over) else term.of.signal
        case Is():
            yield from _required(condition.classification.conditions[condition.name])
        case _:
            raise no_case(condition)


def because(condition: Condition, window: Window, device: DeviceKey) -> Evidence:
    """Return the values of the terms that decided a condition that holds."""
    values = ((term, value(term, window, device)) for term in _deciding(condition, window, device))
    return {term: number for term, number in values if number is not None}


def _deciding(condition: Condition, window: Window, device: DeviceKey) -> Iterator[Leaf]:
    """Yield the terms of a condition, without alternatives that do not hold, and without the part after `Unless`."""
    match condition:
        case And():
            for child in condition.conditions:
                yield from _deciding(child, window, device)
        case Or():
            for child in condition.conditions:
                if holds(child, window, device):
                    yield from _deciding(child, window, device)
        case OrIfKnown():
            for child in (condition.condition, condition.other):
                if holds(child, window, device):
                    yield from _deciding(child, window, device)
        case Unless():
            yield from _deciding(condition.condition, window, device)
        case Is():
            yield from _deciding(condition.classification.conditions[condition.name], window, device)
        case Compare():
            yield from terms(condition)
        case _:
            raise no_case(condition)


def name_of(term: Leaf) -> str:
    """Return the name of a term in JSON: the signal's name for its last value and for its mean."""
    match term:
        case Over():
            plain = term.fn.value in ("last", "mean")
            return term.signal.name if plain else f"{term.signal.name}_{term.fn.value}"
        case PeerShare():
            return f"other_ranks_that_{term.mark.verb.replace(' ', '_')}"
        case PeerMedian():
            return f"{term.of.signal.name}_of_ranks_that_{term.mark.verb.replace(' ', '_')}"
        case PeerMin():
            return f"{term.of.signal.name}_of_lowest_rank"
        case PeerMean():
            return f"{term.of.signal.name}_of_other_ranks"
        case _:
            raise no_case(term)
