"""`gpu-exporter diagnose`: what limits each GPU, what is wrong with it, and what to do."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.local_exporter import SETTINGS, LocalCommand, url_and_certificate
from gpu_exporter.cli.login import login, login_options
from gpu_exporter.cli.nodes import NodesOption
from gpu_exporter.cli.options import COULD_NOT_TELL, SOURCE_SETTINGS, json_option, one_job_option, parsed, settings
from gpu_exporter.cli.progress import Progress, has_colour
from gpu_exporter.cli.stop import exit_after, leave, stop_event
from gpu_exporter.config import Config
from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import refuse_unwritable, replace_file
from gpu_exporter.io.user_text import Address, duration
from gpu_exporter.model.errors import GpuExporterError, WrongUsage
from gpu_exporter.model.source_kind import AUTO, REPLAY, SOURCE_KINDS

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.request import DiagnosisRequest
    from gpu_exporter.diagnosis.result import DiagnosisResult
    from gpu_exporter.http.client import Remote

# After a signal, what was watched by then is diagnosed. A response or a driver call that is awaited is given up.
STOP_SECONDS = 2.0
# Longer than any exporter of this machine takes to accept a connection.
CONNECT_SECONDS = 1.0
# How many more objects start a garbage collection. The pages of a fleet become millions, none of them in cycles: with
# Python's default of 700, to traverse them would take 40 % of the CPU time, and with a million still 5 %.
GARBAGE_OBJECTS = 10_000_000
# How the styles of the report are drawn.
COLOURS: Mapping[str, Mapping[str, Any]] = {
    "title": {"bold": True},
    "dim": {"dim": True},
    "good": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
    "info": {"fg": "cyan"},
}


@dataclass(frozen=True, slots=True)
class Output:
    """How to print a diagnosis, and the file for its HTML report. The fields are options of the command."""

    every: bool = False
    verbose: bool = False
    as_json: bool = False
    price: float | None = None
    report: Path | None = None
    mask_names: bool = False


@command("diagnose", LocalCommand, error_code=COULD_NOT_TELL)
@settings(*SOURCE_SETTINGS, "kernel_log", "xid_overrides", "profile_dir", *SETTINGS)
@click.option(
    "--for",
    "seconds",
    type=parsed(duration),
    help="How long to watch (default: 20s). With the URL of a Prometheus, how far to look back (default: 5m). "
    "A recording is always read to its end.",
)
@click.option("--phase", default="", help="Diagnose only this part of a recording, such as ddp_straggler_slow_gpu.")
@one_job_option
@click.option(
    "--url",
    "urls",
    multiple=True,
    help="URL of an exporter or a Prometheus to ask, instead of this machine's GPUs. Several: exporters of one job.",
)
@click.option("--job", default="", help="Report on a job, also one that has ended, from what its exporters have kept.")
@click.option("--since", default="", help="With --job: how far to look back (default: 24h), or since which time.")
@click.option("--from", "begin", default="", help="With --job: as --since, such as 2026-01-31T22:00.")
@click.option("--to", "end", default="", help="With --job: until when (default: now).")
@click.option("--nodes", default="", help="Ask the exporters of these nodes, as Slurm lists them: 'node[01-16]'.")
@click.option(
    "--slurm-job",
    default="",
    help="Ask the exporters of the nodes of this Slurm job: $SLURM_JOB_NODELIST within the job, else what squeue says.",
)
@login_options
@click.option(
    "--gpu-price", "price", type=click.FloatRange(min=0), help="USD per GPU-hour, to say what the loss costs."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the diagnosis to this file, as HTML with charts that needs neither a network nor scripts.",
)
@click.option("--mask-names", is_flag=True, help="In the --report, replace names of pods, hosts, commands and users.")
@click.option("--all", "every", is_flag=True, help="Also list the failure modes that could not be evaluated, and why.")
@click.option("--verbose", is_flag=True, help="Add the names of the series.")
@json_option
def diagnose_command(urls: Sequence[str], **values: Any) -> None:
    """It watches the GPUs of this machine, an exporter (--url) or those of a job's nodes for a while, queries a
    Prometheus (--url) for the last minutes, with or without gpu-exporter's rules, or reads a recording. It reports a
    problem at once, while an alert waits longer before it fires. With --job, it reports on a job from what its
    exporters have kept. docs/diagnose.md explains the reports.

    Exit code 0 if nothing wrong was found; 1 if something was found; 2 if that could not be determined.
    """
    from gpu_exporter.diagnosis.request import DiagnosisRequest

    credentials = login(values, asks=bool(urls or values["nodes"] or values["slurm_job"] or values["job"]))
    output = Output(**{name: values.pop(name) for name in Output.__slots__})
    what = {name: values.pop(name) for name in ("seconds", "phase", "one_job")}
    if output.mask_names and not output.report:
        raise WrongUsage("--mask-names masks names in a report: give --report FILE.html")
    if output.report:
        refuse_unwritable(output.report)
    of_job = {name: values.pop(name) for name in ("job", "since", "begin", "end")}
    here = [values.pop(name) for name in SETTINGS]
    where = NodesOption(urls, values.pop("nodes"), values.pop("slurm_job"), here[0].port)
    if of_job["job"]:
        _refuse_beside_job(values, what)
        from gpu_exporter.cli.job_report import JobRequest, report_job

        if not (urls or where.is_several):
            url, certificate = url_and_certificate(*here)
            where = replace(where, urls=[url])
            credentials = {**credentials, "certificate": b"" if credentials["ca_file"] else certificate}
        raise SystemExit(report_job(JobRequest(where=where, **of_job), credentials, output))
    if any(of_job.values()):
        raise WrongUsage("--since, --from and --to are for a job: name it with --job")
    remotes = [_remote(url, credentials) for url in (where.addresses() if where.is_several else urls)]
    asked: dict[str, Any] = {"nodes": remotes} if where.is_several else {"remote": next(iter(remotes), None)}
    asked["job"] = where.slurm_job
    request = DiagnosisRequest(Config(**values), **asked, **what)
    _refuse_ignored(request)
    is_asked = request.remote or request.nodes
    is_live = not is_asked and not request.config.recording and SOURCE_KINDS[request.config.source].live
    loops = LocalLoops(*here) if is_live else None
    result = print_diagnosis(request, output)
    if loops and (jobs := loops.jobs()):
        seen = f"training jobs that send step times to the exporter of this machine: {', '.join(jobs)}"
        click.echo(f"{seen}; `gpu-exporter diagnose --url {loops.url}` judges them, too", err=True)
    leave(*result)


def _refuse_beside_job(values: Mapping[str, Any], what: Mapping[str, Any]) -> None:
    """Raise GpuExporterError for options that a report on a job would ignore."""
    source = values["source"] if values["source"] != AUTO.name else ""
    ignored = [name for name, value in {**what, "recording": values["recording"], "source": source}.items() if value]
    if ignored:
        option = {"seconds": "for"}.get(ignored[0], ignored[0].replace("_", "-"))
        raise WrongUsage(f"--{option} and --job exclude each other: --job reads what exporters have kept")


class LocalLoops(threading.Thread):
    """Asks the exporter of this machine, if there is one, for the training jobs that send to it."""

    def __init__(self, address: Address, web_config_file: Path | None) -> None:
        super().__init__(daemon=True)
        self.url, self._where = "", (address, web_config_file)
        self._jobs: list[str] = []
        self.start()

    def run(self) -> None:
        try:
            self.url, certificate = url_and_certificate(*self._where)
            parts = urlsplit(self.url)
            socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS).close()
        except (GpuExporterError, OSError):  # then no client of HTTP is needed
            return
        from gpu_exporter.catalogue.metrics import JOB_RANK_INFO
        from gpu_exporter.diagnosis.text_format import parsed
        from gpu_exporter.http.client import Remote

        with suppress(GpuExporterError, ValueError):
            samples = parsed(
                Remote(self.url, certificate=certificate).metrics(), lambda name: name == JOB_RANK_INFO.name
            )
            self._jobs = sorted({printable(sample.labels.get("job_id", ""), 80) for sample in samples})

    def jobs(self) -> list[str]:
        """Return the names of jobs, without waiting for an exporter that does not answer."""
        self.join(0)
        return self._jobs


def _remote(url: str, credentials: Mapping[str, Any]) -> Remote:
    from gpu_exporter.http.client import Remote

    return Remote(url, **credentials)


def _refuse_ignored(request: DiagnosisRequest) -> None:
    """Raise GpuExporterError for options that exclude each other, or that a recording or a URL would ignore."""
    from gpu_exporter.sources.choice import refuse_unread

    config, is_asked = request.config, bool(request.remote or request.nodes)
    if is_asked and config.recording:
        raise WrongUsage(f"{'--url' if request.remote else '--nodes'} and --recording exclude each other: give one")
    if is_asked or config.recording:
        instead = "--recording" if config.recording else "--url" if request.remote else "asking nodes"
        if config.source != AUTO.name and not (config.recording and config.source == REPLAY.name):
            raise WrongUsage(f"--source {config.source} and {instead} exclude each other: give one")
        if config.recording and request.seconds:
            raise WrongUsage("--for is the time to watch; a recording is analysed as a whole, or one --phase of it")
        refuse_unread(replace(config, source=REPLAY.name if config.recording else AUTO.name))
    if request.phase and not config.recording:
        raise WrongUsage("--phase selects a phase of a recording: name it with --recording")


def print_diagnosis(request: DiagnosisRequest, output: Output) -> tuple[int, bool]:
    """Diagnose and print the result. Returns the exit code, and False if a driver call is stuck."""
    from gpu_exporter.diagnosis import report
    from gpu_exporter.diagnosis.request import diagnose_request

    gc.set_threshold(GARBAGE_OBJECTS)
    logging.disable(logging.WARNING)  # the report contains what would be logged
    stop, watched = stop_event(), threading.Event()
    # What was watched so far is judged, however long that takes.
    exit_after(stop, STOP_SECONDS, COULD_NOT_TELL, "interrupted before the diagnosis was complete", watched)
    try:
        with _progress(request):
            result = diagnose_request(request, stop, watched)
    except GpuExporterError as error:
        click.echo(f"gpu-exporter: {error}", err=True)
        return COULD_NOT_TELL, True
    if result.is_empty:
        why = "no GPU found; `gpu-exporter doctor` says why"
        if request.remote:
            why = "no GPU found; give the URL of gpu-exporter, dcgm-exporter, or a Prometheus that scrapes one of them"
        click.echo(f"gpu-exporter: {result.source}: {why}", err=True)
        return COULD_NOT_TELL, result.clean
    if output.report:
        _write_page(output.report, result, output)
    if output.as_json:
        click.echo(json.dumps(report.as_json(result, output.price), indent=2))
    else:
        for line in _lines(result, output):
            click.echo(line)
    return report.result_code(result), result.clean


def _write_page(path: Path, result: DiagnosisResult, output: Output) -> None:
    """Write the HTML report. Raises OSError."""
    from gpu_exporter.diagnosis.html_page import page  # only --report needs it

    replace_file(path, page(result, mask=output.mask_names, price=output.price))
    click.echo(f"report: {path}", err=True)


def _lines(result: DiagnosisResult, output: Output) -> Iterator[str]:
    """Return the lines of the report, for a terminal or for a pipe."""
    from gpu_exporter.diagnosis import report, terminal_report

    every, verbose, price = output.every, output.verbose, output.price
    if not sys.stdout.isatty():
        return report.report_lines(result, every=every, verbose=verbose, price=price)
    width = shutil.get_terminal_size().columns
    return terminal_report.report_lines(result, width=width, style=_style, every=every, verbose=verbose, price=price)


def _style(text: str, name: str) -> str:
    """Return a coloured text; without colour, it stays as it is."""
    return click.style(text, **COLOURS[name]) if name and has_colour() else text


def _progress(request: DiagnosisRequest) -> Progress:
    """Return what shows that the command works."""
    from gpu_exporter.diagnosis.gather import TICK_SECONDS, WATCH_SECONDS

    if request.config.recording:
        return Progress("Reading the recording")
    if request.remote:
        return Progress(f"Asking {printable(request.remote.url, 80)}", request.seconds)
    if request.nodes:
        return Progress(f"Watching {len(request.nodes)} exporters", request.seconds or WATCH_SECONDS)
    return Progress("Watching the GPUs", (request.seconds or WATCH_SECONDS) + TICK_SECONDS)
