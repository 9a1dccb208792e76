"""What the profiles of a running exporter say about the GPUs that `gpu-exporter diagnose` reports."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.records import ProfiledProcess, Summary, in_words
from gpu_exporter.profiling.store import newest
from gpu_exporter.profiling.views import SHOWN_SECONDS, latest_of
from gpu_exporter.reports.numbers import percent

if TYPE_CHECKING:
    from gpu_exporter.http.client import Remote

# Of several processes on a GPU, so many are named.
MOST_PROCESSES = 4
MOST_LINE = 600


@dataclass(frozen=True, slots=True)
class _Listed:
    profiles: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class StoredProfiles:
    """The profiles of the last hour, oldest first, or why those that exist cannot be shown."""

    summaries: Sequence[Summary] = ()
    problem: str = ""

    def lines(self, gpus: Iterable[tuple[str, str]], now: float) -> list[str]:
        """Return a line for each profiled process on these GPUs (index and UUID): what its main thread did most of the
        time, and where."""
        found = []
        for index, uuid in gpus:
            if summary := latest_of(self.summaries, uuid, now - SHOWN_SECONDS):
                minutes = max(0, round((now - summary.at) / 60))
                processes = [process for process in summary.processes if uuid in process.gpus]
                about = f"Profile of GPU {index}, {minutes} min ago"
                found += [f"{about}: {_process(process)}" for process in processes[:MOST_PROCESSES]]
                found += [f"{about}: {printable(in_words(odd), MOST_LINE)}" for odd in summary.odd]
        return [*dict.fromkeys(found), *filter(None, [self.problem])]


def exporter_profiles(remote: Remote, scrapes: Sequence[Scrape]) -> StoredProfiles:
    """Return the profiles of an exporter; none if its metrics say that it has taken none."""
    from gpu_exporter.http.client import exporter_url  # a client of HTTP, which local GPUs do not need

    latest = scrapes[-1].samples if scrapes else ()
    if not any(sample.name == m.PROFILES.name and sample.value for sample in latest):
        return StoredProfiles()
    try:
        text = replace(remote, url=exporter_url(remote.url)).get("/api/v1/profiles")
        return StoredProfiles(json_as(_Listed, text).profiles[::-1])
    except (GpuExporterError, ValueError) as error:
        return StoredProfiles(problem=f"the exporter's profiles are not shown: {error}")


def local_profiles(folder: Path) -> StoredProfiles:
    """Return the profiles that an exporter of this machine has stored; none if this user may not read them."""
    return StoredProfiles(newest(folder, time.time() - SHOWN_SECONDS))


def _process(process: ProfiledProcess) -> str:
    name = f"process {process.pid} ({printable(process.command, 80)}{f', rank {process.rank}' if process.rank else ''})"
    if not process.causes:
        return f"{name}: its main thread was not seen"
    cause = process.causes[0]
    where = f" at {printable(cause.lines[0].frame, 300)}" if cause.lines else ""
    return f"{name} spent {percent(cause.share)} of the time {cause.words}{where}"
