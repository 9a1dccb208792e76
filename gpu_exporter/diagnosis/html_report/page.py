"""The HTML page: findings, charts, advice, machine and versions, and the JSON of the same diagnosis. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.html_report.charts import chart, time_bar
from gpu_exporter.diagnosis.html_report.style import STYLE
from gpu_exporter.diagnosis.judge import Diagnosis
from gpu_exporter.diagnosis.loss import breakdown, limits, lost, next_step
from gpu_exporter.diagnosis.measurements import MEASUREMENTS
from gpu_exporter.diagnosis.presence import Absent
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.summary_table import HEAD, cells
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.io.decoding import printable

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# The time that the charts show at most; classes use means over the last 5 minutes.
MOST_SECONDS = 3600.0
LONGEST = 400
# Charts of a GPU take some 20 kB; the GPUs come in order of severity.
MOST_CHARTED = 64
TITLES = {"GPU": "GPU", "SM": "SM", "DRAM": "DRAM"}


@dataclass(frozen=True, slots=True)
class Report:
    """What a page contains. `findings` are diagnoses with the device under which `window` has its values.

    `content` is what `--json` prints, `facts` are lines about the machine and versions by their names.
    """

    title: str
    about: str
    banner: str
    findings: Sequence[tuple[DeviceKey, Diagnosis]]
    absent: Sequence[Absent]
    window: Window
    content: Mapping[str, Any]
    facts: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()


def page(content: Report) -> str:
    """Return the whole document."""
    return "".join(_document(content)) + "\n"


def _text(text: str) -> str:
    """Return text from outside, without control characters and harmless in HTML."""
    return escape(printable(text, LONGEST), quote=True)


def _document(content: Report) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{_text(content.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    if content.banner:
        yield f'<p class="banner">{_text(content.banner)}</p>\n'
    yield f"<h1>{_text(content.title)}</h1>\n<p>{_text(content.about)}</p>\n"
    for gpus in report.absences(content.absent):
        yield f'<p class="critical">{_text(gpus)}</p>\n'
    yield from _overview(content)
    for remark in content.remarks:
        yield f"<p>{_text(remark)}</p>\n"
    for number, (device, diagnosis) in enumerate(content.findings):
        yield from _gpu(device, diagnosis, content.window, charted=number < MOST_CHARTED)
    if len(content.findings) > MOST_CHARTED:
        yield f"<p>Only the first {MOST_CHARTED} GPUs, the worst ones, have charts.</p>\n"
    yield from _about(content)
    embedded = json.dumps(content.content, indent=1)
    safe = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", embedded)
    yield f'</main>\n<script type="application/json" id="diagnosis">{safe}</script>\n</body>\n</html>'


def _overview(content: Report) -> Iterator[str]:
    head = "".join(f'<th scope="col">{TITLES.get(title, title.capitalize())}</th>' for title in HEAD)
    yield '<h2>GPUs</h2>\n<div class="wide" role="region" aria-label="GPUs" tabindex="0">'
    yield f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
    for device, diagnosis in content.findings:
        name = report.names_of([diagnosis]).removeprefix("GPU ")
        row = {**cells(content.window, replace(diagnosis, device=device)), "GPU": name}
        first, *rest = (_text(row[title]) for title in HEAD)
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
    yield f'<section id="{_anchor(diagnosis)}">\n<h2>{_text(report.names_of([diagnosis]))}'
    yield f" <small>{_text(where)}</small></h2>\n<p><b>{_text(report.what_is(diagnosis))}</b></p>\n"
    printed: set[str] = set()
    if numbers := report.evidence([diagnosis.numbers], printed):
        yield f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in numbers)}</ul>\n"
    if diagnosis.shares:
        share = f"{lost(diagnosis.shares):.0%}".replace("%", " %")
        yield f"<p>{share} of its time lost: {_text(breakdown([diagnosis.shares]))}</p>\n{time_bar(diagnosis.shares)}\n"
    if diagnosis.headroom and not diagnosis.headroom.limited_by:
        text = f"At no limit of the chip: {limits(diagnosis.headroom)}. {next_step(diagnosis.headroom)}"
        yield f"<p>{_text(text)}</p>\n"
    for text in report.processes([diagnosis], set()):
        yield f'<p class="process">{_text(text)}</p>\n'
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
            yield f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in numbers)}</ul>\n"
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
    title = report.names_of([diagnosis])
    yield '<div class="charts">\n'
    for measurement, points in series.items():
        yield chart(title, measurement, points, measurement.last_limit(window, device), span) + "\n"
    yield "</div>\n"


def _about(content: Report) -> Iterator[str]:
    yield "<section>\n<h2>About this report</h2>\n<dl>\n"
    for name, text in content.facts.items():
        yield f"<dt>{escape(name)}</dt><dd>{_text(text)}</dd>\n"
    yield (
        "</dl>\n<p>Charts: a line is a mean, the band around it the lowest and the highest value. The end of this file"
        ' has the diagnosis as JSON (<code>id="diagnosis"</code>), as <code>gpu-exporter diagnose --json</code> prints'
        " it.</p>\n</section>\n"
    )
