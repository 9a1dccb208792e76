"""Evidence -> the class of each GPU, the failure modes that match, the numbers that led there, what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.classes import Class, classify
from gpu_exporter.conditions import Condition, Median, Over, Share
from gpu_exporter.failure_modes import MODES
from gpu_exporter.failure_modes.mode import FailureMode, Scope
from gpu_exporter.readings import Identity, Part, Seen


@dataclass(frozen=True, slots=True)
class Match:
    """A mode that holds for a GPU, and the value of each term that its condition reads."""

    mode: FailureMode
    because: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with one GPU. `unknown` are the modes that could not be judged, with the signals that lack."""

    part: Part
    identity: Identity
    bottleneck: Class | None
    matches: tuple[Match, ...]
    unknown: Mapping[str, tuple[str, ...]]
    evidence: Mapping[str, float]


def diagnose(seen: Seen, modes: Sequence[FailureMode] = MODES) -> tuple[Diagnosis, ...]:
    """One diagnosis a GPU (and MIG instance), modes in triage order. Holds are ignored; so are modes of a fleet."""
    return tuple(_of(seen, part, identity, modes) for part, identity in seen.devices.items())


def _of(seen: Seen, part: Part, identity: Identity, modes: Sequence[FailureMode]) -> Diagnosis:
    matches, unknown = [], {}
    for mode in modes:
        if mode.condition is None or mode.scope is Scope.FLEET:
            continue
        holds = mode.condition.holds(seen, part)
        if holds:
            matches.append(Match(mode, because(mode.condition, seen, part)))
        elif holds is None:
            unknown[mode.name] = tuple(s.name for s in mode.needs if not seen.points(part, s))
    bottleneck = classify(seen, part)
    evidence = because(bottleneck.condition, seen, part) if bottleneck else {}
    return Diagnosis(part, identity, bottleneck, tuple(matches), unknown, evidence)


def because(condition: Condition, seen: Seen, part: Part) -> Mapping[str, float]:
    """The terms of a condition that are known, by name, in order."""
    return dict(_known(condition.terms(), seen, part))


def _known(terms: Iterator[Over | Share | Median], seen: Seen, part: Part) -> Iterator[tuple[str, float]]:
    for term in terms:
        value = term.value(seen, part)
        if value is not None:
            yield name_of(term), value


def name_of(term: Over | Share | Median) -> str:
    """A term as people read it: the signal's name where it is the plain value or its mean."""
    match term:
        case Over():
            plain = term.fn.value in ("last", "mean")
            return term.signal.name if plain else f"{term.signal.name}_{term.fn.value}"
        case Share():
            return f"other_ranks_that_{term.mark.name.removesuffix('s')}"
        case Median():
            return f"{term.of.signal.name}_of_ranks_that_{term.where.name.removesuffix('s')}"
