"""A diagnosis for people at a terminal: a table, then what is wrong with each group of GPUs, the worst first. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.causes import WORDS, Cause
from gpu_exporter.catalogue.failure_modes.mode import Scope
from gpu_exporter.diagnosis import incident_words, report
from gpu_exporter.diagnosis.diagnose import Diagnosis, Match
from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.diagnosis.incidents import DiagnosedIncident, of_diagnoses, order_of_gpus
from gpu_exporter.diagnosis.loss import LEAST_SHARE, breakdown, lost, no_limit
from gpu_exporter.diagnosis.summary_table import aligned, cells
from gpu_exporter.diagnosis.window import Window
from gpu_exporter.diagnosis.words import names_of
from gpu_exporter.reports.numbers import percent

if TYPE_CHECKING:
    from gpu_exporter.diagnosis.result import DiagnosisResult

# Styles a text: with the name of a style, such as `bad`.
Style = Callable[[str, str], str]
NARROWEST, WIDEST = 40, 120


def report_lines(
    result: DiagnosisResult, *, width: int, style: Style, every: bool, verbose: bool, price: float | None
) -> Iterator[str]:
    """Yield the whole report, its sentences wrapped to `width` columns."""
    yield from _sentences(report.beginning(result), width, style)
    yield ""
    if nodes := report.nodes_report(result):
        yield from nodes.lines()
        yield ""
    yield from lines(
        result.diagnoses,
        result.window,
        width=width,
        style=style,
        every=every,
        verbose=verbose,
        price=price,
        code=result.profile_lines,
    )
    yield ""
    yield from _sentences(report.end(result, price), width, style)


def _sentences(styled: Iterable[tuple[str, str]], width: int, style: Style) -> Iterator[str]:
    for sentence, name in styled:
        yield from (style(line, name) if name else line for line in _wrapped(sentence, width, "", ""))


def lines(
    diagnoses: Sequence[Diagnosis],
    window: Window,
    *,
    width: int,
    style: Style,
    every: bool = False,
    verbose: bool = False,
    price: float | None = None,
    code: incident_words.Code = incident_words.NO_CODE,
) -> Iterator[str]:
    """Yield the report, wrapped between words to `width` columns. `every` and `verbose` are those of `report.lines`."""
    width = min(max(width, NARROWEST), WIDEST)
    incidents = of_diagnoses(diagnoses)
    yield from _table(diagnoses, window, width, style, incidents)
    of_incidents = list(incident_words.lines(incidents, price, code))
    if of_incidents:
        yield ""
    for text, severity in of_incidents:
        indent = len(text) - len(text.lstrip())
        found = _wrapped(text, width, " " * indent, " " * (indent + 2))
        yield from (style(line, STYLES[severity]) if severity else line for line in found)
    said = incident_words.advice(incidents)
    for group in report.groups(diagnoses, incidents, every=every):
        yield ""
        for text, name, first, rest in _block(group, diagnoses, said, every=every, verbose=verbose):
            yield from (style(line, name) if name else line for line in _wrapped(text, width, first, rest))


def _table(
    diagnoses: Sequence[Diagnosis], window: Window, width: int, style: Style, incidents: Sequence[DiagnosedIncident]
) -> Iterator[str]:
    hit_by = incident_words.hit_by(incidents)
    shown = sorted(filter(report.is_reported, diagnoses), key=order_of_gpus(incidents))
    head, *rows = aligned([cells(window, diagnosis, hit_by.get(diagnosis.device, "")) for diagnosis in shown], width)
    yield style(head, "title")
    for row, diagnosis in zip(rows, shown, strict=True):
        yield style(row, _style_of(diagnosis))


def _style_of(diagnosis: Diagnosis) -> str:
    if diagnosis.worst:
        return STYLES[diagnosis.worst.mode.severity.value]
    return "good" if diagnosis.cause is Cause.USEFUL else ""


# A text, its style, and the indents of its first and of its other lines.
_Text = tuple[str, str, str, str]


def _block(
    group: Sequence[Diagnosis], diagnoses: Sequence[Diagnosis], said: report.Advice, *, every: bool, verbose: bool
) -> Iterator[_Text]:
    first, where, printed = group[0], report.where_of(group[0]), set[str]()
    yield f"{names_of(group)}{f' ({where})' if where else ''}", "title", "", "  "
    yield report.what_is(first), _style_of(first), "  ", "  "
    for text in report.evidence([diagnosis.numbers for diagnosis in group], printed, verbose=verbose):
        yield text, "", "    ", "      "
    if shares := breakdown([diagnosis.shares for diagnosis in group]):
        yield f"{_lost(group)}: {shares}", "", "  ", "    "
    if text := no_limit(first.headroom):
        yield text, "", "  ", "    "
    for text in report.processes(group, set()):
        yield text, "", "  ", "    "
    for match in first.matches:
        mode = match.mode
        yield (
            f"{mode.name} ({mode.severity.value}){_loss(group, diagnoses, match)}",
            STYLES[mode.severity.value],
            "  ",
            "    ",
        )
        for text in report.because(match, group, printed, verbose=verbose):
            yield text, "", "    ", "      "
        yield report.what_to_do(match, first, said), "", "    ", "       "
        yield f"runbook: {report.runbook(mode)}", "dim", "    ", "      "
    if every:
        for name, missing in first.unknown.items():
            why = report.why_unknown(name, missing, first.identity, verbose=verbose)
            yield f"{name}: not judged, {why}", "dim", "  ", "    "


def _loss(group: Sequence[Diagnosis], diagnoses: Sequence[Diagnosis], match: Match) -> str:
    """Return the time that is lost to the cause of a finding; of a straggler, that of all ranks, which wait for it."""
    cause, workload = match.mode.cause, group[0].identity.workload
    of_job = match.mode.scope is Scope.JOB and bool(workload)
    concerned = [each for each in diagnoses if each.identity.workload == workload] if of_job else group
    known = [diagnosis.shares[cause] for diagnosis in concerned if cause in diagnosis.shares]
    share = sum(known) / len(known) if known else 0.0
    if not cause.is_loss or share < LEAST_SHARE:
        return ""
    return f": {percent(share)} of {'the GPU time of its job' if of_job else 'GPU time'} lost, {WORDS[cause]}"


def _lost(group: Sequence[Diagnosis]) -> str:
    known = [lost(diagnosis.shares) for diagnosis in group if diagnosis.shares]
    return f"{percent(sum(known) / len(known))} of GPU time lost"


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
