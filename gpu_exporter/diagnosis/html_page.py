"""The HTML report of a diagnosis: an overview, each GPU with its findings and charts, and the JSON."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.causes import COLOURS, WORDS, Cause
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.conditions.evaluate import Points
from gpu_exporter.diagnosis import incident_words, report
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.loss import breakdown, limits, lost, next_step
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.measurements import MEASUREMENTS, SHARE, Measurement, amount
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.summary_table import HEAD, cells
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.diagnosis.words import names_of
from gpu_exporter.reports.html_document import page_foot, page_head, safe_text
from gpu_exporter.reports.line_chart import CHART_STYLE, line_chart
from gpu_exporter.reports.numbers import percent
from gpu_exporter.version import __version__

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.result import DiagnosisResult

TITLE = "GPU diagnosis"
# The time that the charts show at most; classes use means over the last 5 minutes.
MOST_SECONDS = 3600.0
# Charts of a GPU take some 20 kB; the GPUs come in order of severity.
MOST_CHARTED = 64
TITLES = {"GPU": "GPU", "SM": "SM", "DRAM": "DRAM"}
# The rules of this page, beyond those of charts and of all reports.
STYLE = """
.banner{background:#f2c037;color:#1c2024;font-weight:bold;padding:8px 12px;margin:0 0 12px}
th,td{white-space:nowrap}
tr.critical th,tr.critical td:nth-child(11),p.critical{color:var(--critical)}
tr.warning td:nth-child(11){color:var(--warning)}tr.info td:nth-child(11){color:var(--info)}
.finding{border-left:4px solid var(--info);padding:2px 12px;margin:12px 0}
.finding.critical{border-color:var(--critical)}.finding.warning{border-color:var(--warning)}
.finding h3{margin:0}.finding p{margin:.3em 0}
.process{font-family:ui-monospace,monospace;font-size:.9em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(280px,1fr));gap:12px;margin-top:12px}
svg.time{height:14px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}dt{color:var(--soft)}dd{margin:0}
@media print{.finding,figure{break-inside:avoid}}
"""


def chart(title: str, measurement: Measurement, points: Points, limit: float | None, span: tuple[float, float]) -> str:
    """Return a line over the time from `span[0]` to `span[1]`; a sentence if there are no points."""
    scale: dict[str, float | None] = {"top": 1.0} if measurement.unit == SHARE else {"limit": limit}
    return line_chart(title, measurement.words, points, span, partial(amount, measurement.unit), **scale)


def time_bar(shares: Mapping[Cause, float]) -> str:
    """Return where the time of a GPU went, as one bar."""
    parts, x = [], 0.0
    for cause, share in shares.items():
        if share > 0:
            parts.append(
                f'<rect x="{x * 100:.2f}" width="{share * 100:.2f}" height="10" fill="{COLOURS[cause]}">'
                f"<title>{escape(WORDS[cause])} {share:.0%}</title></rect>"
            )
            x += share
    label = ", ".join(f"{WORDS[cause]} {share:.0%}" for cause, share in shares.items() if share >= 0.01)
    return (
        f'<svg class="time" role="img" aria-label="{escape(label, quote=True)}" viewBox="0 0 100 10"'
        f' preserveAspectRatio="none">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Content:
    """What a page contains: a result whose names may be masked, and each diagnosis of it that is shown, the worst
    first, with the device under which the window has its values."""

    result: DiagnosisResult
    findings: Sequence[tuple[DeviceKey, Diagnosis]]
    remarks: Sequence[str]
    price: float | None


def page(result: DiagnosisResult, *, mask: bool, price: float | None) -> str:
    """Return the whole document. With `mask`, names of pods, hosts, commands and users are replaced."""
    names = DiagnosisNames(mask=mask)
    findings = {
        diagnosis.device: names.diagnosis(diagnosis)
        for diagnosis in sorted(filter(report.is_reported, result.diagnoses), key=report.urgency)
    }
    named = replace(
        result,
        diagnoses=[findings[each.device] for each in result.diagnoses if each.device in findings],
        absent=[names.absent(gpus) for gpus in result.absent],
        source=names.source(result.source),
        profiles=(),
        profile_lines={},
    )
    remarks = [
        report.phases_together(result),
        *report.time_lines(result.diagnoses, price),
        report.hint(result.diagnoses),
    ]
    return "".join(_document(_Content(named, list(findings.items()), [*filter(None, remarks)], price)))


def _document(content: _Content) -> Iterator[str]:
    yield from page_head(TITLE, CHART_STYLE + STYLE)
    if banner := _banner(content.result):
        yield f'<p class="banner">{banner}</p>\n'
    yield f"<h1>{TITLE}</h1>\n<p>{safe_text(report.origin(content.result))}</p>\n"
    for gpus in report.absences(content.result.absent):
        yield f'<p class="critical">{safe_text(gpus)}</p>\n'
    yield from _incidents(content)
    yield from _overview(content)
    for remark in content.remarks:
        yield f"<p>{safe_text(remark)}</p>\n"
    for number, (device, diagnosis) in enumerate(content.findings):
        yield from _gpu(device, diagnosis, content.result.window, charted=number < MOST_CHARTED)
    if len(content.findings) > MOST_CHARTED:
        yield f"<p>Only the first {MOST_CHARTED} GPUs, the worst ones, have charts.</p>\n"
    yield from _about(content.result)
    yield from page_foot(report.as_json(content.result, content.price), "diagnosis")


def _incidents(content: _Content) -> Iterator[str]:
    for text, severity in incident_words.lines(of_diagnoses(content.result.diagnoses), content.price):
        if severity:
            yield f'<p class="finding {severity}"><b>{safe_text(text)}</b></p>\n'
        else:
            yield f"<p>{safe_text(text.strip())}</p>\n"


def _overview(content: _Content) -> Iterator[str]:
    head = "".join(f'<th scope="col">{TITLES.get(title, title.capitalize())}</th>' for title in HEAD)
    yield '<h2>GPUs</h2>\n<div class="wide" role="region" aria-label="GPUs" tabindex="0">'
    yield f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
    for device, diagnosis in content.findings:
        name = names_of([diagnosis]).removeprefix("GPU ")
        row = {**cells(content.result.window, replace(diagnosis, device=device)), "GPU": name}
        first, *rest = (safe_text(row[title]) for title in HEAD)
        link = f'<th scope="row"><a href="#{_anchor(diagnosis)}">{first}</a></th>'
        yield f'<tr class="{_severity(diagnosis)}">{link}{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
    yield "</tbody></table></div>\n"


def _severity(diagnosis: Diagnosis) -> str:
    return list(Severity)[report.urgency(diagnosis)].value if diagnosis.matches else "ok"


def _anchor(diagnosis: Diagnosis) -> str:
    """Return the id of a section: made of the device, so that it is unique, and of nothing but letters and digits."""
    return "gpu-" + re.sub(r"[^0-9A-Za-z]+", "-", "-".join(diagnosis.device))


def _gpu(device: DeviceKey, diagnosis: Diagnosis, window: Window, *, charted: bool) -> Iterator[str]:
    where = report.where_of(diagnosis)
    yield f'<section id="{_anchor(diagnosis)}">\n<h2>{safe_text(names_of([diagnosis]))}'
    yield f" <small>{safe_text(where)}</small></h2>\n<p><b>{safe_text(report.what_is(diagnosis))}</b></p>\n"
    printed: set[str] = set()
    if numbers := report.evidence([diagnosis.numbers], printed):
        yield f"<ul>{''.join(f'<li>{safe_text(text)}</li>' for text in numbers)}</ul>\n"
    if diagnosis.shares:
        yield f"<p>{percent(lost(diagnosis.shares))} of its time lost: {safe_text(breakdown([diagnosis.shares]))}</p>\n"
        yield f"{time_bar(diagnosis.shares)}\n"
    if diagnosis.headroom and not diagnosis.headroom.limited_by:
        text = f"At no limit of the chip: {limits(diagnosis.headroom)}. {next_step(diagnosis.headroom)}"
        yield f"<p>{safe_text(text)}</p>\n"
    for text in report.processes([diagnosis], set()):
        yield f'<p class="process">{safe_text(text)}</p>\n'
    yield from _findings(diagnosis, printed)
    if charted:
        yield from _charts(device, diagnosis, window)
    yield "</section>\n"


def _findings(diagnosis: Diagnosis, printed: set[str]) -> Iterator[str]:
    order = list(Severity)
    for match in sorted(diagnosis.matches, key=lambda each: order.index(each.mode.severity)):
        mode = match.mode
        severity = mode.severity.value
        yield f'<div class="finding {severity}">\n<h3>{mode.name} <small>{severity}</small></h3>\n'
        if numbers := report.evidence([match.because], printed):
            yield f"<ul>{''.join(f'<li>{safe_text(text)}</li>' for text in numbers)}</ul>\n"
        advice = re.sub("`([^`]*)`", r"<code>\1</code>", escape(mode.advice))
        yield f"<p>{advice}</p>\n<p>Runbook: {_runbook(report.runbook(mode))}</p>\n</div>\n"


def _runbook(place: str) -> str:
    return f'<a href="{escape(place, quote=True)}">{escape(place)}</a>' if "://" in place else f"<code>{place}</code>"


def _charts(device: DeviceKey, diagnosis: Diagnosis, window: Window) -> Iterator[str]:
    series = {each: each.points(window, device, MOST_SECONDS) for each in MEASUREMENTS}
    times = [point[0] for points in series.values() for point in points]
    if not times:
        return
    span = min(times), max(times)
    title = names_of([diagnosis])
    yield '<div class="charts">\n'
    for measurement, points in series.items():
        yield chart(title, measurement, points, measurement.last_limit(window, device), span) + "\n"
    yield "</div>\n"


def _banner(result: DiagnosisResult) -> str:
    """Return what nobody may mistake for GPUs of now."""
    if result.is_simulated:
        return "Simulated GPUs"
    return "Replayed from a recording of real GPUs" if result.recorded else ""


def _about(result: DiagnosisResult) -> Iterator[str]:
    yield "<section>\n<h2>About this report</h2>\n<dl>\n"
    for name, text in _facts(result).items():
        yield f"<dt>{escape(name)}</dt><dd>{safe_text(text)}</dd>\n"
    yield (
        "</dl>\n<p>Charts: a line is a mean, the band around it the lowest and the highest value. The end of this file"
        ' has the diagnosis as JSON (<code>id="diagnosis"</code>), as <code>gpu-exporter diagnose --json</code> prints'
        " it.</p>\n</section>\n"
    )


def _facts(result: DiagnosisResult) -> Mapping[str, str]:
    """Return lines about the machine and versions by their names."""
    until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(result.window.now))
    facts = {
        "Watched until": f"{until}, for {result.seconds:.0f} s",
        "Driver": result.driver or "unknown",
        "Written by": f"gpu-exporter {__version__}, Python {platform.python_version()}",
    }
    if result.is_local:
        system = f"{platform.system()} {platform.release()}, {platform.machine()}"
        facts["Machine"] = f"{system}, {os.cpu_count()} CPUs{_memory()}"
    return facts


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return ""
    return f", {size / (1 << 30):.0f} GiB memory"
