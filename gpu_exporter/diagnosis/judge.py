"""Window of signals -> the bottleneck of each GPU, and the failure modes that match, with their numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.bottlenecks import Class, classify
from gpu_exporter.catalogue.conditions import Also, And, Condition, Median, Or, Over, Share, Unless
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope
from gpu_exporter.diagnosis.window import DeviceIdentity, DeviceKey, Seen


@dataclass(frozen=True, slots=True)
class Match:
    """A failure mode that holds for a GPU, and the value of each term that decided it."""

    mode: FailureMode
    because: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with one GPU. `unknown` are the modes that could not be judged, with the missing signals."""

    device: DeviceKey
    identity: DeviceIdentity
    bottleneck: Class | None
    matches: tuple[Match, ...]
    unknown: Mapping[str, tuple[str, ...]]
    numbers: Mapping[str, float]  # those that decided the bottleneck


def diagnose(seen: Seen, modes: Sequence[FailureMode] = MODES) -> tuple[Diagnosis, ...]:
    """Return a diagnosis for each GPU and MIG instance, modes in triage order. Ignores holds and modes of a fleet."""
    return tuple(_of(seen, device, identity, modes) for device, identity in seen.devices.items())


def _of(seen: Seen, device: DeviceKey, identity: DeviceIdentity, modes: Sequence[FailureMode]) -> Diagnosis:
    matches, unknown = [], {}
    for mode in modes:
        if mode.condition is None or mode.scope is Scope.FLEET:
            continue
        holds = mode.condition.holds(seen, device)
        if holds:
            matches.append(Match(mode, because(mode.condition, seen, device)))
        elif holds is None:
            missing = tuple(signal.name for signal in mode.needs if not seen.points(device, signal))
            if any(not signal.extra for signal in mode.needs):  # an XID's signal is missing as long as none occurred
                unknown[mode.name] = missing
    bottleneck = classify(seen, device)
    numbers = because(bottleneck.condition, seen, device) if bottleneck else {}
    return Diagnosis(device, identity, bottleneck, tuple(matches), unknown, numbers)


def because(condition: Condition, seen: Seen, device: DeviceKey) -> Mapping[str, float]:
    """Return the values of the terms that decided a condition that holds, by name, in order."""
    terms = _deciding(condition, seen, device)
    values = ((name_of(term), term.value(seen, device)) for term in terms)
    return {name: value for name, value in values if value is not None}


def _deciding(condition: Condition, seen: Seen, device: DeviceKey) -> Iterator[Over | Share | Median]:
    """The terms of a condition, without alternatives that do not hold and without exceptions."""
    match condition:
        case And():
            for each in condition.conditions:
                yield from _deciding(each, seen, device)
        case Or():
            for each in condition.conditions:
                if each.holds(seen, device):
                    yield from _deciding(each, seen, device)
        case Also():
            for each in (condition.condition, condition.other):
                if each.holds(seen, device):
                    yield from _deciding(each, seen, device)
        case Unless():
            yield from _deciding(condition.condition, seen, device)
        case _:
            yield from condition.terms()


def name_of(term: Over | Share | Median) -> str:
    """Return the name of a term in reports: the signal's name for its last value and for its mean."""
    match term:
        case Over():
            plain = term.fn.value in ("last", "mean")
            return term.signal.name if plain else f"{term.signal.name}_{term.fn.value}"
        case Share():
            return f"other_ranks_that_{term.mark.name.removesuffix('s')}"
        case Median():
            return f"{term.of.signal.name}_of_ranks_that_{term.where.name.removesuffix('s')}"
