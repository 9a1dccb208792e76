"""Evidence -> the class of each GPU, the failure modes that match, the numbers that led there, what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_exporter.classes import Class, classify
from gpu_exporter.conditions import Condition, Median, Over, Share
from gpu_exporter.failure_modes import MODES
from gpu_exporter.failure_modes.mode import FailureMode, Scope
from gpu_exporter.readings import Identity, Part, Seen
from gpu_exporter.signals import SIGNALS


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
            lacking = tuple(signal.name for signal in mode.needs if not seen.points(part, signal))
            if any(not signal.extra for signal in mode.needs):  # without an Xid there is no signal of one
                unknown[mode.name] = lacking
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


def verdict(diagnoses: Sequence[Diagnosis]) -> int:
    """The exit code: 0 nothing wrong, 1 something found, 2 could not tell."""
    if any(each.matches for each in diagnoses):
        return 1
    return 0 if any(each.bottleneck for each in diagnoses) else 2


def as_dict(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """For JSON: the GPUs in order of node and index; `class` is null where none is known."""
    return {"gpus": [_as_dict(each) for each in diagnoses if _worth_telling(each)]}


def _worth_telling(each: Diagnosis) -> bool:
    """A GPU in MIG mode tells of itself only if there is something; its instances do the work."""
    return bool(each.bottleneck or each.matches or not each.identity.has_instances)


def _as_dict(each: Diagnosis) -> dict[str, Any]:
    known = each.identity
    return {
        "gpu": known.gpu,
        "UUID": each.part.uuid,
        **({"GPU_I_ID": each.part.instance} if each.part.instance else {}),
        **{name: value for name in ("node", "namespace", "pod", "workload") if (value := getattr(known, name))},
        "modelName": known.model,
        "class": each.bottleneck.name if each.bottleneck else None,
        "evidence": _rounded(each.evidence),
        "modes": [
            {
                "name": match.mode.name,
                "severity": match.mode.severity.value,
                "domain": match.mode.domain.value,
                "action": match.mode.action.value,
                "because": _rounded(match.because),
                "advice": match.mode.advice,
            }
            for match in each.matches
        ],
        "unknown": {name: list(lacking) for name, lacking in each.unknown.items()},
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def lines(diagnoses: Sequence[Diagnosis], *, every: bool = False) -> Iterator[str]:
    """A block for each GPU: its class with the numbers, then each mode with its numbers and what to do.

    Units are those of the signals: ratios as percent, traffic per second. With `every`, also what could not be judged.
    """
    for each in filter(_worth_telling, diagnoses):
        known, found = each.identity, each.bottleneck
        who = f"GPU {known.gpu or each.part.uuid}" + (f" instance {each.part.instance}" if each.part.instance else "")
        where = ", ".join(text for text in (known.node, known.model, known.pod or known.workload) if text)
        what = f"{found.name}: {found.means}" if found else "class unknown: not enough is collected of it"
        yield f"{who} ({where})  {what}" if where else f"{who}  {what}"
        if each.evidence:
            yield f"    {_numbers(each.evidence)}"
        for match in each.matches:
            yield f"  {match.mode.name} ({match.mode.severity.value})"
            yield f"    {_numbers(match.because)}"
            yield f"    -> {match.mode.advice}"
        if every:
            for name, lacking in each.unknown.items():
                yield f"  {name}: not judged, " + (f"no {', '.join(lacking)}" if lacking else "not watched long enough")


def _numbers(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_shown(name, value)}" for name, value in values.items())


def _shown(name: str, value: float) -> str:
    unit = UNITS.get(name.split("_of_ranks")[0].removesuffix("_max").removesuffix("_min").removesuffix("_stddev"), "")
    if unit == "ratio" or name.startswith("other_ranks"):
        return f"{value:.1%}" if 0 < abs(value) < 0.1 else f"{value:.0%}"
    if unit.startswith("bytes"):
        return f"{value / 1e9:.2f} GB" + ("/s" if unit.endswith("second") else "")
    return f"{value:.4g}"


UNITS = {signal.name: signal.unit for signal in SIGNALS}
