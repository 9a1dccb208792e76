"""`gpu-exporter top`: parses its options, and makes the feed of the live view."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpu_exporter.cli.commands import command
from gpu_exporter.cli.login import login, login_options
from gpu_exporter.cli.options import SOURCE_SETTINGS, Command, one_job_option, parsed, settings
from gpu_exporter.config import Config
from gpu_exporter.io.user_text import duration
from gpu_exporter.model.errors import GpuExporterError, WrongUsage
from gpu_exporter.model.source_kind import AUTO, BANNERS, REPLAY

if TYPE_CHECKING:
    from gpu_exporter.top.feeds import Feed

MISSING = "top needs Rich, which is not installed: pip install rich"
MOST_SECONDS = 300.0


@command("top", Command)
@settings(*SOURCE_SETTINGS, "kernel_log", "xid_overrides")
@click.option("--url", default="", help="URL of an exporter to ask, instead of this machine's GPUs.")
@login_options
@click.option(
    "--for",
    "seconds",
    type=parsed(duration),
    default="20s",
    show_default=True,
    help="How many seconds the class and the findings are about, at most 5m.",
)
@one_job_option
@click.option("--once", is_flag=True, help="Evaluate a whole recording, print one table, and exit.")
def top_command(url: str, seconds: float, one_job: bool, once: bool, **values: Any) -> None:
    """It shows the GPUs of this machine, those of another exporter (--url; gpu-exporter or dcgm-exporter), or a
    recording, which it replays. Press ? for the keys. It needs Rich: pip install rich.
    """
    if importlib.util.find_spec("rich") is None:
        raise GpuExporterError(MISSING)
    credentials = login(values, asks=bool(url))
    config = Config(**values)
    if url and config.recording:
        raise WrongUsage("--url and --recording exclude each other: give one")
    if not 0 < seconds <= MOST_SECONDS:
        raise WrongUsage("--for is how long to look back; use at most 5m, or `gpu-exporter diagnose`")
    if once:
        _print_once(config)
        return
    from gpu_exporter.top.app import run

    clean = run(lambda: _feed(config, url, credentials, seconds, one_job=one_job))
    if not clean:  # a thread is stuck in a driver: no destructor may wait for its locks
        sys.stdout.flush()
        os._exit(0)


def _print_once(config: Config) -> None:
    if config.recording is None:
        raise WrongUsage("--once needs --recording FILE; for GPUs of now, use `gpu-exporter diagnose`")
    from gpu_exporter.diagnosis.gather import RecordedScrapes
    from gpu_exporter.sources.choice import recording
    from gpu_exporter.sources.recording.format import job_of
    from gpu_exporter.top.once import table

    path = recording(config.recording)
    for line in table(RecordedScrapes(path), job_of(path)):
        click.echo(line)


def _feed(config: Config, url: str, credentials: dict[str, Any], seconds: float, *, one_job: bool) -> Feed:
    """Make the feed. Raises GpuExporterError."""
    from gpu_exporter.catalogue.xids import load
    from gpu_exporter.diagnosis.window import ONE_JOB
    from gpu_exporter.events.event_log import EventLog
    from gpu_exporter.events.kernel_log_thread import KernelWatch
    from gpu_exporter.host.files import HostFiles
    from gpu_exporter.http.client import Remote
    from gpu_exporter.owners.host_owner import host_evidence
    from gpu_exporter.sources.choice import is_local, make_source, origin
    from gpu_exporter.top.commands import CommandLines
    from gpu_exporter.top.feeds import INTERVAL_SECONDS, SourceFeed, UrlFeed
    from gpu_exporter.top.tracker import Tracker

    job = ONE_JOB if one_job or config.recording else ""  # a recording is of one job
    if url:
        _refuse_source(config)
        return UrlFeed(Remote(url, **credentials), Tracker(seconds, job=job))
    if config.recording and config.source == AUTO.name:
        from dataclasses import replace

        config = replace(config, source=REPLAY.name)
    source = make_source(config)
    events = EventLog(load(config.xid_overrides), lambda pci: None) if source.live else None
    kernel_log = None
    if events and config.kernel_log and is_local(config, source):
        kernel_log = KernelWatch(events, config.kernel_log, None, procfs=config.procfs)
    host = host_evidence(source, config, INTERVAL_SECONDS)
    return SourceFeed(
        source,
        Tracker(seconds, job=job, banner=BANNERS.get(origin(source), "")),
        events=events,
        host=host,
        kernel_log=kernel_log,
        commands=CommandLines(HostFiles(config.procfs, config.sysfs)) if host else None,
    )


def _refuse_source(config: Config) -> None:
    """Raise GpuExporterError for settings that a URL would ignore."""
    from gpu_exporter.sources.choice import refuse_unread

    if config.source != AUTO.name:
        raise WrongUsage(f"--source {config.source} and --url exclude each other: give one")
    refuse_unread(config)
