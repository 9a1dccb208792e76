"""The work of `gpu-exporter diagnose`: gathers scrapes, diagnoses them, and prints the report."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_exporter.catalogue.xids import load
from gpu_exporter.cli.options import COULD_NOT_TELL
from gpu_exporter.cli.progress import Progress, has_colour
from gpu_exporter.cli.stop import exit_after, stop_event
from gpu_exporter.config import Config
from gpu_exporter.diagnosis import diagnose, gather, report, terminal_report
from gpu_exporter.diagnosis.machine import host_of, name_neighbours
from gpu_exporter.diagnosis.presence import Absent, present
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.window import Window, seen
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.source_kind import AUTO, DCGM, OF_SIMULATED, REPLAY, SIMULATED, SOURCE_KINDS
from gpu_exporter.sources.choice import is_remote, make_source, recording, refuse_unread
from gpu_exporter.sources.recording.format import job_of

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.remote import Remote
    from gpu_exporter.diagnosis.stored_profiles import StoredProfiles

# After a signal, what was watched by then is diagnosed. A response or a driver call that is awaited is given up.
STOP_SECONDS = 2.0


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
class DiagnoseRequest:
    """What to diagnose: a phase of the recording in the settings, a remote exporter or Prometheus, or local GPUs."""

    config: Config
    remote: Remote | None = None
    seconds: float | None = None
    phase: str = ""
    one_job: bool = False
    price: float | None = None
    report: Path | None = None
    mask_names: bool = False


@dataclass(frozen=True, slots=True)
class _Gathered:
    """The scrapes, or the recording that contains them; their source; and for how long they were watched.

    `job` is the job of which all GPUs are ranks.
    """

    scrapes: Sequence[Scrape]
    source: str
    job: str
    watched: float = 0.0
    clean: bool = True
    recorded: gather.RecordedScrapes | None = None

    @property
    def seconds(self) -> float:
        """For how long they were watched. Of a recording, call it after reading it."""
        return self.recorded.seconds if self.recorded else self.watched


def diagnosis(request: DiagnoseRequest, *, every: bool, as_json: bool, verbose: bool = False) -> tuple[int, bool]:
    """Print a diagnosis. Returns the exit code, and False if a driver call is stuck.

    With `every`, it includes the failure modes that could not be judged; `verbose` adds the names of series.
    """
    logging.disable(logging.WARNING)  # the report contains what would be logged
    clean, stop, watched = True, stop_event(), threading.Event()
    exit_after(stop, STOP_SECONDS, COULD_NOT_TELL, "interrupted before the diagnosis was complete", watched)
    try:
        with _progress(request):
            gathered = _gathered(request, stop)
            if not gathered.recorded:
                watched.set()  # what was watched so far is judged, however long that takes
            clean = gathered.clean
            # Each tick of a recording is of one GPU: the absence of the others means nothing.
            scrapes, absent = (gathered.recorded, []) if gathered.recorded else present(gathered.scrapes)
            window = seen(scrapes, {}, job=gathered.job)
            diagnoses = diagnose.diagnose(window)
        if not gathered.recorded and not request.remote:
            name_neighbours(diagnoses, request.config)
        if not diagnoses and not absent:
            raise GpuExporterError(
                f"{gathered.source}: no GPU found; `gpu-exporter doctor` says why, or give another --url"
            )
    except GpuExporterError as error:
        click.echo(f"gpu-exporter: {error}", err=True)
        return COULD_NOT_TELL, clean
    profiles = _profiles(request, gathered)
    if request.report:
        _write_report(request, gathered, diagnoses, absent, window)
    if as_json:
        _print_json(diagnoses, absent, gathered, profiles)
    elif sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        found = terminal_report.lines(diagnoses, window, width=width, style=_style(), every=every, verbose=verbose)
        _print_text(diagnoses, absent, gathered, ["", *found, ""], profiles, price=request.price, width=width)
    else:
        found = report.lines(diagnoses, every=every, verbose=verbose)
        _print_text(diagnoses, absent, gathered, found, profiles, price=request.price)
    return report.exit_code(diagnoses, absent), clean


def _gathered(request: DiagnoseRequest, stop: threading.Event) -> _Gathered:
    """Gather the scrapes. Raises GpuExporterError."""
    config, remote = request.config, request.remote
    if remote and config.recording:
        raise GpuExporterError("--url and --recording exclude each other: give one")
    if remote or config.recording:
        _refuse_ignored(config, request)
    if request.phase and not config.recording:
        raise GpuExporterError("--phase selects a phase of a recording: name it with --recording")
    if config.recording:
        path = recording(config.recording)
        return _Gathered((), REPLAY.name, job_of(path), recorded=gather.RecordedScrapes(path, request.phase))
    job, begin = "all" if request.one_job else "", time.monotonic()
    wanted = request.seconds or gather.WATCH_SECONDS
    if remote:
        from gpu_exporter.diagnosis.gather_remote import of_url  # a client of HTTP, which local GPUs do not need

        scrapes = of_url(remote, request.seconds, stop)
        elapsed, span = time.monotonic() - begin, _span(scrapes)
        # A Prometheus answers at once, with samples of a longer time.
        return _Gathered(scrapes, remote.url, job, span if span > elapsed else min(wanted, elapsed))
    scrapes, clean = _watched(config, wanted, stop)
    return _Gathered(scrapes, config.source, job, min(wanted, time.monotonic() - begin), clean=clean)


def _refuse_ignored(config: Config, request: DiagnoseRequest) -> None:
    """Raise GpuExporterError for settings that a recording or a URL would ignore."""
    instead = "--recording" if config.recording else "--url"
    if config.source != AUTO.name and not (config.recording and config.source == REPLAY.name):
        raise GpuExporterError(f"--source {config.source} and {instead} exclude each other: give one")
    if config.recording and request.seconds:
        raise GpuExporterError("--for is the time to watch; a recording is analysed as a whole, or one --phase of it")
    refuse_unread(replace(config, source=REPLAY.name if config.recording else AUTO.name))


def _span(scrapes: Sequence[Scrape]) -> float:
    return scrapes[-1].at - scrapes[0].at if scrapes else 0.0


def _watched(config: Config, seconds: float, stop: threading.Event) -> tuple[list[Scrape], bool]:
    source, events = make_source(config), EventLog(load(config.xid_overrides), lambda pci: None)
    if source.live and config.kernel_log not in ("", "none") and not is_remote(config, source.name):
        KernelWatch(events, Path(config.kernel_log), None, procfs=config.procfs).poll()
    return gather.of_source(source, seconds, stop, events, host_of(source, config, gather.TICK_SECONDS))


def _write_report(
    request: DiagnoseRequest,
    gathered: _Gathered,
    diagnoses: Sequence[diagnose.Diagnosis],
    absent: Sequence[Absent],
    window: Window,
) -> None:
    from gpu_exporter.diagnosis.html_file import Watched, driver_of, write  # only this option needs it

    recorded = gathered.recorded
    simulated = recorded.simulated if recorded else gathered.source == SIMULATED.name
    banner = "Simulated GPUs" if simulated else "Replayed from a recording of real GPUs" if recorded else ""
    driver = recorded.driver if recorded else driver_of(gathered.scrapes[:1])
    local = not (request.remote or recorded or simulated)
    remarks = [*filter(None, [_phases(gathered)])]
    watched = Watched(gathered.source, _origin(gathered), banner, gathered.seconds, local, driver, remarks)
    assert request.report
    write(request.report, watched, diagnoses, absent, window, mask=request.mask_names, price=request.price)


def _profiles(request: DiagnoseRequest, gathered: _Gathered) -> StoredProfiles | None:
    """Return the profiles that the exporter has stored; None if the GPUs are no real ones."""
    if gathered.recorded or gathered.source == SIMULATED.name:
        return None
    from gpu_exporter.diagnosis import stored_profiles

    if request.remote:
        return stored_profiles.of_exporter(request.remote, gathered.scrapes)
    return stored_profiles.of_folder(request.config.profile_dir)


def _profile_lines(diagnoses: Sequence[diagnose.Diagnosis], profiles: StoredProfiles | None) -> list[str]:
    if profiles is None:
        return []
    from gpu_exporter.diagnosis.stored_profiles import lines

    gpus = {each.device.uuid: each.identity.gpu for each in diagnoses if report.is_reported(each)}
    return lines(profiles, [(index, uuid) for uuid, index in gpus.items()], time.time())


def _print_json(
    diagnoses: Sequence[diagnose.Diagnosis],
    absent: Sequence[Absent],
    gathered: _Gathered,
    profiles: StoredProfiles | None,
) -> None:
    about: dict[str, Any] = {"source": gathered.source, "watched_seconds": round(gathered.seconds, 1)}
    if profiles and profiles.summaries:
        about["profiles"] = [summary.to_json() for summary in profiles.summaries]
    click.echo(json.dumps({**about, **report.as_dict(diagnoses, absent)}, indent=2))


def _print_text(
    diagnoses: Sequence[diagnose.Diagnosis],
    absent: Sequence[Absent],
    gathered: _Gathered,
    found: Iterable[str],
    profiles: StoredProfiles | None,
    *,
    price: float | None,
    width: int | None = None,
) -> None:
    """Print what is known about all GPUs around what was found; sentences are wrapped to `width` if there is one."""
    style = _style() if width else lambda text, name: text

    def echo(text: str, name: str = "") -> None:
        for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) if width else (text,):
            click.echo(style(line, name) if name else line)

    for line in report.absences(absent):
        echo(line, "bad")
    echo(f"{_origin(gathered)} Alerts need longer to fire.")
    if phases := _phases(gathered):
        echo(phases)
    click.echo("\n".join(found))
    for line in (*_profile_lines(diagnoses, profiles), *report.time_lines(diagnoses, price)):
        echo(line)
    if hint := report.hint(diagnoses):
        echo(hint)
    code = report.exit_code(diagnoses, absent)
    if code == 0 and report.has_headroom(diagnoses):
        echo("no fault was found, but the GPUs could do more: see where their time went and which limit they reach")
    elif code != 1:
        echo("nothing wrong was found" if code == 0 else "could not tell: see --all", "" if code else "good")


def _phases(gathered: _Gathered) -> str:
    """Return which phases of a recording were analysed together, as a sentence; empty if there is only one."""
    recorded = gathered.recorded
    phases = [printable(phase, 60) for phase in recorded.phases] if recorded and not recorded.phase else ()
    if len(phases) < 2:
        return ""
    return f"Its {len(phases)} phases are analysed together; select one with --phase: {', '.join(phases)}"


def _style() -> terminal_report.Style:
    """Return what colours a text; without colour, it stays as it is."""
    if not has_colour():
        return lambda text, name: text
    return lambda text, name: click.style(text, **COLOURS[name]) if name else text


def _progress(request: DiagnoseRequest) -> Progress:
    """Return what shows that the command works."""
    if request.config.recording:
        return Progress("Reading the recording")
    if request.remote:
        return Progress(f"Asking {printable(request.remote.url, 80)}", request.seconds)
    return Progress("Watching the GPUs", (request.seconds or gather.WATCH_SECONDS) + gather.TICK_SECONDS)


def _origin(gathered: _Gathered) -> str:
    """Return what was watched, and for how long."""
    seconds, recorded = f"{gathered.seconds:.0f} s", gathered.recorded
    if recorded:
        return f"Replayed {seconds} of {OF_SIMULATED if recorded.simulated else REPLAY.description}."
    match gathered.source:
        case SIMULATED.name:
            return f"Watched simulated GPUs for {seconds}."
        case DCGM.name:
            return f"Watched the GPUs of DCGM's host engine for {seconds}."
        case source if source in SOURCE_KINDS:
            return f"Watched the GPUs of this machine for {seconds}."
    return f"Analysed the last {seconds} of {gathered.source}."
