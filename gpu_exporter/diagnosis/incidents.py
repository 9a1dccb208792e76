"""Findings on GPUs -> incidents: one for each cause, with the findings that it explains. Pure.

Prometheus derives the same incidents from firing alerts (`alerting/incidents.py`); both read the relation that failure
modes declare (`catalogue/failure_modes/relation.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gpu_exporter.catalogue.bottlenecks import FAKE_LOAD
from gpu_exporter.catalogue.causes import LEAST_LOSS, OWN_CAUSES, Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, HOLD_UP, LINKS, MODES, STALLS, STOPS
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Place, Severity
from gpu_exporter.catalogue.failure_modes.relation import LABELS, is_of_job
from gpu_exporter.catalogue.faults import LOST
from gpu_exporter.diagnosis.diagnose import Diagnosis, rank
from gpu_exporter.diagnosis.scrape import DeviceKey

_ORDER = {mode.name: place for place, mode in enumerate(MODES)}
# A GPU that does not answer while its exporter and its driver do.
# When a mode was first found on a device, in Unix seconds.
Since = Mapping[tuple[DeviceKey, str], float]
# Cluster, namespace and workload.
Job = tuple[str, str, str]
_Claimed = TypeVar("_Claimed", bound=Hashable)
# What explains each mode, and in which place.
_CAUSES = {
    mode.name: tuple((cause, place) for cause, effects in EFFECTS.items() for place in effects.get(mode.name, ()))
    for mode in MODES
}


@dataclass(frozen=True, slots=True)
class PlacedMode:
    """A failure mode that matches, and where: cluster, node, UUID, namespace and workload, as labels of its alert."""

    mode: FailureMode
    labels: Mapping[str, str]
    device: DeviceKey | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause: where it is found, and the findings that follow from it."""

    mode: FailureMode
    causes: tuple[PlacedMode, ...]
    effects: tuple[PlacedMode, ...] = ()

    @property
    def severity(self) -> Severity:
        """Return the severity of the most urgent finding."""
        return min((each.mode.severity for each in (*self.causes, *self.effects)), key=lambda severity: severity.place)

    @property
    def key(self) -> tuple[str, ...]:
        """Return what its causes share, also with those that come later: the mode, and the job or the node."""
        return _key(self.causes[0])

    @property
    def explained(self) -> tuple[str, ...]:
        """Return the names of the modes that follow, in triage order."""
        return tuple(sorted({each.mode.name for each in self.effects}, key=_ORDER.__getitem__))


def incidents(findings: Sequence[PlacedMode]) -> tuple[Incident, ...]:
    """Return one incident for each cause, the most urgent first. Each finding is in at least one of them.

    A cause is a finding that no other one explains. The same cause on several GPUs of a node, or of a job that it slows
    down, is one incident.
    """
    at = _by_place(findings)
    explaining = {id(each): list(_explaining(each, at)) for each in findings}
    causes: dict[tuple[str, ...], list[PlacedMode]] = defaultdict(list)
    effects: dict[tuple[str, ...], list[PlacedMode]] = defaultdict(list)
    for finding in findings:
        if not explaining[id(finding)]:
            causes[_key(finding)].append(finding)
            continue
        for key in dict.fromkeys(map(_key, _first(finding, explaining))):
            effects[key].append(finding)
    found = [Incident(each[0].mode, tuple(each), tuple(effects[key])) for key, each in causes.items()]
    return tuple(sorted(found, key=lambda each: (each.severity.place, _ORDER[each.mode.name])))


def _first(finding: PlacedMode, explaining: Mapping[int, Sequence[PlacedMode]]) -> Iterator[PlacedMode]:
    """Yield the causes behind a finding: what explains it, or explains that, and is explained by nothing."""
    seen = {id(finding): finding}
    for each in (queue := [finding]):  # grows meanwhile
        further = {id(other): other for other in explaining[id(each)] if id(other) not in seen}
        seen |= further
        queue += further.values()
        if not explaining[id(each)]:
            yield each


def _key(cause: PlacedMode) -> tuple[str, ...]:
    """Return what the causes of one incident share: the mode with its severity, and a job that it slows down, otherwise
    the node."""
    place = (
        (is_of_job(cause.mode) and _labels(cause, Place.JOB)) or _labels(cause, Place.NODE) or _labels(cause, Place.GPU)
    )
    return (cause.mode.name, cause.mode.severity.value, *place)


_Index = Mapping[tuple[str, Place, tuple[str, ...]], Sequence[PlacedMode]]


def _by_place(findings: Iterable[PlacedMode]) -> _Index:
    """Return the findings by mode and place, so that no finding is compared with all others of a fleet."""
    at: dict[tuple[str, Place, tuple[str, ...]], list[PlacedMode]] = defaultdict(list)
    for finding in findings:
        for place in Place:
            if labels := _labels(finding, place):
                at[finding.mode.name, place, labels].append(finding)
    return at


