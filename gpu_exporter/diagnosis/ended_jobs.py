"""Writes a report of each job whose ranks or pods on this node have ended, to a directory (`--job-reports`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from gpu_exporter.diagnosis.kept_records import KeptIncident, KeptUsage, masked_job
from gpu_exporter.io.file_access import refuse_unwritable, replace_file
from gpu_exporter.reports.masking import Names
from gpu_exporter.version import __version__

# A job has ended when no GPU had it for so long. One that lasted less than LEAST_SECONDS has no report.
END_SECONDS, LEAST_SECONDS = 120.0, 60.0
# The oldest reports beyond this are deleted, two files each.
MOST_REPORTS = 500
_REPORT = re.compile(r".+-\d{8}T\d{6}Z\.(html|json)")


class JobReports:
    """Notes which jobs the GPUs of a node have, and writes a report of each that has ended."""

    def __init__(self, directory: Path, node: str, names: Names) -> None:
        self.directory, self._node, self._names = directory, node, names
        self._seen: dict[str, tuple[float, float]] = {}

    def prepare(self) -> None:
        """Create the directory. Raises OSError if no report could be written there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        refuse_unwritable(self.directory / "report.html")

    def take(self, jobs: Iterable[str], at: float) -> list[tuple[str, float, float]]:
        """Add the jobs of a moment; return those that have ended, with their first and last sign of life."""
        for job in jobs:
            self._seen[job] = (self._seen.get(job, (at, at))[0], at)
        ended = [(job, first, last) for job, (first, last) in self._seen.items() if at - last > END_SECONDS]
        for job, _, _ in ended:
            del self._seen[job]
        return [each for each in ended if each[2] - each[1] >= LEAST_SECONDS]

    def write(self, of_job: tuple[str, float, float], past: tuple[Iterable[KeptIncident], Iterable[KeptUsage]]) -> None:
        """Write the report of a job as HTML and as JSON. Raises OSError."""
        from gpu_exporter.diagnosis import job_report  # only needed when a job has ended
        from gpu_exporter.diagnosis.job_history import NodeHistory, job_history

        job, begin, end = of_job
        job = masked_job(job, self._names)
        incidents = [each.masked(self._names) for each in past[0]]
        usage = [each.masked(self._names) for each in past[1]]
        history = job_history(job, begin, end, [NodeHistory(self._node, __version__, incidents=incidents, usage=usage)])
        self.prepare()
        directory = self.directory
        safe = re.sub(r"[^\w.-]+", "_", job).lstrip(".")[:80] or "job"
        path = directory / f"{safe}-{datetime.fromtimestamp(begin, timezone.utc):%Y%m%dT%H%M%SZ}.html"
        replace_file(path, job_report.page(history))
        replace_file(path.with_suffix(".json"), json.dumps(job_report.as_json(history), indent=1))
        reports = [each for each in directory.iterdir() if _REPORT.fullmatch(each.name)]
        for old in sorted(reports, key=lambda each: each.stat().st_mtime)[: -2 * MOST_REPORTS]:
            old.unlink(missing_ok=True)
