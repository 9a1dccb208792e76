"""What the live page knows of one node: the diagnosis of its GPUs, their last hour, and both as JSON.

The measurements of each GPU come from a snapshot, without the window of signals: the page needs them each second.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.diagnosis import loss
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.headline import findings, headline, headroom, not_judged
from gpu_exporter.diagnosis.incident_words import Code, with_code
from gpu_exporter.diagnosis.kept_history import KeptHistory
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.measurements import MEASUREMENTS
from gpu_exporter.diagnosis.rolling import Current, RankState, Watch
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.words import names_of
from gpu_exporter.health import fitness
from gpu_exporter.live_page.history import NO_CLASS, POINTS, STEP_SECONDS, LiveHistory
from gpu_exporter.live_page.summary import explained_jobs, id_of, summarise, waiting_words
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.node_answer import VERSION
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Action, Verdict
from gpu_exporter.reports.numbers import capitalised, first_of
from gpu_exporter.version import __version__


@dataclass(frozen=True, slots=True)
class MeasurementSource:
    """The metrics whose sum, times `scale`, is a measurement; `limit` are those with its maximum, the best first."""

    metrics: tuple[Metric, ...]
    scale: float = 1.0
    limit: tuple[Metric, ...] = ()


SOURCES: Mapping[str, MeasurementSource] = {
    "engine_active": MeasurementSource((m.GR_ENGINE_ACTIVE,)),
    "sm_active": MeasurementSource((m.SM_ACTIVE,)),
    "tensor_active": MeasurementSource((m.TENSOR_ACTIVE,)),
    "dram_active": MeasurementSource((m.DRAM_ACTIVE,)),
    "nvlink": MeasurementSource((m.NVLINK_TX, m.NVLINK_RX)),
    "pcie": MeasurementSource((m.PCIE_TX, m.PCIE_RX)),
    "power": MeasurementSource((m.POWER,), limit=(m.POWER_LIMIT, m.POWER_SET)),
    "temperature": MeasurementSource((m.GPU_TEMP,), limit=(m.SLOWDOWN_TEMP,)),
    "memory_used": MeasurementSource((m.FB_USED,), m.MIB, limit=(m.FB_TOTAL,)),
}
NAMES = tuple(each.name for each in MEASUREMENTS)
PROCESS_METRICS = (m.PROCESS_MEMORY, m.PROCESS_SM, m.HOST_PROCESS)
_READ = frozenset(metric for each in SOURCES.values() for metric in (*each.metrics, *each.limit))


def described() -> list[dict[str, Any]]:
    """Return the measurements for JSON."""
    return [
        {
            "name": each.name,
            "words": capitalised(each.words),
            "unit": each.unit,
            "max": 1.0 if each.unit == "ratio" else None,
        }
        for each in MEASUREMENTS
    ]


@dataclass(slots=True)
class Numbers:
    """The numbers of one GPU or MIG instance at one moment, with their limits, its processes and gaps."""

    profile: str = ""
    raw: dict[Metric, float] = field(default_factory=dict)
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, float]:
        """Return the measurements that were read, by name."""
        found = {}
        for name, source in SOURCES.items():
            parts = [self.raw[metric] for metric in source.metrics if metric in self.raw]
            if len(parts) == len(source.metrics):
                found[name] = sum(parts) * source.scale
        return found

    def limits(self) -> dict[str, float]:
        """Return the known limits of measurements, by name."""
        found = {}
        for name, source in SOURCES.items():
            known = [self.raw[metric] for metric in source.limit if metric in self.raw]
            if known:
                found[name] = known[0] * source.scale
        return found


def numbers(snapshot: Snapshot, *, all_details: bool = True) -> Mapping[tuple[str, str], Numbers]:
    """Return the numbers of a snapshot by UUID and MIG instance ("": the whole GPU).

    Without `all_details`, processes and unsupported metrics are left out.
    """
    found: dict[tuple[str, str], Numbers] = {}
    for series, value in snapshot.samples:
        gpu, metric = series.gpu, series.metric
        if gpu is None:
            continue
        if metric in _READ:
            labels = dict(series.labels) if metric.per_instance else {}
            device = (gpu.uuid, labels.get("GPU_I_ID", ""))
            if device not in found:
                found[device] = Numbers(labels.get("GPU_I_PROFILE", ""))
            found[device].raw[metric] = value
        elif all_details and metric in PROCESS_METRICS:
            labels = dict(series.labels)
            of_gpu = found.setdefault((gpu.uuid, ""), Numbers())
            process = of_gpu.processes.setdefault(labels.get("pid", ""), {})
            process.update({name: text for name, text in labels.items() if text})
            if metric is m.PROCESS_MEMORY:
                process["memory"] = value
            elif metric is m.PROCESS_SM:
                process["sm"] = value
        elif all_details and metric is m.SUPPORTED:
            labels = dict(series.labels)
            found.setdefault((gpu.uuid, ""), Numbers()).unsupported[labels["metric"]] = labels.get("reason", "")
    return found


if TYPE_CHECKING:
    from gpu_exporter.events.event_log import EventLog

CLASSES = {each.name: place for place, each in enumerate(BOTTLENECKS)}
# The last XIDs of a GPU that its entry has.
MOST_XIDS = 20
# Incidents that have ended, on the page.
MOST_EARLIER = 10
# A page that reads slowly has a copy of the newest event in memory.
MOST_EVENT_BYTES = 2 << 20
TOO_MANY = "too many processes and owners for this page: see /api/v1/gpus"


class LiveMonitor:
    """Follows the snapshots of one node. One thread calls `take`, `watch` and `judge`; any may call the rest."""

    def __init__(
        self,
        name: str,
        interval: float,
        events: EventLog | None = None,
        kept: KeptHistory | None = None,
        *,
        mask_names: bool = False,
    ) -> None:
        self.name, self._interval, self._events = name, interval, events
        self.kept = kept or KeptHistory()
        self._names = {True: DiagnosisNames(mask=False), False: DiagnosisNames(mask=mask_names)}
        # The diagnosis of which names were replaced last, and the result.
        self._masked = (Current(), Current())
        # Returns the id of the newest profile: empty if there is none yet, None if profiles are off.
        self.newest_profile: Callable[[], str | None] = lambda: None
        # Returns what the processes on GPUs (index and UUID) do.
        self.code_of: Callable[[Iterable[tuple[str, str]]], Code] = lambda gpus: {}
        self._watch, self.history = Watch(), LiveHistory(NAMES)
        self._verdicts: dict[str, tuple[str, float]] = {}
        # Of the history, which one thread writes while another reads it.
        self._lock = threading.Lock()
        # When the last answer with the history began, and the answer: many pages ask within the same ten seconds.
        self._hour = (0.0, b"")

    @property
    def current(self) -> Current:
        """The diagnosis that was made last."""
        return self._watch.current

    def take(self, snapshot: Snapshot) -> bool:
        """Add a snapshot to the history; return whether it completed a point of it."""
        for verdict in snapshot.verdicts:
            gpu, health = id_of(verdict.gpu.uuid, "", verdict.gpu.index), verdict.health.value
            if self._verdicts.get(gpu, ("",))[0] != health:
                self._verdicts[gpu] = (health, snapshot.at)
        up = {status.gpu.uuid: status.gpu.index for status in snapshot.gpus if status.up}
        points = {
            id_of(uuid, instance, up[uuid]): of_device.values()
            for (uuid, instance), of_device in numbers(snapshot, all_details=False).items()
            if uuid in up
        }
        classes = {
            id_of(device.uuid, device.instance, 0): CLASSES[diagnosis.bottleneck.name]
            for device, diagnosis in self.current.diagnoses.items()
            if diagnosis.bottleneck
        }
        with self._lock:
            complete = self.history.take(snapshot.at, points, classes)
            if complete:
                self._hour = (0.0, b"")
        return complete

    def watch(self, snapshot: Snapshot) -> None:
        """Add a snapshot to those that the next diagnosis is made of."""
        self._watch.take(snapshot)

    def judge(self, snapshot: Snapshot) -> None:
        """Make a new diagnosis, after the last snapshot was watched."""
        self._watch.judge(snapshot)
        self.kept.take(self.current, snapshot)

    def past_json(self, since: float, until: float, *, trusted: bool = False) -> bytes:
        """Return the incidents of a time, and what GPUs did for jobs, as JSON. Raises OSError, NewerStateError."""
        return self.kept.answer(self.name, since, until, self._names[trusted])

    def _shown(self, *, trusted: bool) -> Current:
        """Return the diagnosis that was made last, for a client that may see profiles, or may not."""
        current = self.current
        if trusted:
            gpus = ((each.identity.gpu, each.device.uuid) for each in current.diagnoses.values())
            return replace(current, incidents=with_code(current.incidents, self.code_of(gpus)))
        names = self._names[trusted]
        if not names.mask:
            return current
        if self._masked[0] is not current:
            self._masked = current, current.masked(names)
        return self._masked[1]

    def answer(self, snapshot: Snapshot, problem: str = "", *, trusted: bool = False) -> dict[str, Any]:
        """Return everything about the GPUs of a snapshot for JSON. `problem` is why the snapshot is old.

        `trusted` clients may see profiles, so they get lines of code, and names that are masked for others.
        """
        current = self._shown(trusted=trusted)
        entries = self._entries(snapshot, current, self._names[trusted])
        jobs, missing = _jobs(current), fitness.missing(snapshot)
        return {
            "at": snapshot.at,
            "source": snapshot.source,
            "live": snapshot.live,
            "missing": missing,
            "version": __version__,
            "node": self.name,
            "interval": self._interval,
            "banner": snapshot.banner,
            "problem": problem,
            "judged_at": current.at or None,
            "measurements": described(),
            "classes": [{"name": each.name, "words": each.means, "colour": each.colour} for each in BOTTLENECKS],
            "gpus": entries,
            "jobs": jobs,
            "incidents": current.incidents,
            "earlier_incidents": self._earlier(names=self._names[trusted]),
            **current.cost,
            "summary": summarise(entries, jobs, current.incidents, missing, current.cost["lost_gpu_hours_per_hour"]),
            "newest_profile": self.newest_profile(),
        }

    def event(self, snapshot: Snapshot, problem: str = "", *, trusted: bool = False) -> bytes:
        """Return `answer` as JSON for open pages, without processes and owners if it would be too large."""
        answer = self.answer(snapshot, problem, trusted=trusted)
        body = json.dumps(answer).encode()
        if len(body) > MOST_EVENT_BYTES:
            for entry in answer["gpus"]:
                entry.update(processes=[], owners=[])
            answer["problem"] = "; ".join(filter(None, (problem, TOO_MANY)))
            body = json.dumps(answer).encode()
        return body

    def _earlier(self, names: DiagnosisNames) -> list[dict[str, Any]]:
        """Return the last incidents that have ended, except those of severity `info`, the newest first."""
        urgent = (each for each in self.kept.recent() if each.severity != "info")
        return [each.masked(names).as_dict() for each in islice(urgent, MOST_EARLIER)]

    def _entries(self, snapshot: Snapshot, current: Current, names: DiagnosisNames) -> list[dict[str, Any]]:
        """Return an entry for each GPU, and after it one for each of its MIG instances."""
        owners: dict[str, list[dict[str, str]]] = defaultdict(list)
        for series, _ in snapshot.samples:
            if series.metric in m.OWNERS and series.gpu is not None:
                owners[series.gpu.uuid].append(dict(series.labels))
        found = numbers(snapshot)
        xids = self._xids()
        entries = []
        for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True):
            uuid = status.gpu.uuid
            instances = sorted(instance for device, instance in found if device == uuid and instance)
            for instance in ("", *instances):
                of_gpu = found.get((uuid, instance), Numbers())
                entry = self._entry(status, verdict, instance, of_gpu, current)
                entry["processes"] = [names.labels(each) for each in of_gpu.processes.values()]
                of_entry = (each for each in owners[uuid] if not instance or each.get("GPU_I_ID") == instance)
                entry["owners"] = [names.labels(each) for each in of_entry]
                entry["owner"] = _owner(entry["owners"], entry["processes"])
                entry["xids"] = xids.get(uuid, []) if not instance else []
                entries.append(entry)
        return entries

    def _entry(
        self, status: GpuStatus, verdict: Verdict, instance: str, of_gpu: Numbers, current: Current
    ) -> dict[str, Any]:
        gpu = status.gpu
        device = DeviceKey("", gpu.uuid, instance)
        diagnosis = current.diagnoses.get(device) if status.up else None
        line = headline(status, verdict if not instance else None, diagnosis)
        bottleneck = diagnosis.bottleneck if diagnosis else None
        changed = self._verdicts.get(id_of(gpu.uuid, "", gpu.index), ("", None))[1]
        of_health = not status.up or (verdict.problems and not instance)
        of_verdict = fitness.as_dict(verdict)
        return {
            **of_verdict,
            "problems": [{**each, "todo": Action(each["action"]).words} for each in of_verdict["problems"]],
            "up": status.up,
            "reason": status.reason,
            "info": {"pci_bus_id": gpu.pci_bus_id, "device": gpu.device, **dict(gpu.info)},
            "id": id_of(gpu.uuid, instance, gpu.index),
            "index": str(gpu.index),
            "instance": instance,
            "profile": of_gpu.profile,
            "since": changed,
            "headline": {
                "severity": line.severity,
                "words": line.words,
                "since": changed if of_health else current.since.get((device, line.of)),
            },
            "class": bottleneck.name if bottleneck else None,
            "quality": diagnosis.quality if diagnosis else None,
            "class_since": current.since.get((device, "")) if bottleneck else None,
            "measurements": {name: float(f"{value:.5g}") for name, value in of_gpu.values().items()},
            "limits": of_gpu.limits(),
            "not_supported": [{"name": name, "why": why} for name, why in sorted(of_gpu.unsupported.items())],
            **self._of_diagnosis(diagnosis, device),
        }

    def _of_diagnosis(self, diagnosis: Diagnosis | None, device: DeviceKey) -> dict[str, Any]:
        if diagnosis is None:
            return {"time": {}, "headroom": "", "findings": [], "not_judged": []}
        since = self.current.since
        return {
            "time": loss.as_json(diagnosis.shares),
            "headroom": headroom(diagnosis),
            "findings": [{**each, "since": since.get((device, each["name"]))} for each in findings(diagnosis)],
            "not_judged": not_judged(diagnosis),
        }

    def _xids(self) -> Mapping[str, list[dict[str, Any]]]:
        by_gpu: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for event in self._events.recent() if self._events else ():
            of_gpu = by_gpu[event["uuid"]]
            if len(of_gpu) < MOST_XIDS:
                of_gpu.append({name: event[name] for name in ("at", "xid", "name", "kind", "action", "meaning")})
        return by_gpu

    def incidents(self, *, trusted: bool = False) -> Sequence[Mapping[str, Any]]:
        """Return the incidents of the last diagnosis, as in JSON."""
        return self._shown(trusted=trusted).incidents

    def waits(self, *, trusted: bool = False) -> Sequence[str]:
        """Return which ranks of jobs wait although no incident of this node says why, in words."""
        current = self._shown(trusted=trusted)
        explained = explained_jobs(current.incidents)
        found = []
        for job, ranks in current.jobs.items():
            waiting, slow = (
                [current.diagnoses[rank.device] for rank in ranks if rank.state is state]
                for state in (RankState.WAITING, RankState.WAITED_FOR)
            )
            if waiting and job not in explained:
                found.append(waiting_words(job, names_of(waiting), len(waiting), names_of(slow) if slow else ""))
        return found

    def incidents_json(self, *, trusted: bool = False) -> bytes:
        """Return the incidents of the last diagnosis as JSON: see docs/api.md."""
        current = self._shown(trusted=trusted)
        about = {"apiVersion": VERSION, "version": __version__, "node": self.name, "at": current.at or None}
        return json.dumps({**about, "incidents": current.incidents, **current.cost}).encode()

    def history_json(self) -> bytes:
        """Return the last hour of all devices as JSON: see docs/api.md. It is composed once per point."""
        with self._lock:
            if self._hour[0] != self.history.start:
                self._hour = (self.history.start, self._composed_history())
            return self._hour[1]

    def _composed_history(self) -> bytes:
        rows = defaultdict[str, list[str]](list)
        for device, name, values in self.history.rows():
            rows[device].append(f"{json.dumps(name)}:[{_numbers(values)}]")
        gpus = ",".join(f"{json.dumps(device)}:{{{','.join(of_device)}}}" for device, of_device in rows.items())
        about = {
            "start": self.history.start,
            "step": STEP_SECONDS,
            "points": POINTS,
            "classes": [each.name for each in BOTTLENECKS],
            "measurements": list(NAMES),
        }
        return f'{json.dumps(about)[:-1]}, "gpus": {{{gpus}}}}}'.encode()

    def point_json(self) -> bytes:
        """Return the point of the history that was completed last, as JSON."""
        gpus = {
            device: {
                **{name: float(f"{value:.4g}") for name, value in values.items()},
                **({"class": place} if place != NO_CLASS else {}),
            }
            for device, (values, place) in self.history.newest().items()
        }
        at = self.history.start + (POINTS - 1) * STEP_SECONDS
        return json.dumps({"at": at, "gpus": gpus}).encode()


def _jobs(current: Current) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "ranks": [
                {"id": id_of(rank.device.uuid, rank.device.instance, 0), "state": rank.state.value} for rank in ranks
            ],
        }
        for name, ranks in current.jobs.items()
    ]


def _numbers(values: Sequence[float | None]) -> str:
    return ",".join("null" if value is None else f"{value:.4g}" for value in values)


def _owner(owners: Sequence[Mapping[str, str]], processes: Sequence[Mapping[str, Any]]) -> str:
    """Return who uses a GPU in a few words: pods and jobs, otherwise its processes."""
    names = []
    for labels in owners:
        place = "/".join(filter(None, (labels.get("namespace"), labels.get("pod") or labels.get("job_id"))))
        names.append(place or labels.get("container") or labels.get("container_id", ""))
    if not any(names):
        names = [each.get("process") or each.get("command", "") for each in processes]
    return first_of(list(dict.fromkeys(filter(None, names))), 3)
