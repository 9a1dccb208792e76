"""Evidence -> the class of each GPU, the failure modes that match, the numbers that led there, what to do. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_exporter.catalogue.bottlenecks import Bottleneck, classify
from gpu_exporter.catalogue.conditions import (
    And,
    Compare,
    Condition,
    Is,
    Leaf,
    Or,
    OrIfKnown,
    Over,
    PeerMedian,
    PeerShare,
    Unless,
    no_case,
    terms,
)
from gpu_exporter.catalogue.evaluate import holds, value
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Scope, Severity
from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.diagnosis.window import Identity, Part, Window


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
    bottleneck: Bottleneck | None
    matches: tuple[Match, ...]
    unknown: Mapping[str, tuple[str, ...]]
    evidence: Mapping[str, float]


def diagnose(window: Window, modes: Sequence[FailureMode] = MODES) -> tuple[Diagnosis, ...]:
    """One diagnosis a GPU (and MIG instance), modes in triage order. Holds are ignored; so are modes of a fleet."""
    return tuple(_of(window, part, identity, modes) for part, identity in window.devices.items())


def _of(window: Window, part: Part, identity: Identity, modes: Sequence[FailureMode]) -> Diagnosis:
    matches, unknown = [], {}
    for mode in modes:
        if mode.condition is None or mode.scope is Scope.FLEET:
            continue
        answer = holds(mode.condition, window, part)
        if answer:
            matches.append(Match(mode, because(mode.condition, window, part)))
        elif answer is None:
            lacking = tuple(signal.name for signal in mode.needs if not window.points(part, signal))
            if any(not signal.extra for signal in mode.needs):  # without an Xid there is no signal of one
                unknown[mode.name] = lacking
    bottleneck = classify(window, part)
    evidence = because(bottleneck.condition, window, part) if bottleneck else {}
    return Diagnosis(part, identity, bottleneck, tuple(matches), unknown, evidence)


def because(condition: Condition, window: Window, part: Part) -> Mapping[str, float]:
    """The terms that decided, of a condition that holds, by name, in order."""
    return dict(_known(_deciding(condition, window, part), window, part))


def _deciding(condition: Condition, window: Window, part: Part) -> Iterator[Leaf]:
    """Without the ways in which it might have held but does not, and without what might have spoken against it."""
    match condition:
        case And():
            for child in condition.conditions:
                yield from _deciding(child, window, part)
        case Or():
            for child in condition.conditions:
                if holds(child, window, part):
                    yield from _deciding(child, window, part)
        case OrIfKnown():
            for child in (condition.condition, condition.other):
                if holds(child, window, part):
                    yield from _deciding(child, window, part)
        case Unless():
            yield from _deciding(condition.condition, window, part)
        case Compare() | Is():
            yield from terms(condition)
        case _:
            raise no_case(condition)


def _known(leaves: Iterator[Leaf], window: Window, part: Part) -> Iterator[tuple[str, float]]:
    for term in leaves:
        number = value(term, window, part)
        if number is not None:
            yield name_of(term), number


def name_of(term: Leaf) -> str:
    """A term as people read it: the signal's name where it is the plain value or its mean."""
    match term:
        case Over():
            plain = term.fn.value in ("last", "mean")
            return term.signal.name if plain else f"{term.signal.name}_{term.fn.value}"
        case PeerShare():
            return f"other_ranks_that_{term.mark.name.removesuffix('s')}"
        case PeerMedian():
            return f"{term.of.signal.name}_of_ranks_that_{term.mark.name.removesuffix('s')}"
        case _:
            raise no_case(term)


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
    """The worst first: a block for GPUs of which the same is to say, with class, modes, their numbers and what to do.

    Units are those of the signals: ratios as percent, traffic per second. With `every`, also what could not be judged.
    """
    alike: dict[Hashable, list[Diagnosis]] = defaultdict(list)
    for each in filter(_worth_telling, diagnoses):
        what = each.bottleneck.name if each.bottleneck else "", tuple(match.mode.name for match in each.matches)
        lacking = tuple(each.unknown.items()) if every else ()
        alike[_where(each.identity), bool(each.part.instance), what, lacking].append(each)
    for group in sorted(alike.values(), key=_urgency):
        yield from _block(group, every=every)


def _urgency(group: Sequence[Diagnosis]) -> int:
    severities = list(Severity)
    return min((severities.index(match.mode.severity) for match in group[0].matches), default=len(severities))


def _where(known: Identity) -> str:
    return ", ".join(text for text in (known.node, known.model, known.pod or known.workload) if text)


def _block(group: Sequence[Diagnosis], *, every: bool) -> Iterator[str]:
    first, where = group[0], _where(group[0].identity)
    found = first.bottleneck
    what = f"{found.name}: {found.means}" if found else "class unknown: not enough is collected of it"
    yield f"GPU{'s' * (len(group) > 1)} {_names(group)}{f' ({where})' if where else ''}  {what}"
    told: set[str] = set()
    yield from _numbers([each.evidence for each in group], told)
    for place, match in enumerate(first.matches):
        yield f"  {match.mode.name} ({match.mode.severity.value})"
        yield from _numbers([each.matches[place].because for each in group], told)
        yield f"    -> {match.mode.advice}"
    if every:
        for name, lacking in first.unknown.items():
            yield f"  {name}: not judged, " + (f"no {', '.join(lacking)}" if lacking else "not watched long enough")


def _names(group: Sequence[Diagnosis]) -> str:
    """0-3, 6; instances and GPUs without an index one by one."""
    runs: list[list[str]] = []
    for each in group:
        name = each.identity.gpu or each.part.uuid
        if each.part.instance:
            runs.append([f"{name} instance {each.part.instance}"])
        elif runs and name.isdecimal() and runs[-1][-1] == str(int(name) - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _numbers(each: Sequence[Mapping[str, float]], told: set[str]) -> Iterator[str]:
    """One line, of what was not told before; of several GPUs the lowest and the highest."""
    shown = []
    for name in dict.fromkeys(name for values in each for name in values):
        if name not in told:
            known = [values[name] for values in each if name in values]
            ends = dict.fromkeys((_shown(name, min(known)), _shown(name, max(known))))
            shown.append(f"{name} {' to '.join(ends)}")
    told.update(*each)
    if shown:
        yield f"    {', '.join(shown)}"


def _shown(name: str, value: float) -> str:
    unit = UNITS.get(name.split("_of_ranks")[0].removesuffix("_max").removesuffix("_min").removesuffix("_stddev"), "")
    if unit == "ratio" or name.startswith("other_ranks"):
        return f"{value:.1%}" if 0.0005 <= abs(value) < 0.1 else f"{value:.0%}"
    if unit.startswith("bytes"):
        return f"{value / 1e9:.2f} GB" + ("/s" if unit.endswith("second") else "")
    return f"{value:.4g}"


UNITS = {signal.name: signal.unit for signal in SIGNALS}