def _labels(finding: PlacedMode, place: Place) -> tuple[str, ...]:
    """Return the labels that findings in the same place share; none if it is unknown where this one is."""
    labels = LABELS[place]
    if labels and not finding.labels.get(labels[-1]):
        return ()
    return tuple(finding.labels.get(label, "") for label in ("cluster", *labels))


def _explaining(finding: PlacedMode, at: _Index) -> Iterator[PlacedMode]:
    """Yield the findings that explain one."""
    for cause, place in _CAUSES[finding.mode.name]:
        yield from at.get((cause, place, _labels(finding, place)), ())


@dataclass(frozen=True, slots=True)
class DiagnosedIncident:
    """An incident with the GPUs that cause it, and the others that it hits: its effects, and ranks that wait for it.

    `losses` is the GPU time that each of these loses by it: at most 1, of an instance its share of the GPU, and 0 if it
    counts for more severe incidents. `since` is when it began, in Unix seconds; None if that is unknown.
    """

    incident: Incident
    culprits: tuple[Diagnosis, ...]
    hit: tuple[Diagnosis, ...]
    losses: Mapping[DeviceKey, float] = field(default_factory=dict)
    since: float | None = None

    @property
    def lost_gpus(self) -> float:
        """Return how many GPU-hours these GPUs lose per hour: no time counts for two incidents."""
        return sum(self.losses.values())


def of_diagnoses(diagnoses: Iterable[Diagnosis], since: Since | None = None) -> tuple[DiagnosedIncident, ...]:
    """Return the incidents of diagnosed GPUs in the order of `urgency`."""
    by_device: dict[DeviceKey, Diagnosis] = {}
    waiting: dict[Job, list[DeviceKey]] = defaultdict(list)
    findings: list[PlacedMode] = []
    for diagnosis in diagnoses:
        device = diagnosis.device
        by_device[device] = diagnosis
        findings += _findings(diagnosis)
        waits = diagnosis.waits and diagnosis.shares.get(Cause.PEERS, 0.0) >= LEAST_LOSS and not _is_fake(diagnosis)
        if diagnosis.identity.workload and waits:
            waiting[_job(diagnosis)].append(device)
    found = incidents(findings)
    blamed = [_culprits(incident, by_device) for incident in found]
    stalled = {_job(by_device[each.device]) for each in findings if each.device and each.mode.name in STALLS}
    held_up = _held_up(found, blamed, stalled)
    diagnosed = (
        _diagnosed(*each, by_device, waiting, since or {})
        for each in zip(found, blamed, held_up, _losses(found, held_up, by_device, waiting), strict=True)
    )
    return tuple(sorted(diagnosed, key=urgency))


def urgency(found: DiagnosedIncident) -> tuple[tuple[int, float], float, int]:
    """Return the place of an incident among others: by severity, then what costs more, then what began earlier."""
    incident, since = found.incident, found.since if found.since is not None else float("inf")
    return rank(incident.severity, found.lost_gpus), since, _ORDER[incident.mode.name]


def order_of_gpus(found: Sequence[DiagnosedIncident]) -> Callable[[Diagnosis], tuple[int, tuple[int, float]]]:
    """Return the key that sorts GPUs as the incidents that they cause, then the others, the worst first."""
    places = {gpu.device: place for place, each in reversed(list(enumerate(found))) for gpu in each.culprits}
    return lambda diagnosis: (places.get(diagnosis.device, len(found)), diagnosis.rank)


def _findings(diagnosis: Diagnosis) -> Iterator[PlacedMode]:
    device, identity = diagnosis.device, diagnosis.identity
    labels = {
        "cluster": device.cluster,
        "node": identity.node,
        "UUID": device.uuid,
        "namespace": identity.namespace,
        "workload": identity.workload,
    }
    yield from (PlacedMode(match.mode, labels, device) for match in diagnosis.matches)


def _job(diagnosis: Diagnosis) -> Job:
    return diagnosis.device.cluster, diagnosis.identity.namespace, diagnosis.identity.workload


def _culprits(incident: Incident, by_device: Mapping[DeviceKey, Diagnosis]) -> list[Diagnosis]:
    """Return the GPUs that cause an incident: of ranks that all are in a stall, those that wait for no other."""
    causes = [by_device[finding.device] for finding in incident.causes if finding.device]
    if incident.mode.cause is Cause.PEERS:
        return [diagnosis for diagnosis in causes if not _waits(diagnosis)] or causes
    return causes


