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
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Place, Severity
from gpu_exporter.catalogue.failure_modes.relation import LABELS, is_of_job
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.loss import LEAST_LOSS, lost
from gpu_exporter.diagnosis.scrape import DeviceKey

_ORDER = {mode.name: place for place, mode in enumerate(MODES)}
_SEVERITIES = list(Severity)
# The ranks of a job wait for the cause of what explains this mode. A job that stands still has its own findings.
WAITS_FOR_ALL = "GpuCommunicationBound"
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
        return min((each.mode.severity for each in (*self.causes, *self.effects)), key=_SEVERITIES.index)

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
    """An incident with the GPUs that cause it, and the others that it hits: its effects, and ranks that wait for it."""

    incident: Incident
    culprits: tuple[Diagnosis, ...]
    hit: tuple[Diagnosis, ...]

    @property
    def lost_gpus(self) -> float:
        """Return how many GPU-hours these GPUs lose per hour."""
        return lost_gpus([self])


def lost_gpus(found: Iterable[DiagnosedIncident]) -> float:
    """Return how many GPU-hours the GPUs of incidents lose per hour: a GPU that is in several counts once.

    One that does not answer loses all of its time.
    """
    gpus = {gpu.device: gpu for each in found for gpu in (*each.culprits, *each.hit)}
    return sum(1.0 if gpu.is_down else lost(gpu.shares) for gpu in gpus.values())


def of_diagnoses(diagnoses: Iterable[Diagnosis]) -> tuple[DiagnosedIncident, ...]:
    """Return the incidents of diagnosed GPUs, the most urgent first."""
    by_device: dict[DeviceKey, Diagnosis] = {}
    waiting: dict[tuple[str, ...], list[DeviceKey]] = defaultdict(list)
    findings: list[PlacedMode] = []
    for diagnosis in diagnoses:
        device = diagnosis.device
        by_device[device] = diagnosis
        findings += _findings(diagnosis)
        if diagnosis.identity.workload and diagnosis.shares.get(Cause.PEERS, 0.0) >= LEAST_LOSS:
            waiting[_job(diagnosis)].append(device)
    return tuple(_diagnosed(incident, by_device, waiting) for incident in incidents(findings))


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


def _job(diagnosis: Diagnosis) -> tuple[str, ...]:
    return diagnosis.device.cluster, diagnosis.identity.namespace, diagnosis.identity.workload


def _diagnosed(
    incident: Incident,
    by_device: Mapping[DeviceKey, Diagnosis],
    waiting: Mapping[tuple[str, ...], Sequence[DeviceKey]],
) -> DiagnosedIncident:
    """Return an incident with its GPUs. Of ranks that all are in a stall, those that wait for no other cause it."""
    causes = [finding.device for finding in incident.causes if finding.device]
    culprits = causes
    if incident.mode.cause is Cause.PEERS:
        culprits = [device for device in causes if not _waits(by_device[device])] or causes
    hit = [*causes, *(finding.device for finding in incident.effects if finding.device)]
    if Place.JOB in EFFECTS[incident.mode.name].get(WAITS_FOR_ALL, ()):
        for job in dict.fromkeys(_job(by_device[device]) for device in causes):
            hit += waiting.get(job, ())
    others = dict.fromkeys(hit).keys() - set(culprits)
    return DiagnosedIncident(
        incident,
        tuple(by_device[device] for device in culprits),
        tuple(by_device[device] for device in dict.fromkeys(hit) if device in others),
    )


def _waits(diagnosis: Diagnosis) -> bool:
    return diagnosis.bottleneck is not None and diagnosis.bottleneck.cause is Cause.PEERS
