"""An incident in words and as JSON: what broke, who is hit, what it costs, and what to do first. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.headline import summary
from gpu_exporter.diagnosis.incidents import Diagnoses, Incident, culprits, lost_gpus, of_diagnoses, slowed_down
from gpu_exporter.diagnosis.loss import LEAST_LOSS
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import UNIDENTIFIED
from gpu_exporter.diagnosis.words import LONGEST_NAME, names_of
from gpu_exporter.io.decoding import printable

LONGEST_SENTENCE = 1000
# When a mode was first found on a device, in Unix seconds.
Since = Mapping[tuple[DeviceKey, str], float]


def as_dicts(
    diagnoses: Iterable[Diagnosis], price: float | None = None, since: Since | None = None
) -> list[dict[str, Any]]:
    """Return the incidents of diagnosed GPUs for JSON, the most urgent first. `price` is in USD per GPU-hour."""
    by_device = {diagnosis.device: diagnosis for diagnosis in diagnoses}
    return [_as_dict(incident, by_device, price, since or {}) for incident in of_diagnoses(by_device.values())]


def _as_dict(incident: Incident, diagnoses: Diagnoses, price: float | None, since: Since) -> dict[str, Any]:
    to_blame, hit = culprits(incident, diagnoses), slowed_down(incident, diagnoses)
    lost = lost_gpus((*to_blame, *hit), diagnoses)
    times = [since[device, incident.mode.name] for device in to_blame if (device, incident.mode.name) in since]
    return {
        "cause": incident.mode.name,
        "severity": incident.severity.value,
        "words": sentence(incident, diagnoses),
        "since": min(times, default=None),
        "culprits": [_gpu(diagnoses[device]) for device in to_blame],
        "hit": [_gpu(diagnoses[device]) for device in hit],
        "jobs": list(_jobs(diagnoses[device] for device in (*to_blame, *hit))),
        "explains": list(incident.explained),
        "lost_gpu_hours_per_hour": round(lost, 2),
        **({"lost_usd_per_hour": round(lost * price, 2)} if price is not None else {}),
        "action": incident.mode.action.words,
        "advice": incident.mode.advice,
    }


def sentence(incident: Incident, diagnoses: Diagnoses) -> str:
    """Return what broke and where, as a sentence: GPU 3 on node-7 is throttled because it is too hot."""
    to_blame = [diagnoses[device] for device in culprits(incident, diagnoses)]
    where = places(to_blame)
    words = summary(incident.mode, to_blame[0], where if len(to_blame) == 1 else f"each of {where}")
    return printable(words, LONGEST_SENTENCE)


def places(diagnoses: Sequence[Diagnosis]) -> str:
    """Return GPUs with their nodes: GPU 1 on node-a, GPUs 0-3 on node-b."""
    nodes: dict[str, list[Diagnosis]] = defaultdict(list)
    for diagnosis in diagnoses:
        nodes[printable(diagnosis.identity.node, LONGEST_NAME)].append(diagnosis)
    return ", ".join(f"{names_of(group)} on {node}" if node else names_of(group) for node, group in nodes.items())


def lines(diagnoses: Sequence[Diagnosis], price: float | None = None) -> Iterator[tuple[str, str]]:
    """Yield each incident that has consequences in a few lines, with the value of its severity."""
    by_device = {diagnosis.device: diagnosis for diagnosis in diagnoses}
    for incident in of_diagnoses(diagnoses):
        hit = slowed_down(incident, by_device)
        if not _is_shown(incident, hit):
            continue
        yield f"Incident ({incident.severity.value}): {sentence(incident, by_device)}", incident.severity.value
        yield f"    cause: {incident.mode.name}{_of_effects(incident)}", ""
        if hit:
            yield f"    also hit: {places([by_device[device] for device in hit])}", ""
        lost = lost_gpus((*culprits(incident, by_device), *hit), by_device)
        if lost >= LEAST_LOSS:
            money = f" ({lost * price:,.2f} USD)" if price is not None else ""
            yield f"    costs {lost:.1f} GPU-hours an hour{money}", ""
        yield f"    -> {incident.mode.advice}", ""


def _is_shown(incident: Incident, hit: Sequence[DeviceKey]) -> bool:
    """Return whether an incident says more than its only finding."""
    return bool(incident.effects or hit)


def _of_effects(incident: Incident) -> str:
    return f", which explains {', '.join(incident.explained)}" if incident.effects else ""


def advice(diagnoses: Iterable[Diagnosis]) -> Mapping[tuple[DeviceKey, str], str]:
    """Return what to do about findings instead of what their mode advises, by device and name of the mode.

    The cause of an incident says what to do for its effects, and `lines` has said it for the cause.
    """
    by_device = {diagnosis.device: diagnosis for diagnosis in diagnoses}
    causes: dict[tuple[DeviceKey, str], list[str]] = defaultdict(list)
    said: dict[tuple[DeviceKey, str], str] = {}
    for incident in of_diagnoses(by_device.values()):
        found = [finding.device for finding in incident.causes if finding.device]
        if _is_shown(incident, slowed_down(incident, by_device)):
            said |= {(device, incident.mode.name): "-> see the incident above" for device in found}
        where = places([by_device[device] for device in culprits(incident, by_device)])
        for effect in incident.effects:
            if effect.device:
                causes[effect.device, effect.mode.name].append(f"{incident.mode.name} of {where}")
    return {**said, **{key: f"explained by {' and '.join(names)}" for key, names in causes.items()}}


def _gpu(diagnosis: Diagnosis) -> dict[str, str]:
    device, identity = diagnosis.device, diagnosis.identity
    found = {
        "gpu": identity.gpu,
        "UUID": "" if device.uuid.startswith(UNIDENTIFIED) else device.uuid,
        "GPU_I_ID": device.instance,
        "node": identity.node,
        "pod": identity.pod,
    }
    return {name: text for name, text in found.items() if text}


def _jobs(diagnoses: Iterable[Diagnosis]) -> Iterator[str]:
    names = (
        "/".join(filter(None, (each.identity.namespace, each.identity.workload)))
        for each in diagnoses
        if each.identity.workload
    )
    yield from dict.fromkeys(names)