def _held_up(
    found: Sequence[Incident], blamed: Sequence[Sequence[Diagnosis]], stalled: Collection[Job]
) -> list[set[Job]]:
    """Return the jobs whose waiting ranks wait for each incident.

    A GPU that waits for others itself holds up nobody, unless its link is slow: then all ranks wait for that one,
    provided that nothing else holds up their job. What stops a job holds up only one of those that stand still. Of
    several incidents, the ranks wait for the most severe: for each of them, if these are several.
    """
    jobs: list[set[Job]] = [set() for _ in found]
    taken: set[Job] = set()
    for place, (incident, culprits) in enumerate(zip(found, blamed, strict=True)):
        mode = incident.mode
        if mode.name in HOLD_UP and mode.name not in LINKS:
            always = mode.cause is Cause.PEERS
            jobs[place] = {_job(each) for each in culprits if each.identity.workload and (always or not _waits(each))}
            jobs[place] &= set(stalled) if mode.name in STOPS else jobs[place]
            taken |= jobs[place] if mode.severity is not Severity.INFO else set()
    for place, (incident, culprits) in enumerate(zip(found, blamed, strict=True)):
        if incident.mode.name in LINKS:
            jobs[place] = {_job(each) for each in culprits if each.identity.workload} - taken
    places = _most_severe(found, jobs)
    return [{job for job in those if place in places[job]} for place, those in enumerate(jobs)]


def _most_severe(found: Sequence[Incident], claims: Iterable[Iterable[_Claimed]]) -> Mapping[_Claimed, Sequence[int]]:
    """Return, for each GPU or job that incidents claim, the places of the most severe of these incidents."""
    places: dict[_Claimed, list[int]] = defaultdict(list)
    for place, claimed in enumerate(claims):
        for each in claimed:
            places[each].append(place)
    urgencies = [incident.mode.severity.place for incident in found]
    return {
        each: [place for place in of if urgencies[place] == min(urgencies[other] for other in of)]
        for each, of in places.items()
    }


def _losses(
    found: Sequence[Incident],
    held_up: Sequence[Collection[Job]],
    by_device: Mapping[DeviceKey, Diagnosis],
    waiting: Mapping[Job, Sequence[DeviceKey]],
) -> list[dict[DeviceKey, float]]:
    """Return the GPU time that each incident costs, by GPU.

    What a GPU wastes belongs to the most severe of the incidents that it causes, in equal parts if these are several,
    and so does the time in which ranks wait for several incidents. The costs of all incidents never exceed the waste.
    """
    caused = [dict.fromkeys(finding.device for finding in incident.causes if finding.device) for incident in found]
    of_device, of_job = _most_severe(found, caused), _most_severe(found, held_up)
    losses = [dict.fromkeys(devices, 0.0) for devices in caused]
    for device, places in of_device.items():
        for place in places:
            losses[place][device] = _own_waste(by_device[device]) / len(places)
    for job, places in of_job.items():
        for place in places:
            for device in waiting.get(job, ()):
                time = by_device[device].gpu_time[Cause.PEERS] / len(places)
                losses[place][device] = losses[place].get(device, 0.0) + time
    return losses


def _diagnosed(
    incident: Incident,
    culprits: Sequence[Diagnosis],
    held_up: Collection[Job],
    losses: Mapping[DeviceKey, float],
    by_device: Mapping[DeviceKey, Diagnosis],
    waiting: Mapping[Job, Sequence[DeviceKey]],
    since: Since,
) -> DiagnosedIncident:
    """Return an incident with its GPUs. A rank is hit only by what it waits for."""
    causes = [finding.device for finding in incident.causes if finding.device]
    hit = [*causes]
    for effect in incident.effects:
        if effect.device and (effect.mode.cause is not Cause.PEERS or _job(by_device[effect.device]) in held_up):
            hit.append(effect.device)
    for job in held_up:
        hit += waiting.get(job, ())
    others = dict.fromkeys(hit).keys() - {diagnosis.device for diagnosis in culprits}
    began = [since[key] for diagnosis in culprits if (key := (diagnosis.device, incident.mode.name)) in since]
    return DiagnosedIncident(
        incident,
        tuple(culprits),
        tuple(by_device[device] for device in dict.fromkeys(hit) if device in others),
        losses,
        min(began, default=None),
    )


def _own_waste(diagnosis: Diagnosis) -> float:
    """Return the GPU time that a GPU or instance wastes, without waiting for other ranks: all if it is lost."""
    if diagnosis.is_down and any(match.mode.name == LOST for match in diagnosis.matches):
        return 1.0
    if _is_fake(diagnosis):
        return diagnosis.identity.share
    return sum(diagnosis.gpu_time.get(cause, 0.0) for cause in OWN_CAUSES)


def _is_fake(diagnosis: Diagnosis) -> bool:
    """Return whether a GPU only seems to work: then all of its time is its own waste, also that of waiting."""
    return diagnosis.bottleneck is not None and diagnosis.bottleneck.name == FAKE_LOAD


def _waits(diagnosis: Diagnosis) -> bool:
    return diagnosis.bottleneck is not None and diagnosis.bottleneck.cause is Cause.PEERS
