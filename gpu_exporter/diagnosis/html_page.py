"""The HTML report of a diagnosis: an overview, each GPU with its findings and charts, and the JSON."""

from __future__ import annotations

import os
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from gpu_exporter.alerting import runbooks
from gpu_exporter.catalogue.causes import COLOURS, WORDS, Cause
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Severity
from gpu_exporter.conditions.evaluate import Points
from gpu_exporter.diagnosis import incident_words, report
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.headline import headroom
from gpu_exporter.diagnosis.incidents import DiagnosedIncident, of_diagnoses
from gpu_exporter.diagnosis.loss import lost, mean_shares
from gpu_exporter.diagnosis.masking import DiagnosisNames
from gpu_exporter.diagnosis.measurements import MEASUREMENTS, Measurement
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.summary_table import HEAD, cells
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.diagnosis.words import names_of
from gpu_exporter.model.source_kind import BANNERS, NVML, REPLAY, SIMULATED
from gpu_exporter.reports.html_document import legend, page_foot, page_head, safe_text, verdict
from gpu_exporter.reports.line_chart import CHART_STYLE, line_chart
from gpu_exporter.reports.markdown import relinked
from gpu_exporter.reports.markdown_html import html_of, inline
from gpu_exporter.reports.numbers import binary_size, capitalised, counted, measured, moment, percent
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
tr.critical th,tr.critical td:nth-child(11),p.critical{color:var(--critical)}
tr.warning td:nth-child(11){color:var(--warning)}tr.info td:nth-child(11){color:var(--info)}
.finding{border-left:4px solid var(--info);padding:2px 12px;margin:12px 0}
.finding.critical{border-color:var(--critical)}.finding.warning{border-color:var(--warning)}
.finding h3{margin:0}.finding p{margin:.3em 0}
.process{font-family:ui-monospace,monospace;font-size:.9em}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(280px,1fr));gap:12px;margin-top:12px}
svg.time{height:14px}
.runbook{border:1px solid var(--edge);padding:.3em .8em;margin:.6em 0}.runbook pre{white-space:pre-wrap}
summary{cursor:pointer}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}dt{color:var(--soft)}dd{margin:0}
@media print{.finding,figure{break-inside:avoid}}
"""


def chart(title: str, measurement: Measurement, points: Points, limit: float | None, span: tuple[float, float]) -> str:
    """Return a line over the time from `span[0]` to `span[1]`; a sentence if there are no points."""
    scale: dict[str, float | None] = {"top": 1.0} if measurement.unit == "ratio" else {"limit": limit}
    return line_chart(title, measurement.words, points, span, lambda value: measured(value, measurement.unit), **scale)


def time_bar(shares: Mapping[Cause, float]) -> str:
    """Return where the time of a GPU went, as one bar with its legend."""
    parts, x = [], 0.0
    for cause, share in shares.items():
        if share > 0:
            parts.append(
                f'<rect x="{x * 100:.2f}" width="{share * 100:.2f}" height="10" fill="{COLOURS[cause]}">'
                f"<title>{escape(WORDS[cause])} {percent(share)}</title></rect>"
            )
            x += share
    words = {f"{WORDS[cause]} {percent(share)}": COLOURS[cause] for cause, share in shares.items() if share >= 0.01}
    label = ", ".join(words)
    bar = (
        f'<svg class="time" role="img" aria-label="{escape(label, quote=True)}" viewBox="0 0 100 10"'
        f' preserveAspectRatio="none">{"".join(parts)}</svg>'
    )
    return f"{bar}\n{legend(words)}"


@dataclass(frozen=True, slots=True)
class _Content:
    """What a page contains: a result whose names may be masked, its incidents, the groups of GPUs with the same
    findings, the worst first, and of each device that under which the window has its values."""

    result: DiagnosisResult
    incidents: Sequence[DiagnosedIncident]
    groups: Sequence[Sequence[Diagnosis]]
    measured: Mapping[DeviceKey, DeviceKey]
    remarks: Sequence[str]
    price: float | None


def page(result: DiagnosisResult, *, mask: bool, price: float | None) -> str:
    """Return the whole document. With `mask`, names of pods, hosts, commands and users are replaced."""
    names = DiagnosisNames(mask=mask)
    shown = [(each.device, names.diagnosis(each)) for each in result.diagnoses if report.is_reported(each)]
    named = replace(
        result,
        diagnoses=[diagnosis for _, diagnosis in shown],
        absent=[names.absent(gpus) for gpus in result.absent],
        source=names.source(result.source),
        several=result.several and result.several.masked(names),
        profiles=(),
        profile_lines={},
    )
    remarks = [
        *report.notes(named),
        report.phases_together(result),
        *report.time_lines(result.diagnoses, price),
        *report.hints_of(result.diagnoses),
    ]
    measured = {diagnosis.device: device for device, diagnosis in shown}
    incidents = of_diagnoses(named.diagnoses)
    groups = report.groups(named.diagnoses, incidents)
    return "".join(_document(_Content(named, incidents, groups, measured, [*filter(None, remarks)], price)))


def _document(content: _Content) -> Iterator[str]:
    yield from page_head(TITLE, CHART_STYLE + STYLE)
    if banner := _banner(content.result):
        yield f'<p class="banner">{banner}</p>\n'
    yield f"<h1>{TITLE}</h1>\n<p>{safe_text(report.origin(content.result))}</p>\n"
    yield from _verdict(content)
    yield from _incidents(content)
    yield from _overview(content)
    measured = content.measured
    if nodes := report.nodes_report(content.result, lambda device: measured[device]):
        yield from nodes.html()
    for remark in content.remarks:
        yield f"<p>{safe_text(remark)}</p>\n"
    charted = 0
    for group in content.groups:
        yield from _group(group, content, MOST_CHARTED - charted)
        charted += len(group)
    if charted > MOST_CHARTED:
        yield f"<p>Only the first {MOST_CHARTED} GPUs, the worst ones, have charts.</p>\n"
    yield from _runbooks(content)
    yield from _about(content.result)
    yield from page_foot(report.as_json(content.result, content.price, lambda device: measured[device]), "diagnosis")


def _verdict(content: _Content) -> Iterator[str]:
    """Yield how many incidents there are, and which GPUs are absent."""
    absent = list(report.absences(content.result.absent))
    numbers = Counter(each.incident.severity for each in content.incidents)
    found = [f"{numbers[severity]} {severity.value}" for severity in Severity if numbers[severity]]
    total = len(content.incidents)
    title = f"{counted(total, 'incident')}: {', '.join(found)}" if found else ""
    worst = next((severity.value for severity in Severity if numbers[severity]), "ok")
    not_seen = report.unseen_words(content.result.diagnoses)
    kind = Severity.CRITICAL.value if absent else "info" if worst == "ok" and not_seen else worst
    healthy = "No fault was found in what was seen" if not_seen else "No fault was found"
    texts = [*absent, not_seen] if not_seen else absent
    yield from verdict(kind, title or ("GPUs are missing" if absent else healthy), texts)


def _incidents(content: _Content) -> Iterator[str]:
    for each in content.incidents:
        mode, severity = each.incident.mode, each.incident.severity.value
        yield f'<div class="finding {severity}">\n<h3>{safe_text(incident_words.sentence(each))}'
        yield f" <small>{severity}</small></h3>\n"
        for text in incident_words.facts(each, content.price):
            yield f"<p>{safe_text(capitalised(text))}</p>\n"
        yield f"<p><b>What to do:</b> {inline(mode.advice)} {_runbook_link(mode)}</p>\n</div>\n"


def _runbook_link(mode: FailureMode) -> str:
    """Return a link to the runbook in this document: to its first heading, because that opens it."""
    return f'<a href="#{_prefix(mode)}{mode.page}">Runbook of {mode.name}</a>'


def _prefix(mode: FailureMode) -> str:
    return f"runbook-{mode.page}-"


def _runbooks(content: _Content) -> Iterator[str]:
    """Yield the runbooks of all modes that match, so that the report says what to do wherever it is read."""
    found = {match.mode.name: match.mode for group in content.groups for match in group[0].matches}
    if not found:
        return
    yield "<h2>Runbooks</h2>\n"
    for mode in found.values():
        prefix = _prefix(mode)

        def target(link: str, prefix: str = prefix) -> str:
            """Return where a link leads: the report has no other pages of the docs."""
            name = link.removesuffix(".md")
            if link.startswith("#"):
                return f"#{prefix}{link[1:]}"
            return next((f"#{_prefix(each)}{name}" for each in found.values() if each.page == name), "")

        text = relinked(runbooks.runbook(mode), target, runbooks.FOLDER)
        yield f'<details class="runbook"><summary>{mode.name}</summary>\n'
        yield f"{html_of(text, prefix=prefix, below=2)}</details>\n"


def _overview(content: _Content) -> Iterator[str]:
    head = "".join(f'<th scope="col">{TITLES.get(title, title.capitalize())}</th>' for title in HEAD)
    yield '<h2>GPUs</h2>\n<div class="wide" role="region" aria-label="GPUs" tabindex="0">'
    yield f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n"
    for group in content.groups:
        for folded in _same_cells(group, content):
            first, *rest = (safe_text(text) for text in folded)
            link = f'<th scope="row"><a href="#{_anchor(group[0])}">{first}</a></th>'
            yield f'<tr class="{_severity(group[0])}">{link}{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
    yield "</tbody></table></div>\n"


def _same_cells(group: Sequence[Diagnosis], content: _Content) -> Iterator[Sequence[str]]:
    """Yield rows of the table: GPUs whose other cells are the same share one."""
    rows: dict[tuple[str, ...], list[Diagnosis]] = defaultdict(list)
    hit = incident_words.hit_by(content.incidents)
    for diagnosis in group:
        measured = replace(diagnosis, device=content.measured[diagnosis.device])
        row = cells(content.result.window, measured, hit.get(diagnosis.device, ""))
        rows[tuple(row[title] for title in HEAD[1:])].append(diagnosis)
    for row_cells, folded in rows.items():
        yield names_of(folded).partition(" ")[2], *row_cells


def _severity(diagnosis: Diagnosis) -> str:
    return diagnosis.worst.mode.severity.value if diagnosis.worst else "ok"


def _anchor(diagnosis: Diagnosis) -> str:
    """Return the id of a section: made of the device, so that it is unique, and of nothing but letters and digits."""
    return "gpu-" + re.sub(r"[^0-9A-Za-z]+", "-", "-".join(diagnosis.device))


def _group(group: Sequence[Diagnosis], content: _Content, charted: int) -> Iterator[str]:
    """Yield GPUs with the same findings: what they have in common, and of the first `charted` ones their charts."""
    first, where = group[0], report.where_of(group[0])
    yield f'<section id="{_anchor(first)}">\n<h2>{safe_text(names_of(group))}'
    yield f" <small>{safe_text(where)}</small></h2>\n<p><b>{safe_text(report.what_is(first))}</b></p>\n"
    printed: set[str] = set()
    if numbers := report.evidence([each.numbers for each in group], printed):
        yield f"<ul>{''.join(f'<li>{safe_text(text)}</li>' for text in numbers)}</ul>\n"
    if shares := mean_shares([each.shares for each in group]):
        yield f"<p>{percent(lost(shares))} of {'its' if len(group) == 1 else 'their'} time lost:</p>\n"
        yield f"{time_bar(shares)}\n"
    if text := headroom(first):
        yield f"<p>{safe_text(text)}</p>\n"
    for text in report.processes(group, set()):
        yield f'<p class="process">{safe_text(text)}</p>\n'
    yield from _findings(group, incident_words.explanations(content.incidents), printed)
    for place, diagnosis in enumerate(group[: max(charted, 0)]):
        charts = "".join(_charts(content.measured[diagnosis.device], diagnosis, content.result.window))
        if place and charts:
            charts = f"<details><summary>Charts of {safe_text(names_of([diagnosis]))}</summary>\n{charts}</details>\n"
        yield charts
    yield "</section>\n"


def _findings(
    group: Sequence[Diagnosis], explained: Mapping[tuple[DeviceKey, str], str], printed: set[str]
) -> Iterator[str]:
    for match in group[0].matches:
        mode = match.mode
        severity = mode.severity.value
        yield f'<div class="finding {severity}">\n<h3>{mode.name} <small>{severity}</small></h3>\n'
        if numbers := report.because(match, group, printed):
            yield f"<ul>{''.join(f'<li>{safe_text(text)}</li>' for text in numbers)}</ul>\n"
        because = explained.get((group[0].device, mode.name))
        said = safe_text(capitalised(because)) + "." if because else inline(mode.advice)
        yield f"<p>{said} {_runbook_link(mode)}</p>\n</div>\n"


def _charts(device: DeviceKey, diagnosis: Diagnosis, window: Window) -> Iterator[str]:
    shown = [each.at_peaks(window, device) for each in MEASUREMENTS]
    series = {each: each.points(window, device, MOST_SECONDS) for each in shown}
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
    kind = SIMULATED if result.is_simulated else REPLAY if result.recorded else NVML
    return BANNERS.get(kind.name, "")


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
    until = moment(result.window.now)
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
    return f", {binary_size(size)} memory"
