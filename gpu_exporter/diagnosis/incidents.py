"""Findings on GPUs -> incidents: one for each cause, with the findings that it explains. Pure.

Prometheus derives the same incidents from firing alerts (`alerting/incidents.py`); both read the relation that failure
modes declare (`catalogue/failure_modes/relation.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Scope, Severity
from gpu_exporter.catalogue.failure_modes.relation import LABELS
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.loss import LEAST_LOSS, lost
from gpu_exporter.diagnosis.scrape import DeviceKey

_ORDER = {mode.name: place for place, mode in enumerate(MODES)}
_SEVERITIES = list(Severity)
# The ranks of a job wait for the cause of what explains this mode. A job that stands still has its own findings.
WAITS_FOR_ALL = "GpuCommunicationBound"
Diagnoses = Mapping[DeviceKey, Diagnosis]


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
        return min((each.mode.severity for each in (*self.causes, *self.effects)), key=_SEVERITIES.index)

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
    return tuple(sorted(found, key=lambda each: (_SEVERITIES.index(each.severity), _ORDER[each.mode.name])))


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
    """Return what the causes of one incident share: the mode, and a job that it slows down, otherwise the node."""
    of_job = cause.mode.scope is not Scope.DEVICE or cause.mode.domain not in (Domain.HEALTH, Domain.NETWORK)
    place = (of_job and _labels(cause, Place.JOB)) or _labels(cause, Place.NODE) or _labels(cause, Place.GPU)
    return (cause.mode.name, *place)


_Places = Mapping[tuple[Place, tuple[str, ...]], Sequence[PlacedMode]]


def _by_place(findings: Iterable[PlacedMode]) -> _Places:
    at: dict[tuple[Place, tuple[str, ...]], list[PlacedMode]] = defaultdict(list)
    for finding in findings:
        for place in Place:
            if key := _labels(finding, place):
                at[place, key].append(finding)
    return at


def _labels(finding: PlacedMode, place: Place) -> tuple[str, ...]:
    """Return the labels that findings in the same place share; none if it is unknown where this one is."""
    labels = LABELS[place]
    if labels and not finding.labels.get(labels[-1]):
        return ()
    return tuple(finding.labels.get(label, "") for label in ("cluster", *labels))


def _explaining(finding: PlacedMode, at: _Places) -> Iterable[PlacedMode]:
    """Yield the findings that explain one."""
    for place in Place:
        if key := _labels(finding, place):
            for other in at[place, key]:
                if place in EFFECTS[other.mode.name].get(finding.mode.name, ()):
                    yield other


def of_diagnoses(diagnoses: Iterable[Diagnosis]) -> tuple[Incident, ...]:
    """Return the incidents of diagnosed GPUs."""
    return incidents(
        [
            PlacedMode(match.mode, _where(diagnosis), diagnosis.device)
            for diagnosis in diagnoses
            for match in diagnosis.matches
        ]
    )


def _where(diagnosis: Diagnosis) -> Mapping[str, str]:
    device, identity = diagnosis.device, diagnosis.identity
    return {
        "cluster": device.cluster,
        "node": identity.node,
        "UUID": device.uuid,
        "namespace": identity.namespace,
        "workload": identity.workload,
    }


def culprits(incident: Incident, diagnoses: Diagnoses) -> tuple[DeviceKey, ...]:
    """Return the GPUs that cause an incident: of ranks that all are in a stall, those that wait for no other."""
    devices = [finding.device for finding in incident.causes if finding.device]
    if incident.mode.cause is Cause.PEERS:
        return tuple(device for device in devices if not _waits(diagnoses[device])) or tuple(devices)
    return tuple(devices)


def _waits(diagnosis: Diagnosis) -> bool:
    return diagnosis.bottleneck is not None and diagnosis.bottleneck.cause is Cause.PEERS


def slowed_down(incident: Incident, diagnoses: Diagnoses) -> tuple[DeviceKey, ...]:
    """Return the GPUs that an incident hits besides those that cause it: its effects, and ranks that wait for it."""
    found = [finding.device for finding in (*incident.causes, *incident.effects) if finding.device]
    if Place.JOB in EFFECTS[incident.mode.name].get(WAITS_FOR_ALL, ()):
        jobs = {_labels(finding, Place.JOB) for finding in incident.causes} - {()}
        found += [
            device
            for device, diagnosis in diagnoses.items()
            if diagnosis.shares.get(Cause.PEERS, 0.0) >= LEAST_LOSS
            and _labels(PlacedMode(incident.mode, _where(diagnosis)), Place.JOB) in jobs
        ]
    to_blame = culprits(incident, diagnoses)
    return tuple(each for each in dict.fromkeys(found) if each not in to_blame)


def lost_gpus(devices: Iterable[DeviceKey], diagnoses: Diagnoses) -> float:
    """Return how many GPU-hours these lose per hour. A GPU that does not answer loses all of its time."""
    known = [diagnoses[device] for device in devices if device in diagnoses]
    return sum(1.0 if diagnosis.is_down else lost(diagnosis.shares) for diagnosis in known)
