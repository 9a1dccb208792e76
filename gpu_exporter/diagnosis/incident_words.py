"""An incident in words and as JSON: what broke, who is hit, what it costs, and what to do first. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, Severity
from gpu_exporter.catalogue.faults import DOWN, LOST
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.headline import repair, summary
from gpu_exporter.diagnosis.incidents import DiagnosedIncident
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import uuid_of
from gpu_exporter.diagnosis.words import cost, explaining, hit_words, names_of, places
from gpu_exporter.io.decoding import printable

LONGEST_SENTENCE = 1000
# What the processes on GPUs do and where in their code, in lines, by UUID; only for those who may see profiles.
Code = Mapping[str, Sequence[str]]
NO_CODE: Code = {}
# Causes that may be in the code of a job: those of faults and of networks are not.
_IN_CODE = frozenset(mode.name for mode in MODES if mode.domain in (Domain.DISTRIBUTED, Domain.BOTTLENECK, Domain.COST))


def as_dicts(found: Iterable[DiagnosedIncident], price: float | None = None) -> list[dict[str, Any]]:
    """Return incidents for JSON. `price` is in USD per GPU-hour."""
    return [_as_dict(each, price) for each in found]


def total_cost(found: Iterable[DiagnosedIncident], price: float | None = None) -> dict[str, float]:
    """Return for JSON what the incidents that need attention cost per hour together."""
    return _cost([each for each in found if each.incident.severity is not Severity.INFO], price)


def _cost(found: Iterable[DiagnosedIncident], price: float | None) -> dict[str, float]:
    lost = sum(each.lost_gpus for each in found)
    in_money = {"lost_usd_per_hour": round(lost * price, 2)} if price is not None else {}
    return {"lost_gpu_hours_per_hour": round(lost, 2), **in_money}


def _as_dict(found: DiagnosedIncident, price: float | None) -> dict[str, Any]:
    incident = found.incident
    return {
        "cause": incident.mode.name,
        "severity": incident.severity.value,
        "words": sentence(found),
        "since": found.since,
        "culprits": [_gpu(diagnosis) for diagnosis in found.culprits],
        "hit": [_gpu(diagnosis) for diagnosis in found.hit],
        "jobs": list(_jobs((*found.culprits, *found.hit))),
        "explains": list(incident.explained),
        **_cost([found], price),
        "action": repair(incident.mode, *found.culprits).words,
        "advice": incident.mode.advice,
    }


def with_code(found: Iterable[Mapping[str, Any]], code: Code) -> list[dict[str, Any]]:
    """Return incidents for JSON with what the processes on the GPUs that cause them do, where that is known."""
    lines_of = ((each, _code(each["cause"], (gpu.get("UUID", "") for gpu in each["culprits"]), code)) for each in found)
    return [{**each, "code": of_incident} if of_incident else dict(each) for each, of_incident in lines_of]


def _code(cause: str, uuids: Iterable[str], code: Code) -> list[str]:
    return [line for uuid in uuids for line in code.get(uuid, ())] if cause in _IN_CODE else []


def sentence(found: DiagnosedIncident) -> str:
    """Return what broke and where, as a sentence: GPU 3 on node-7 does not answer: it fell off the bus."""
    where = places_of(found.culprits)
    subject = where if len(found.culprits) == 1 else f"each of {where}"
    singled_out = len(found.culprits) < len(found.incident.causes)
    words = summary(found.incident.mode, *found.culprits, gpu=subject, singled_out=singled_out)
    reasons = {culprit.identity.down for culprit in found.culprits}
    if found.incident.mode.name == LOST and len(reasons) == 1:
        words = silent(subject, *(DOWN[reason].words for reason in reasons if reason in DOWN))
    return printable(words, LONGEST_SENTENCE)


def silent(gpu: str, why: str = "") -> str:
    """Return that a GPU does not answer, and why if that is known, as the page, `top` and reports say it."""
    known = why.removeprefix("it does not answer").removeprefix(", and ")
    return f"{gpu} does not answer: {known}" if known else f"{gpu} does not answer"


def hit_by(found: Iterable[DiagnosedIncident]) -> Mapping[DeviceKey, str]:
    """Return for each GPU that needs attention only because of others: hit by GPU 3, of the first of several."""
    urgent = [each for each in found if each.incident.severity is not Severity.INFO]
    causes = {diagnosis.device for each in urgent for diagnosis in each.culprits}
    words: dict[DeviceKey, str] = {}
    for each in urgent:
        nodes = {diagnosis.identity.node for diagnosis in each.culprits}
        for diagnosis in each.hit:
            if diagnosis.device not in causes:
                here = nodes == {diagnosis.identity.node}
                words.setdefault(diagnosis.device, f"hit by {(names_of if here else places_of)(each.culprits)}")
    return words


def lines(
    found: Iterable[DiagnosedIncident], price: float | None = None, code: Code = NO_CODE
) -> Iterator[tuple[str, str]]:
    """Yield each incident that has consequences in a few lines, with the value of its severity."""
    for each in filter(_is_shown, found):
        incident = each.incident
        yield f"Incident ({incident.severity.value}): {sentence(each)}", incident.severity.value
        yield from ((f"    {text}", "") for text in facts(each, price, code))
        yield f"    -> {incident.mode.advice}", ""


def facts(found: DiagnosedIncident, price: float | None = None, code: Code = NO_CODE) -> Iterator[str]:
    """Yield the cause of an incident with what it explains, whom it hits, what it costs, and its lines of code."""
    incident = found.incident
    yield explaining(incident.mode.name, incident.explained)
    if found.hit:
        yield hit_words(places_of(found.hit))
    if text := cost(found.lost_gpus, price):
        yield text
    yield from _code(incident.mode.name, (diagnosis.device.uuid for diagnosis in found.culprits), code)


def places_of(diagnoses: Iterable[Diagnosis]) -> str:
    """Return GPUs with their nodes."""
    return places(
        (each.identity.node, each.identity.gpu or each.device.uuid, each.device.instance) for each in diagnoses
    )


def _is_shown(found: DiagnosedIncident) -> bool:
    """Return whether an incident says more than its only finding."""
    return bool(found.incident.effects or found.hit)


def advice(found: Sequence[DiagnosedIncident]) -> Mapping[tuple[DeviceKey, str], str]:
    """Return what to do about findings instead of what their mode advises, by device and name of the mode.

    The cause of an incident says what to do for its effects, and `lines` has said it for the cause.
    """
    shown = [each.incident for each in found if _is_shown(each)]
    causes = [(cause.device, each.mode.name) for each in shown for cause in each.causes if cause.device]
    return {**dict.fromkeys(causes, "-> see the incident above"), **explanations(found)}


def explanations(found: Iterable[DiagnosedIncident]) -> Mapping[tuple[DeviceKey, str], str]:
    """Return what explains a finding, by device and name of the mode: explained by GpuLost of GPU 3 on node-7."""
    explained: dict[tuple[DeviceKey, str], list[str]] = defaultdict(list)
    for each in found:
        cause = f"{each.incident.mode.name} of {places_of(each.culprits)}"
        for effect in each.incident.effects:
            if effect.device:
                explained[effect.device, effect.mode.name].append(cause)
    return {key: f"explained by {' and '.join(causes)}" for key, causes in explained.items()}


def _gpu(diagnosis: Diagnosis) -> dict[str, str]:
    device, identity = diagnosis.device, diagnosis.identity
    found = {
        "gpu": identity.gpu,
        "UUID": uuid_of(device),
        "GPU_I_ID": device.instance,
        "node": identity.node,
        "pod": identity.pod,
    }
    return {name: text for name, text in found.items() if text}


def _jobs(diagnoses: Iterable[Diagnosis]) -> Iterator[str]:
    yield from dict.fromkeys(each.identity.job for each in diagnoses if each.identity.job_name)
