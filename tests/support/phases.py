"""The recorded phases of `truth.py`, each read once in a process however many tests judge it."""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.gather import RecordedScrapes
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.window import Window, seen


class _Tick(msgspec.Struct):
    phase: str = ""


def scrapes(path: Path, phase: str) -> list[Scrape]:
    """Return the scrapes of a phase, which is read from a copy without the other phases: they take most of the time."""
    with TemporaryDirectory() as folder:
        alone = Path(folder, path.name.removesuffix(".gz"))
        alone.write_bytes(_lines_by_phase(path)[phase])
        return list(RecordedScrapes(alone, phase))


def window(path: Path, phase: str) -> Window:
    """Return the signals of a phase, whose GPUs are the ranks of a job."""
    return _read(path, phase)[0]


def seconds(path: Path, phase: str) -> float:
    """Return for how long a phase was recorded after its ramp-up."""
    return _read(path, phase)[1]


@cache
def diagnoses(path: Path, phase: str) -> tuple[Diagnosis, ...]:
    """Return the diagnosis of each GPU of a phase."""
    return diagnose(window(path, phase))


@cache
def _read(path: Path, phase: str) -> tuple[Window, float]:
    recorded = scrapes(path, phase)
    window = seen(recorded, {}, job="job")
    window.is_brief = False  # each phase stands for work that goes on like that
    return window, recorded[-1].at - recorded[0].at


@lru_cache(maxsize=2)
def _lines_by_phase(path: Path) -> Mapping[str, bytes]:
    with gzip.open(path) as file:
        header, *ticks = file
    found: defaultdict[str, list[bytes]] = defaultdict(lambda: [header])
    for line in ticks:
        found[msgspec.json.decode(line, type=_Tick).phase].append(line)
    return {phase: b"".join(lines) for phase, lines in found.items()}
