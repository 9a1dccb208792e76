"""`gpu-exporter diagnose`: gets the evidence, has it judged, prints what came out."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gpu_exporter.catalogue.xids import load
from gpu_exporter.cli.stop import stop_event
from gpu_exporter.config import Config
from gpu_exporter.diagnosis import gather, judge
from gpu_exporter.diagnosis.remote import Remote
from gpu_exporter.diagnosis.window import Page, seen
from gpu_exporter.health.events import EventLog
from gpu_exporter.health.kernel_log_thread import KernelWatch
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.source import NOT_YOURS
from gpu_exporter.sources.choice import only, recording

COULD_NOT_TELL = 2


def diagnosis(
    seconds: float | None,
    phase: str,
    one_job: bool,
    url: str,
    user: str,
    password_file: Path | None,
    ca_file: Path | None,
    every: bool,
    as_json: bool,
    **values: Any,
) -> tuple[int, bool]:
    """The exit code, and False if a driver call is stuck."""
    logging.disable(logging.WARNING)  # what would be logged is in the diagnosis
    config, remote = Config(**values), Remote(url, None, user, password_file, ca_file) if url else None
    stop, clean = stop_event(), True
    try:
        if remote and config.recording:
            raise GpuExporterError("--url and --recording are two different things to look at: give one")
        if phase and not config.recording:
            raise GpuExporterError("--phase is of a recording: name it with --recording")
        if config.recording:
            path = recording(config.recording)
            pages, source = gather.of_recording(path, phase), "replay"
            names = gather.phases(path) if not phase else []
            job = path.name.split(".")[0]
        elif remote:
            pages, source, names, job = gather.of_url(remote, seconds, stop), url, [], "all" if one_job else ""
        else:
            (pages, clean), source = _watched(config, seconds or gather.WATCH_SECONDS, stop), config.source
            names, job = [], "all" if one_job else ""
        found = judge.diagnose(seen(pages, {}, job=job))
        if not found:
            raise GpuExporterError(f"{source}: shows no GPU; look with `gpu-exporter doctor`, or give another --url")
    except GpuExporterError as error:
        click.echo(f"gpu-exporter: {error}", err=True)
        return COULD_NOT_TELL, clean
    _tell(found, pages, source, names, every=every, as_json=as_json)
    return judge.verdict(found), clean


def _watched(config: Config, seconds: float, stop: threading.Event) -> tuple[list[Page], bool]:
    source, events = only(config), EventLog(load(config.xid_overrides), lambda pci: None)
    if source.live and config.kernel_log not in ("", "none"):  # the kernel's is of this machine
        KernelWatch(events, Path(config.kernel_log), None, procfs=config.procfs).poll()
    return gather.of_source(source, seconds, stop, events)


def _tell(
    found: Sequence[judge.Diagnosis],
    pages: Sequence[Page],
    source: str,
    phases: Sequence[str],
    *,
    every: bool,
    as_json: bool,
) -> None:
    watched = pages[-1].at - pages[0].at if pages else 0.0
    if as_json:
        what = {"source": source, "watched_seconds": round(watched, 1), **judge.as_dict(found)}
        click.echo(json.dumps(what, indent=2))
        return
    note = f", {NOT_YOURS[source]}" if source in NOT_YOURS else ""
    click.echo(f"watched {watched:.0f} s of {source}{note}; alerts wait longer before they fire")
    if len(phases) > 1:
        click.echo(f"the recording has {len(phases)} phases, here all in one; --phase is one of {', '.join(phases)}")
    click.echo("\n".join(judge.lines(found, every=every)))
    if not any(each.matches for each in found):
        click.echo("nothing wrong was found" if judge.verdict(found) == 0 else "could not tell")
