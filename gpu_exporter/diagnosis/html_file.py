"""`gpu-exporter diagnose --report`: puts the parts of the HTML page together, and writes the file."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.html_page import HtmlReport, page
from gpu_exporter.diagnosis.masking import Names
from gpu_exporter.diagnosis.presence import Absent
from gpu_exporter.diagnosis.scrape import Scrape
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.version import __version__

DRIVER_LABELS = ("driver_version", "DCGM_FI_DRIVER_VERSION")


@dataclass(frozen=True, slots=True)
class Watched:
    """What was watched: the source as in JSON, a sentence about it, a banner, and for how many seconds.

    `is_local`: the GPUs are those of this machine. `driver` is the version of their driver, if it is known.
    """

    source: str
    origin: str
    banner: str
    seconds: float
    is_local: bool
    driver: str = ""
    remarks: Sequence[str] = ()


def write(
    path: Path,
    watched: Watched,
    diagnoses: Sequence[Diagnosis],
    absent: Sequence[Absent],
    window: Window,
    *,
    mask: bool,
    price: float | None,
) -> None:
    """Write the page. An existing file is replaced at once, never in part. Raises OSError."""
    names = Names(mask=mask)
    shown = sorted(filter(report.is_reported, diagnoses), key=report.urgency)
    findings = [(diagnosis.device, names.diagnosis(diagnosis)) for diagnosis in shown]
    masked = dict(findings)
    gone = [names.absent(gpus) for gpus in absent]
    origin = watched.origin.replace(watched.source, names.source(watched.source))
    content = HtmlReport(
        title="GPU diagnosis",
        about=f"{origin} Alerts need longer to fire.",
        banner=watched.banner,
        findings=findings,
        absent=gone,
        window=window,
        content={
            "source": names.source(watched.source),
            "watched_seconds": round(watched.seconds, 1),
            **report.as_dict([masked[each.device] for each in diagnoses if each.device in masked], gone),
        },
        facts=_facts(watched, window),
        remarks=[*watched.remarks, *report.time_lines(diagnoses, price), *filter(None, [report.hint(diagnoses)])],
    )
    _replace(path, page(content))


def driver_of(scrapes: Iterable[Scrape]) -> str:
    """Return the version of the driver by the first sample that names it; empty if none does."""
    for scrape in scrapes:
        for sample in scrape.samples:
            if sample.name == m.INFO.name or sample.name.startswith("DCGM_"):
                for label in DRIVER_LABELS:
                    if version := sample.labels.get(label):
                        return version
    return ""


def _facts(watched: Watched, window: Window) -> Mapping[str, str]:
    until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(window.now))
    facts = {
        "Watched until": f"{until}, for {watched.seconds:.0f} s",
        "Driver": watched.driver or "unknown",
        "Written by": f"gpu-exporter {__version__}, Python {platform.python_version()}",
    }
    if watched.is_local:
        system = f"{platform.system()} {platform.release()}, {platform.machine()}"
        facts["Machine"] = f"{system}, {os.cpu_count()} CPUs{_memory()}"
    return facts


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return ""
    return f", {size / (1 << 30):.0f} GiB memory"


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    if sys.stderr:
        sys.stderr.write(f"report: {path}\n")
