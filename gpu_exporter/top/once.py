"""`top --once`: a whole recording as one table, with the classes that `diagnose` finds."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.gather import RecordedScrapes
from gpu_exporter.diagnosis.incident_words import hit_by
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.report import is_reported
from gpu_exporter.diagnosis.summary_table import aligned, cells
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.source_kind import BANNERS, REPLAY, SIMULATED


def table(recorded: RecordedScrapes, job: str) -> Iterator[str]:
    """Yield a banner, then one line per GPU. Raises GpuExporterError for a damaged recording."""
    window = seen(recorded, {}, job=job)
    diagnoses = [diagnosis for diagnosis in diagnose(window) if is_reported(diagnosis)]
    hit = hit_by(of_diagnoses(diagnoses))
    rows = [cells(window, diagnosis, hit.get(diagnosis.device, "")) for diagnosis in diagnoses]
    yield f"{BANNERS[SIMULATED.name if recorded.simulated else REPLAY.name]}, {recorded.seconds:.0f} s"
    yield from aligned(rows)
