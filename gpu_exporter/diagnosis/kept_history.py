"""Follows the diagnoses of a node, and keeps its incidents and what its GPUs did for jobs.

Nothing is written while nothing changes: an incident is written when it is confirmed, when it hits other GPUs, less and
less often while it lasts, and when it has ended.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.ended_jobs import EndedJobs, write_report
from gpu_exporter.diagnosis.history_store import HistoryStore, line_of
from gpu_exporter.diagnosis.kept_records import HOLD_SECONDS, GpuUsage, KeptIncident, KeptUsage
from gpu_exporter.diagnosis.rolling import Current
from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.io.file_access import FileWorker
from gpu_exporter.io.state_version import NewerStateError
from gpu_exporter.model.node_answer import VERSION
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.reports.masking import Names
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

# While an incident lasts, it is written again after a quarter of its time, within these bounds: so much of its cost is
# lost if the exporter is killed.
LEAST_REWRITE, MOST_REWRITE = 60.0, 3600.0
# How often what GPUs did for jobs is written.
USAGE_SECONDS = 600.0
# Between two diagnoses that are further apart, nothing is known.
LONGEST_GAP = 120.0
# Kept in memory, for the page and for a node without a state directory.
MOST_IN_MEMORY = 100
DAY_SECONDS = 86400.0
# An answer has at most so many incidents, the newest ones, and so many periods.
MOST_INCIDENTS, MOST_PERIODS = 2000, 5000
READ_SECONDS = 10.0
# `serve` ends within two seconds, also if the disk hangs.
CLOSE_SECONDS = 0.4
MOST_CULPRITS = 64
_ACTIVITY, _RANK = m.JOB_ACTIVITY.name, m.JOB_RANK_INFO.name
_STEP_SUM, _STEP_COUNT = f"{m.JOB_STEP}_sum", f"{m.JOB_STEP}_count"
_SELF_SUM = f"{m.JOB_SELF}_sum"
_SUMS = {_STEP_COUNT: "steps", _STEP_SUM: "step_seconds", _SELF_SUM: "self_seconds", m.JOB_RESTARTS.name: "restarts"}
RANK_FAMILIES = frozenset({*_SUMS, _ACTIVITY, _RANK})
# Job and rank, and sums by name and activity.
_RankSums = tuple[tuple[str, str], dict[tuple[str, str], float]]
# UUID and MIG instance.
_Place = tuple[str, str]


class KeptHistory:
    """The history of one node. One thread calls `take`; any may call the rest. Without a directory, the last
    MOST_IN_MEMORY incidents are kept in memory, and nothing of jobs. If a directory for `reports` is given, one is
    written there when a job has ended. `keeps_all`: everything stays in memory, for a view of the past."""

    def __init__(
        self, directory: Path | None = None, reports: Path | None = None, node: str = "", *, keeps_all: bool = False
    ) -> None:
        self._reports, self._node, self._ended_jobs = reports, node, EndedJobs()
        self._store = HistoryStore(directory) if directory else None
        self._reader, self._lock = FileWorker("history-reader"), threading.Lock()
        self._open: dict[tuple[str, ...], _OpenIncident] = {}
        self._keeps_all, self._periods = keeps_all, list[KeptUsage]()
        self._ended: deque[KeptIncident] = deque(maxlen=None if keeps_all else MOST_IN_MEMORY)
        self._jobs, self._judged_at = _JobUsage(), 0.0
        self._pending: list[bytes] = []
        self._unreported: list[tuple[str, float, float]] = []
        self._writing: threading.Thread | None = None
        self._complained = ""
        # The files are first read by the thread that diagnoses: a disk that hangs must not delay the start.
        self._is_loaded = self._store is None

    def take(self, current: Current, snapshot: Snapshot) -> None:
        """Add a diagnosis of a snapshot, and write what has changed."""
        self.add(current, _rank_samples(snapshot) if self._store else ())

    def add(self, current: Current, of_ranks: Iterable[ScrapedSample]) -> None:
        """Add a diagnosis, with the samples of RANK_FAMILIES."""
        if not self._is_loaded:
            self._is_loaded = True
            self._load(time.time())
        at, before = current.at, self._judged_at
        ended: list[tuple[str, float, float]] = []
        seconds = at - before if 0 < at - before <= LONGEST_GAP else 0.0
        with self._lock:
            self._judged_at = at
            for found in current.incidents:
                self._found(found, at, seconds)
            for key, each in list(self._open.items()):
                if at - each.kept.seen > HOLD_SECONDS or at < each.kept.start:
                    self._end(key, each)
            if self._store or self._keeps_all:
                jobs = self._jobs.take(current, of_ranks, seconds)
                ended = self._ended_jobs.take(jobs, at) if self._reports else []
                if usage := self._jobs.complete(at, now=bool(ended)):
                    self._keep(usage)
            self._write(at, ended)

    def close(self) -> None:
        """Write what is still in memory, before the exporter ends."""
        with self._lock:
            for each in self._open.values():
                if each.is_confirmed:
                    self._pending.append(line_of(each.kept))
            if usage := self._jobs.complete(self._judged_at, now=True):
                self._keep(usage)
            self._wait()
            self._write(self._judged_at)
            self._wait()

    def recent(self) -> list[KeptIncident]:
        """Return the last incidents that have ended, the newest first."""
        with self._lock:
            return list(self._ended)[::-1]

    def incidents(self, since: float, until: float) -> list[KeptIncident]:
        """Return the incidents of a time, the oldest first. Raises OSError if the disk does not answer."""
        return self._past(since, until)[0]

    def usage(self, since: float, until: float) -> list[KeptUsage]:
        """Return what GPUs did for jobs, the oldest first. Raises OSError if the disk does not answer."""
        return self._past(since, until)[1]

    def _past(self, since: float, until: float) -> tuple[list[KeptIncident], list[KeptUsage]]:
        found, periods = self._reader.call(lambda: self._read(since, until), READ_SECONDS)
        with self._lock:
            periods += self._periods
            newest = [*self._ended, *(each.kept for each in self._open.values() if each.is_confirmed)]
            found.update((each.id, replace(each)) for each in newest)
            if now := self._jobs.so_far(self._judged_at):
                periods.append(now)
        of_time = [each for each in found.values() if each.start <= until and (each.end or each.seen) >= since]
        usage = [each for each in periods if each.start < until and each.end > since]
        return sorted(of_time, key=lambda each: each.start)[-MOST_INCIDENTS:], usage[-MOST_PERIODS:]

    def _read(self, since: float, until: float) -> tuple[dict[str, KeptIncident], list[KeptUsage]]:
        """Return what was written of a time: the incidents by id, the last line of each counts."""
        found: dict[str, KeptIncident] = {}
        periods: deque[KeptUsage] = deque(maxlen=MOST_PERIODS)
        for record in self._store.read(since) if self._store else ():
            if record.incident and record.incident.start <= until:
                found.pop(record.incident.id, None)
                found[record.incident.id] = record.incident
            elif record.usage and record.usage.start < until:
                periods.append(record.usage)
        return found, list(periods)

    def answer(self, node: str, since: float, until: float, names: Names) -> bytes:
        """Return the incidents of a time, and what GPUs did for jobs, as JSON: see docs/api.md. Raises OSError."""
        found, periods = self._past(since, until)
        incidents = [each.masked(names).as_dict() for each in found]
        usage = [each.masked(names).as_dict() for each in periods]
        about = {"apiVersion": VERSION, "version": __version__, "node": node, "at": self._judged_at or None}
        # The clock of this node, with which a client compares its own.
        period = {"now": time.time(), "since": since, "until": until, "kept": bool(self._store)}
        return json.dumps({**about, **period, "incidents": incidents, "usage": usage}).encode()

    def _load(self, now: float) -> None:
        """Go on with the incidents that had not ended when the previous exporter did."""
        try:
            latest, _ = self._reader.call(lambda: self._read(now - DAY_SECONDS, now))
        except (OSError, NewerStateError) as error:
            self._complain(f"--state-dir: the history of incidents cannot be read: {error}")
            return
        for each in latest.values():
            if each.end is None:
                self._open[_key(each.cause, each.jobs)] = _OpenIncident(each, each.seen, is_confirmed=True)
            else:
                self._ended.append(each)

    def _found(self, found: Mapping[str, Any], at: float, seconds: float) -> None:
        """Begin an incident, or go on with it."""
        key = _key(found["cause"], found["jobs"])
        each = self._open.get(key)
        if each is not None and at - each.kept.seen > HOLD_SECONDS:  # the exporter did not run meanwhile
            self._end(key, each)
            each = None
        if each is None:
            start = found["since"] if found["since"] is not None else at
            kept = KeptIncident(
                f"{start:.0f}-{found['cause']}-{len(self._open)}",
                found["cause"],
                found["severity"],
                found["words"],
                start,
                at,
            )
            each = self._open[key] = _OpenIncident(kept, at)
            each.add(found)
            each.is_confirmed = found["severity"] == "critical"
            if each.is_confirmed:
                self._pending.append(line_of(each.kept))
            return
        changed = each.add(found) or not each.is_confirmed
        kept = each.kept
        kept.seen, each.is_confirmed = at, True
        kept.lost_gpu_hours += found["lost_gpu_hours_per_hour"] * seconds / 3600
        rewrite = min(max((at - kept.start) / 4, LEAST_REWRITE), MOST_REWRITE)
        if changed or at - each.written_at >= rewrite:
            each.written_at = at
            self._pending.append(line_of(kept))

    def _keep(self, usage: KeptUsage) -> None:
        if self._keeps_all:
            self._periods.append(usage)
        self._pending.append(line_of(usage))

    def _end(self, key: tuple[str, ...], each: _OpenIncident) -> None:
        del self._open[key]
        if each.is_confirmed:
            each.kept.end = each.kept.seen
            self._ended.append(each.kept)
            self._pending.append(line_of(each.kept))

    def _write(self, at: float, ended: Sequence[tuple[str, float, float]] = ()) -> None:
        """Start to write what is pending, and the reports of jobs that have ended, on its own thread."""
        if self._store is None:
            self._pending.clear()
        self._unreported += ended
        if not (self._pending or self._unreported) or (self._writing and self._writing.is_alive()):
            del self._pending[:-MOST_PERIODS]  # a disk that hangs
            return
        lines, self._pending = self._pending, []
        jobs, self._unreported = self._unreported, []
        self._writing = threading.Thread(target=self._append, args=(at, lines, jobs), name="history", daemon=True)
        self._writing.start()

    def _append(self, at: float, lines: Sequence[bytes], jobs: Sequence[tuple[str, float, float]]) -> None:
        assert self._store
        try:
            if lines:
                self._store.append(at, lines)
            for job in jobs:
                assert self._reports
                found, periods = self._read(*job[1:])
                write_report(self._reports, self._node, job, (list(found.values()), periods))
        except NewerStateError as error:
            self._complain(f"--state-dir: {error}")
        except OSError as error:
            where = error.filename or self._store.directory
            self._complain(f"{where}: {error.strerror}; incidents and reports of jobs are not kept (--state-dir)")
        else:
            self._complained = ""

    def _wait(self) -> None:
        if self._writing:
            self._writing.join(CLOSE_SECONDS)

    def _complain(self, message: str) -> None:
        if message != self._complained:
            log.warning("%s", message)
        self._complained = message


class _OpenIncident:
    """An incident that has not ended. It is confirmed once it was found twice, or if it is critical."""

    def __init__(self, kept: KeptIncident, written_at: float, *, is_confirmed: bool = False) -> None:
        self.kept, self.written_at, self.is_confirmed = kept, written_at, is_confirmed

    def add(self, found: Mapping[str, Any]) -> bool:
        """Add the GPUs of a diagnosis; return whether there are others than before."""
        kept = self.kept
        changed = False
        for ours, theirs in (
            (kept.culprits, found["culprits"]),
            (kept.hit, found["hit"]),
            (kept.jobs, found["jobs"]),
            (kept.explains, found["explains"]),
        ):
            new = [each for each in theirs if each not in ours][: max(0, MOST_CULPRITS - len(ours))]
            ours.extend(new)
            changed |= bool(new)
        return changed


def _key(cause: str, jobs: Sequence[str]) -> tuple[str, ...]:
    """Return what diagnoses of the same incident share: the cause, and the job of its culprits."""
    return (cause, *jobs[:1])


class _JobUsage:
    """What the GPUs of a node do for jobs, since the last time that it was written."""

    def __init__(self) -> None:
        self._gpus: dict[tuple[_Place, str], GpuUsage] = {}
        self._sums: dict[tuple[_Place, str, str], dict[tuple[str, str], float]] = {}
        # Pods and Slurm jobs that have a training loop, of which the end counts.
        self._looped: set[str] = set()
        self._start = 0.0

    def take(self, current: Current, of_ranks: Iterable[ScrapedSample], seconds: float) -> set[str]:
        """Add the time since the diagnosis before; return the names of the jobs, of training loops their `job_id`."""
        jobs: set[str] = set()
        present: set[str] = set()
        if not self._gpus:
            self._start = current.at - seconds
        ranks = _by_place(of_ranks)
        for device, diagnosis in current.diagnoses.items():
            place, job = (device.uuid, device.instance), diagnosis.identity.job
            of_rank = ranks.get(place)
            if not job and of_rank is None:
                continue
            job_id, rank = of_rank[0] if of_rank else ("", "")
            present.add(job)
            if of_rank:
                self._looped.add(job)
            if of_rank or job not in self._looped:
                jobs.add(job_id or job)
            key = place, f"{job} {job_id} {rank}"
            usage = self._gpus.get(key)
            if usage is None:
                usage = GpuUsage(device.uuid, diagnosis.identity.gpu, device.instance, job, job_id, rank)
                usage.start = current.at - seconds
                self._gpus[key] = usage
            usage.end = current.at
            usage.seconds += seconds * diagnosis.identity.share
            for cause, share in diagnosis.gpu_time.items():
                usage.time[cause.value] = usage.time.get(cause.value, 0.0) + share * seconds
            if of_rank:
                self._add(usage, (place, job_id, rank), of_rank[1])
        self._looped &= present
        return jobs

    def _add(self, usage: GpuUsage, key: tuple[_Place, str, str], sums: dict[tuple[str, str], float]) -> None:
        before = self._sums.get(key)
        self._sums[key] = sums
        if before is None:
            return
        for (name, activity), value in sums.items():
            grown = max(0.0, value - before.get((name, activity), 0.0))
            if activity:
                usage.activity[activity] = usage.activity.get(activity, 0.0) + grown
            else:
                setattr(usage, _SUMS[name], getattr(usage, _SUMS[name]) + grown)

    def so_far(self, at: float) -> KeptUsage | None:
        """Return what is not written yet; None if that is nothing."""
        used = [replace(gpu, time=dict(gpu.time), activity=dict(gpu.activity)) for gpu in self._gpus.values()]
        used = [gpu for gpu in used if gpu.seconds]
        return KeptUsage(self._start, at, used) if used else None

    def complete(self, at: float, *, now: bool = False) -> KeptUsage | None:
        """Return what is to be written, and begin anew, if it is time, or `now`."""
        if not self._gpus or not (now or at - self._start >= USAGE_SECONDS or at < self._start):
            return None
        usage = self.so_far(at)
        places = {key for key, _ in self._gpus}
        self._sums = {key: sums for key, sums in self._sums.items() if key[0] in places}
        self._gpus = {}
        return usage


def _rank_samples(snapshot: Snapshot) -> Iterator[ScrapedSample]:
    """Yield what a snapshot says of the ranks of training loops."""
    for series, value in snapshot.samples:
        if series.gpu is not None and series.name in RANK_FAMILIES:
            labels = dict((*series.metric.labels, *series.labels))
            yield ScrapedSample(series.name, {**labels, "UUID": series.gpu.uuid}, value)


def _by_place(samples: Iterable[ScrapedSample]) -> Mapping[_Place, _RankSums]:
    """Return the rank of a training loop on each device, and its sums. Of several ranks, the last one counts."""
    found: dict[_Place, _RankSums] = {}
    for name, labels, value in samples:
        who = labels.get("job_id", ""), labels.get("rank", "")
        place = (labels.get("UUID", ""), labels.get("GPU_I_ID", ""))
        if place not in found or found[place][0] != who:
            found[place] = (who, {})
        if name != _RANK:
            found[place][1][name, labels.get("activity", "")] = value
    return found
