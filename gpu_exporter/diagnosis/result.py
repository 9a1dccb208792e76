"""The result of a diagnosis, from scrapes that were watched or a recording. Whoever prints it reads only this value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.gather import RecordedScrapes, WatchedScrapes
from gpu_exporter.diagnosis.presence import Absent, present
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.window import Window, seen
from gpu_exporter.model.source_kind import REPLAY, SIMULATED, SOURCE_KINDS
from gpu_exporter.sources.recording.format import job_of

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.several_nodes import SeveralNodes

DRIVER_LABELS = ("driver_version", "DCGM_FI_DRIVER_VERSION")


@dataclass(frozen=True, slots=True)
class DiagnosisResult:
    """What is said about GPUs: the diagnoses, and those that are absent.

    `source` is the kind of their source or its URL, which was watched for `seconds`; `recorded` is the recording, if it
    is one. `driver` is the version of the driver, if it is known. `profiles` are those of their processes as in JSON,
    `profile_lines` what these say, by UUID, and `profile_problem` why they are not shown. `several` is set if several
    exporters were watched. `clean` is False if a driver call is stuck.
    """

    source: str
    seconds: float
    window: Window
    diagnoses: Sequence[Diagnosis]
    absent: Sequence[Absent] = ()
    driver: str = ""
    recorded: RecordedScrapes | None = None
    profiles: Sequence[Mapping[str, Any]] = ()
    profile_lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    profile_problem: str = ""
    several: SeveralNodes | None = None
    clean: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether there is no GPU."""
        return not self.diagnoses and not self.absent

    @property
    def is_simulated(self) -> bool:
        """Whether the GPUs are simulated, or were when they were recorded."""
        return self.recorded.simulated if self.recorded else self.source == SIMULATED.name

    @property
    def is_local(self) -> bool:
        """Whether these are GPUs that this machine has now."""
        return self.source in SOURCE_KINDS and not self.recorded and not self.is_simulated


def diagnose_recording(path: Path, phase: str = "") -> DiagnosisResult:
    """Return what a recording, or one phase of it, says about its GPUs. Raises GpuExporterError."""
    recorded = RecordedScrapes(path, phase)
    window = seen(recorded, {}, job=job_of(path))
    # Each tick is of one GPU: the absence of the others means nothing.
    return DiagnosisResult(
        REPLAY.name, recorded.seconds, window, diagnose(window), driver=recorded.driver, recorded=recorded
    )


def diagnose_scrapes(watched: WatchedScrapes, job: str = "") -> DiagnosisResult:
    """Return what scrapes say about GPUs. With `job`, all GPUs are ranks of a job of that name."""
    scrapes, absent = present(watched.scrapes)
    window = seen(scrapes, {}, job=job)
    return DiagnosisResult(
        watched.source,
        watched.seconds,
        window,
        diagnose(window),
        absent,
        driver_version(watched.scrapes[:1]),
        clean=watched.clean,
    )


def driver_version(scrapes: Iterable[Scrape]) -> str:
    """Return the version of the driver by the first sample that names it; empty if none does."""
    for scrape in scrapes:
        for sample in scrape.samples:
            if sample.name == m.INFO.name or sample.name.startswith("DCGM_"):
                for label in DRIVER_LABELS:
                    if version := sample.labels.get(label):
                        return version
    return ""
