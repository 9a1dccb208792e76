"""What the profiles of a running exporter say about the GPUs that `gpu-exporter diagnose` reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.io.decoding import json_as
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.records import Summary
from gpu_exporter.profiling.store import newest
from gpu_exporter.profiling.views import SHOWN_SECONDS

if TYPE_CHECKING:
    from gpu_exporter.http.client import Remote


@dataclass(frozen=True, slots=True)
class _Listed:
    profiles: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class StoredProfiles:
    """The profiles of the last hour, oldest first, or why those that exist cannot be shown."""

    summaries: Sequence[Summary] = ()
    problem: str = ""


def exporter_profiles(remote: Remote, scrapes: Sequence[Scrape]) -> StoredProfiles:
    """Return the profiles of an exporter; none if its metrics say that it has none."""
    from gpu_exporter.http.client import exporter_url  # a client of HTTP, which local GPUs do not need

    latest = scrapes[-1].samples if scrapes else ()
    # Profiles of before a restart of the exporter are not counted, but have a time.
    if not any(sample.name in (m.PROFILES.name, m.PROFILED_AT.name) and sample.value for sample in latest):
        return StoredProfiles()
    try:
        text = replace(remote, url=exporter_url(remote.url)).get("/api/v1/profiles")
        return StoredProfiles(json_as(_Listed, text).profiles[::-1])
    except (GpuExporterError, ValueError) as error:
        return StoredProfiles(problem=f"the exporter's profiles are not shown: {error}")


def local_profiles(folder: Path) -> StoredProfiles:
    """Return the profiles that an exporter of this machine has stored; none if this user may not read them."""
    return StoredProfiles(newest(folder, time.time() - SHOWN_SECONDS))
