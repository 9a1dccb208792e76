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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_exporter.diagnosis.ended_jobs import MOST_REPORTS, JobReports
from gpu_exporter.diagnosis.followed_incidents import FollowedIncidents
from gpu_exporter.diagnosis.history_store import HistoryStore, line_of
from gpu_exporter.diagnosis.job_usage import JobUsage, rank_samples
from gpu_exporter.diagnosis.kept_records import KeptIncident, KeptUsage
from gpu_exporter.diagnosis.rolling import Current
from gpu_exporter.diagnosis.scrape import ScrapedSample
from gpu_exporter.io.file_access import RETRY_SECONDS, FileWorker, InUse, ProblemLog, WaitingWriters, cause
from gpu_exporter.io.state_version import NewerStateError
from gpu_exporter.model.node_answer import VERSION
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.reports.masking import Names
from gpu_exporter.version import __version__

log = logging.getLogger(__name__)

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


class KeptHistory:
    """The history of one node. One thread calls `take`; any may call the rest. Without a directory, the last
    MOST_IN_MEMORY incidents are kept in memory, and nothing of jobs. `reports` are written of jobs that have ended.
    `keeps_all`: everything stays in memory, for a view of the past."""

    def __init__(
        self,
        directory: Path | None = None,
        reports: JobReports | None = None,
        *,
        waiting: WaitingWriters | None = None,
        keeps_all: bool = False,
    ) -> None:
        self._reports, self._waiting = reports, waiting or WaitingWriters()
        self._store = HistoryStore(directory) if directory else None
        self._reader, self._lock = FileWorker("history-reader"), threading.Lock()
        self._followed = FollowedIncidents()
        self._keeps_all, self._periods = keeps_all, list[KeptUsage]()
        self._ended: deque[KeptIncident] = deque(maxlen=None if keeps_all else MOST_IN_MEMORY)
        self._jobs, self._judged_at = JobUsage(), 0.0
        self._pending: list[bytes] = []
        self._unreported: list[tuple[str, float, float]] = []
        self._writing: threading.Thread | None = None
        # What the last thread could not write, and the time of that (unix seconds).
        self._left: tuple[list[bytes], list[tuple[str, float, float]]] = [], []
        self._failed_at = 0.0
        self._problems = ProblemLog(log)
        # The files are first read by the thread that diagnoses: a disk that hangs must not delay the start.
        self._is_loaded = self._store is None

    def take(self, current: Current, snapshot: Snapshot) -> None:
        """Add a diagnosis of a snapshot, and write what has changed."""
        self.add(current, rank_samples(snapshot) if self._store else ())

    def add(self, current: Current, of_ranks: Iterable[ScrapedSample]) -> None:
        """Add a diagnosis, with the samples of RANK_FAMILIES."""
        if not self._is_loaded:
            self._is_loaded = True
            self._load(time.time())
            if self._reports:
                self._prepare(self._reports)
        at, before = current.at, self._judged_at
        ended: list[tuple[str, float, float]] = []
        seconds = at - before if 0 < at - before <= LONGEST_GAP else 0.0
        with self._lock:
            self._judged_at = at
            for incident in self._followed.take(current.incidents, at, seconds):
                self._pending.append(line_of(incident))
                if incident.end is not None:
                    self._ended.append(incident)
            if self._store or self._keeps_all:
                jobs = self._jobs.take(current, of_ranks, seconds)
                ended = self._reports.take(jobs, at) if self._reports else []
                if usage := self._jobs.complete(at, now=bool(ended)):
                    self._keep(usage)
            self._write(at, ended)

    def close(self) -> None:
        """Write what is still in memory, before the exporter ends."""
        with self._lock:
            self._pending += map(line_of, self._followed.confirmed())
            if usage := self._jobs.complete(self._judged_at, now=True):
                self._keep(usage)
            self._wait()
            self._failed_at = 0.0
            self._write(self._judged_at)
            self._wait()
            if self._store:
                self._store.close()

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
            found.update((each.id, replace(each)) for each in (*self._ended, *self._followed.confirmed()))
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

    def _prepare(self, reports: JobReports) -> None:
        """Say at the start, not when the first job ends, that no report can be written."""
        try:
            self._reader.call(reports.prepare)
        except OSError as error:
            self._problems.report(
                f"--job-reports: {reports.directory}: {cause(error)}; it is tried again when a job has ended"
            )

    def _load(self, now: float) -> None:
        """Go on with the incidents that had not ended when the previous exporter did."""
        try:
            latest, _ = self._reader.call(lambda: self._read(now - DAY_SECONDS, now))
        except (OSError, NewerStateError) as error:
            self._problems.report(f"--state-dir: the history of incidents cannot be read: {cause(error)}")
            return
        for each in latest.values():
            if each.end is None:
                self._followed.go_on(each)
            else:
                self._ended.append(each)

    def _keep(self, usage: KeptUsage) -> None:
        if self._keeps_all:
            self._periods.append(usage)
        self._pending.append(line_of(usage))

    def _write(self, at: float, ended: Sequence[tuple[str, float, float]] = ()) -> None:
        """Start to write what is pending, and the reports of jobs that have ended, on its own thread."""
        if self._store is None:
            self._pending.clear()
        self._unreported += ended
        hangs = self._writing is not None and self._writing.is_alive()
        if not hangs:
            (self._pending[:0], self._unreported[:0]), self._left = self._left, ([], [])
        if hangs or not (self._pending or self._unreported) or 0 <= at - self._failed_at < RETRY_SECONDS:
            del self._pending[:-MOST_PERIODS], self._unreported[:-MOST_REPORTS]
            return
        lines, self._pending = self._pending, []
        jobs, self._unreported = self._unreported, []
        self._writing = threading.Thread(target=self._append, args=(at, lines, jobs), name="history", daemon=True)
        self._writing.start()

    def _append(self, at: float, lines: list[bytes], jobs: list[tuple[str, float, float]]) -> None:
        """Write lines and reports. What cannot be written is left for the next thread, unless another process does."""
        assert self._store
        option, self._failed_at = "--state-dir", 0.0
        try:
            if lines:
                self._store.append(at, lines)
            lines, option = [], "--job-reports"
            while jobs:
                assert self._reports
                found, periods = self._read(*jobs[0][1:])
                self._reports.write(jobs[0], (found.values(), periods))
                del jobs[0]
        except NewerStateError as error:
            self._problems.report(f"--state-dir: {error}")
        except InUse as error:
            self._waiting.add(self, error)
        except OSError as error:
            self._left, self._failed_at = (lines, jobs), at
            where = error.filename or self._store.directory
            self._problems.report(f"{option}: {where}: {cause(error)}; it is tried again every minute")
        else:
            self._problems.report("")
            self._waiting.remove(self)

    def _wait(self) -> None:
        if self._writing:
            self._writing.join(CLOSE_SECONDS)
