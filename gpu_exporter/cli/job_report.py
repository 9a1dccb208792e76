"""`gpu-exporter diagnose --job`: the report of a job that runs or has ended, from the history of its nodes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gpu_exporter.cli.nodes import NodesOption
from gpu_exporter.io.file_access import replace_file
from gpu_exporter.io.user_text import past
from gpu_exporter.model.errors import GpuExporterError, WrongUsage
from gpu_exporter.reports.numbers import counted, first_of, moment

USUAL_SINCE = "24h"
# How many other jobs an error names.
MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Which job, where its nodes are, and when; texts as the user wrote them."""

    job: str
    where: NodesOption
    since: str = ""
    begin: str = ""
    end: str = ""

    def period(self, now: float) -> tuple[float, float]:
        """Return the begin and the end in unix seconds. Raises GpuExporterError."""
        if self.since and self.begin:
            raise WrongUsage("--since and --from exclude each other: give one")
        try:
            return past(self.begin or self.since or USUAL_SINCE, self.end, now)
        except ValueError as error:
            option = "--from" if self.begin else "--since"
            raise WrongUsage(f"{option}: {error}") from error


def report_job(request: JobRequest, credentials: Mapping[str, Any], output: Any) -> int:
    """Print the report, and write it to a file if that is asked for. Returns the exit code.

    Raises GpuExporterError if nothing is known of the job.
    """
    from gpu_exporter.diagnosis import job_report
    from gpu_exporter.diagnosis.job_history import job_history
    from gpu_exporter.diagnosis.job_sources import histories
    from gpu_exporter.http.client import Remote

    since, until = request.period(time.time())
    remotes = [Remote(url, **credentials) for url in request.where.addresses()]
    nodes, missing = histories(remotes, request.job, since, until)
    if missing and not nodes:
        further = (
            f" (and {len(missing) - 1} more {'node' if len(missing) == 2 else 'nodes'})" if len(missing) > 1 else ""
        )
        raise GpuExporterError(f"no node has a history: {missing[0].removeprefix('missing: ')}{further}")
    history = job_history(request.job, since, until, nodes, missing)
    if history.is_empty:
        raise GpuExporterError(_nothing(request.job, since, until, history.others, history.remarks))
    if output.report:
        if output.mask_names:
            from gpu_exporter.diagnosis.kept_records import masked_job
            from gpu_exporter.diagnosis.masking import DiagnosisNames

            names = DiagnosisNames(mask=True)
            unknown = [f"missing: {counted(len(missing), 'node')}"] if missing else []
            masked = [node.masked(names) for node in nodes]
            shown = job_history(masked_job(request.job, names), since, until, masked, unknown)
        else:
            shown = history
        replace_file(Path(output.report), job_report.page(shown, output.price))
        click.echo(f"report: {output.report}", err=True)
    if output.as_json:
        click.echo(json.dumps(job_report.as_json(history, output.price), indent=2))
    else:
        for line in job_report.lines(history, output.price):
            click.echo(line)
    sys.stdout.flush()
    return job_report.exit_code(history)


def _nothing(job: str, since: float, until: float, others: Sequence[str], remarks: Sequence[str]) -> str:
    """Return why there is no report, in one line."""
    text = f"nothing was recorded of job {job} from {moment(since)} to {moment(until)}"
    if others:
        text += f"; jobs of that time: {first_of(others, MOST_NAMES)}"
    return "; ".join((text, *remarks[:2]))
