"""A request for a diagnosis: gathers its scrapes, and returns what they say about the GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.failure_modes.host import CPU_STARVED
from gpu_exporter.catalogue.xids import load
from gpu_exporter.config import Config
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.gather import TICK_SECONDS, WATCH_SECONDS, WatchedScrapes, watch_source
from gpu_exporter.diagnosis.report import is_reported
from gpu_exporter.diagnosis.result import DiagnosisResult, diagnose_recording, diagnose_scrapes
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.window import ONE_JOB
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.kernel_log_thread import KernelWatch
from gpu_exporter.host.files import HostFiles
from gpu_exporter.host.neighbours import neighbours
from gpu_exporter.owners.host_owner import host_evidence
from gpu_exporter.sources.choice import is_local, make_source, recording

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.several_nodes import SeveralNodes
    from gpu_exporter.http.client import Remote


@dataclass(frozen=True, slots=True)
class DiagnosisRequest:
    """What to diagnose: the recording in the settings or a phase of it, a remote exporter or Prometheus, the exporters
    of several nodes, or local GPUs.

    `seconds` is how long to watch, or how far a Prometheus looks back; None for the usual time. Of several nodes, only
    the GPUs of `job` count, if it is given.
    """

    config: Config
    remote: Remote | None = None
    seconds: float | None = None
    phase: str = ""
    one_job: bool = False
    nodes: Sequence[Remote] = ()
    job: str = ""


def diagnose_request(request: DiagnosisRequest, stop: threading.Event, watched: threading.Event) -> DiagnosisResult:
    """Watch the GPUs, or ask for their scrapes, until `stop`; then set `watched`, and return what the scrapes say.

    A recording is read to its end, and does not set `watched`. Raises GpuExporterError.
    """
    config = request.config
    if config.recording:
        return diagnose_recording(recording(config.recording), request.phase)
    if request.nodes:
        return _diagnose_nodes(request, stop, watched)
    scrapes = _asked(request.remote, request.seconds, stop) if request.remote else _watched(request, stop)
    watched.set()
    result = diagnose_scrapes(scrapes, ONE_JOB if request.one_job else "")
    if result.is_empty:
        return result
    if not request.remote:
        _name_neighbours(result.diagnoses, HostFiles(config.procfs, config.sysfs))
    return result if result.is_simulated else _with_profiles(result, request, scrapes.scrapes)


def _diagnose_nodes(request: DiagnosisRequest, stop: threading.Event, watched: threading.Event) -> DiagnosisResult:
    """Watch the exporters of several nodes, and return what they say about all GPUs together."""
    from gpu_exporter.diagnosis.several_nodes import watch_nodes  # a client of HTTP, which local GPUs do not need

    scrapes, several = watch_nodes(request.nodes, request.seconds, stop)
    watched.set()
    result = replace(diagnose_scrapes(scrapes, ONE_JOB if request.one_job else ""), several=several)
    return _only(result, several, request.job) if request.job and not request.one_job else result


def _only(result: DiagnosisResult, several: SeveralNodes, job: str) -> DiagnosisResult:
    """Return only the GPUs of a job; if none is known, all GPUs and a note."""
    from gpu_exporter.diagnosis.several_nodes import NodeNote

    of_loops = {rank.labels.device for rank in result.window.ranks_now if rank.labels.job_id == job}
    known = [each for each in result.diagnoses if each.identity.workload == job or each.device in of_loops]
    if known:
        return replace(result, diagnoses=known)
    note = NodeNote(f"no exporter says which GPUs job {job} has (docs/attribution.md): all GPUs of its nodes count", ())
    return replace(result, several=replace(several, notes=[*several.notes, note]))


def _watched(request: DiagnosisRequest, stop: threading.Event) -> WatchedScrapes:
    """Watch the GPUs of the source in the settings, with the errors in the kernel log and the processes on them."""
    config = request.config
    source, events = make_source(config), EventLog(load(config.xid_overrides), lambda pci: None)
    if config.kernel_log and is_local(config, source):
        KernelWatch(events, config.kernel_log, None, procfs=config.procfs).poll()
    host = host_evidence(source, config, TICK_SECONDS)
    return watch_source(source, request.seconds or WATCH_SECONDS, stop, events, host)._replace(source=config.source)


def _asked(remote: Remote, seconds: float | None, stop: threading.Event) -> WatchedScrapes:
    """Scrape an exporter, or query a Prometheus, which answers at once, with samples of a longer time."""
    from gpu_exporter.diagnosis.remote_scrapes import remote_scrapes  # a client of HTTP, which local GPUs do not need

    begin = time.monotonic()
    scrapes = remote_scrapes(remote, seconds, stop)
    elapsed, span = time.monotonic() - begin, scrapes[-1].at - scrapes[0].at if scrapes else 0.0
    return WatchedScrapes(scrapes, remote.url, span if span > elapsed else min(seconds or WATCH_SECONDS, elapsed))


def _name_neighbours(diagnoses: Iterable[Diagnosis], files: HostFiles) -> None:
    """Add what else uses the CPUs of a process on a GPU of this machine that gets too little CPU time."""
    for diagnosis in diagnoses:
        process = diagnosis.identity.process
        if CPU_STARVED in (match.mode.name for match in diagnosis.matches) and process.get("pid", "").isdecimal():
            diagnosis.identity.neighbours = tuple(
                f"process {other.pid} ({other.name}, {other.cpus:.2g} CPUs)"
                for other in neighbours(files, int(process["pid"]))
            )


def _with_profiles(result: DiagnosisResult, request: DiagnosisRequest, scrapes: Sequence[Scrape]) -> DiagnosisResult:
    """Return a result with the profiles that the exporter has stored of the GPUs."""
    from gpu_exporter.diagnosis.stored_profiles import exporter_profiles, local_profiles
    from gpu_exporter.profiling.views import lines_by_gpu

    remote, folder = request.remote, request.config.profile_dir
    stored = exporter_profiles(remote, scrapes) if remote else local_profiles(folder)
    gpus = {each.device.uuid: each.identity.gpu for each in result.diagnoses if is_reported(each)}
    return replace(
        result,
        profiles=[summary.to_json() for summary in stored.summaries],
        profile_lines=lines_by_gpu(stored.summaries, [(index, uuid) for uuid, index in gpus.items()], time.time()),
        profile_problem=stored.problem,
    )
