"""Charts of what was watched, as inline SVG. Colours and fonts come from the style sheet of the page."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.causes import COLOURS, WORDS, Cause
from gpu_exporter.catalogue.failure_modes.mode import Severity
from gpu_exporter.conditions.evaluate import Points
from gpu_exporter.diagnosis import report
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.html_style import STYLE
from gpu_exporter.diagnosis.loss import breakdown, limits, lost, next_step
from gpu_exporter.diagnosis.masking import Names
from gpu_exporter.diagnosis.measurements import MEASUREMENTS, SHARE, Measurement, amount
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.summary_table import HEAD, cells
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.io.decoding import printable
from gpu_exporter.version import __version__

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.result import DiagnosisResult

WIDTH, HEIGHT = 360, 110
LEFT, RIGHT, TOP, BOTTOM = 4, 4, 14, 16
# A line has at most so many points: the mean of an interval, within a band from its lowest to its highest value.
MOST_POINTS = 180
# A line is interrupted where no value came for so many intervals.
GAP = 5


def chart(title: str, measurement: Measurement, points: Points, limit: float | None, span: tuple[float, float]) -> str:
    """Return a line over the time from `span[0]` to `span[1]`; a sentence if there are no points."""
    name = escape(measurement.words)
    if not points:
        return f'<figure><figcaption>{name}</figcaption><p class="none">not measured</p></figure>'
    values = [value for _, value in points]
    low, high, mean = min(values), max(values), sum(values) / len(values)
    top = 1.0 if measurement.unit == SHARE else max(high, limit or 0.0) or 1.0
    lowest, middle, highest = (amount(measurement.unit, value) for value in (low, mean, high))
    about = f"mean {middle}, {lowest} to {highest}"
    label = escape(f"{title}, {measurement.words}: {about}", quote=True)
    drawn = "".join(_line(points, top, span))
    ruler = ""
    if limit is not None and measurement.unit != SHARE:
        y = _y(limit, top)
        ruler = f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    base = HEIGHT - BOTTOM
    return (
        f"<figure><figcaption><b>{name}</b> {escape(about)}</figcaption>"
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect class="plot" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{base - TOP}"/>{ruler}{drawn}'
        f'<text x="{LEFT}" y="{TOP - 4}">{escape(amount(measurement.unit, top))}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">0 s</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{span[1] - span[0]:.0f} s</text></svg></figure>'
    )


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


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - min(max(value / top, 0.0), 1.0))


def _line(points: Points, top: float, span: tuple[float, float]) -> Iterator[str]:
    """Yield a band and a line for each uninterrupted part of the points."""
    begin, seconds = span[0], max(span[1] - span[0], 1e-9)
    width = seconds / MOST_POINTS
    intervals = [
        (place, [value for _, value in group])
        for place, group in groupby(points, key=lambda point: int((point[0] - begin) / width))
    ]
    usual = max(1, len(intervals) and (intervals[-1][0] - intervals[0][0]) // len(intervals))
    for part in _parts(intervals, GAP * (usual + 1)):
        xs = [LEFT + (WIDTH - LEFT - RIGHT) * min((place + 0.5) / MOST_POINTS, 1.0) for place, _ in part]
        highs = [f"{x:.1f},{_y(max(values), top):.1f}" for x, (_, values) in zip(xs, part, strict=True)]
        lows = [f"{x:.1f},{_y(min(values), top):.1f}" for x, (_, values) in zip(xs, part, strict=True)]
        means = [f"{x:.1f},{_y(sum(values) / len(values), top):.1f}" for x, (_, values) in zip(xs, part, strict=True)]
        if len(part) == 1:
            yield f'<circle class="value" cx="{xs[0]:.1f}" cy="{means[0].partition(",")[2]}" r="1.5"/>'
            continue
        yield f'<polygon class="band" points="{" ".join([*highs, *reversed(lows)])}"/>'
        yield f'<polyline class="value" points="{" ".join(means)}"/>'


def _parts(intervals: Sequence[tuple[int, list[float]]], longest: int) -> Iterator[Sequence[tuple[int, list[float]]]]:
    begin = 0
    for place in range(1, len(intervals) + 1):
        if place == len(intervals) or intervals[place][0] - intervals[place - 1][0] > longest:
            yield intervals[begin:place]
            begin = place


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
TITLE = "GPU diagnosis"
# The time that the charts show at most; classes use means over the last 5 minutes.
MOST_SECONDS = 3600.0
LONGEST = 400
# Charts of a GPU take some 20 kB; the GPUs come in order of severity.
MOST_CHARTED = 64
TITLES = {"GPU": "GPU", "SM": "SM", "DRAM": "DRAM"}


@dataclass(frozen=True, slots=True)
class _Content:
    """What a page contains: a result whose names may be masked, and each diagnosis of it that is shown, the worst
    first, with the device under which the window has its values."""

    result: DiagnosisResult
    findings: Sequence[tuple[DeviceKey, Diagnosis]]
    remarks: Sequence[str]


def page(result: DiagnosisResult, *, mask: bool, price: float | None) -> str:
    """Return the whole document. With `mask`, names of pods, hosts, commands and users are replaced."""
    names = Names(mask=mask)
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
    )
    remarks = [
        report.phases_together(result),
        *report.time_lines(result.diagnoses, price),
        report.hint(result.diagnoses),
    ]
    return "".join(_document(_Content(named, list(findings.items()), [*filter(None, remarks)]))) + "\n"


def _text(text: str) -> str:
    """Return text from outside, without control characters and harmless in HTML."""
    return escape(printable(text, LONGEST), quote=True)


def _document(content: _Content) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield f"<title>{TITLE}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
    if banner := _banner(content.result):
        yield f'<p class="banner">{banner}</p>\n'
    yield f"<h1>{TITLE}</h1>\n<p>{_text(report.origin(content.result))}</p>\n"
    for gpus in report.absences(content.result.absent):
        yield f'<p class="critical">{_text(gpus)}</p>\n'
    yield from _overview(content)
    for remark in content.remarks:
        yield f"<p>{_text(remark)}</p>\n"
    for number, (device, diagnosis) in enumerate(content.findings):
        yield from _gpu(device, diagnosis, content.result.window, charted=number < MOST_CHARTED)
    if len(content.findings) > MOST_CHARTED:
        yield f"<p>Only the first {MOST_CHARTED} GPUs, the worst ones, have charts.</p>\n"
    yield from _about(content.result)
    embedded = json.dumps(report.as_json(content.result), indent=1)
    safe = re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", embedded)
    yield f'</main>\n<script type="application/json" id="diagnosis">{safe}</script>\n</body>\n</html>'


def _overview(content: _Content) -> Iterator[str]:
    head = "".join(f'<th scope="col">{TITLES.get(title, title.capitalize())}</th>' for title in HEAD)
    yield '<h2>GPUs</h2>\n<div class="wide" role="region" aria-label="GPUs" tabindex="0">'
    yield f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
    for device, diagnosis in content.findings:
        name = report.names_of([diagnosis]).removeprefix("GPU ")
        row = {**cells(content.result.window, replace(diagnosis, device=device)), "GPU": name}
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


def _banner(result: DiagnosisResult) -> str:
    """Return what nobody may mistake for GPUs of now."""
    if result.is_simulated:
        return "Simulated GPUs"
    return "Replayed from a recording of real GPUs" if result.recorded else ""


def _about(result: DiagnosisResult) -> Iterator[str]:
    yield "<section>\n<h2>About this report</h2>\n<dl>\n"
    for name, text in _facts(result).items():
        yield f"<dt>{escape(name)}</dt><dd>{_text(text)}</dd>\n"
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
