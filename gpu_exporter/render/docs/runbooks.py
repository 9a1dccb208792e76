"""Failure modes -> a runbook each, and their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_exporter.catalogue import failure_modes
from gpu_exporter.catalogue.conditions import Condition, Limit, Limits, limits_of, marks_of
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Scope
from gpu_exporter.catalogue.signal import Derived, Read, Signal
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.render import banner, coverage, prose
from gpu_exporter.render.coverage import Works
from gpu_exporter.render.docs import markdown
from gpu_exporter.render.docs.markdown import bullets, code, numbered, table
from gpu_exporter.render.rules import rules

NAME = re.compile(r"\bGpu[A-Z]\w+")
FOLDER = "docs/runbooks"
SEVERITY = {"critical": "critical: it pages", "warning": "warning: it makes a ticket", "info": "info: it is only shown"}
SCOPE = {
    Scope.DEVICE: "what one GPU shows",
    Scope.JOB: "the ranks of a job, compared with one another",
    Scope.FLEET: "only a Prometheus can know it: `gpu-exporter diagnose` leaves it out",
}
DOMAIN = {
    Domain.HEALTH: "Health: is it on fire?",
    Domain.BOTTLENECK: "Bottleneck: why is it slow?",
    Domain.DISTRIBUTED: "Distributed: who waits for whom?",
    Domain.COST: "Cost: who wastes?",
}
INDEX = """# Runbooks

One page an alert, in the order in which to look: what stands higher explains what stands below it. On a node,
`gpu-exporter diagnose` says which of them hold there now, and why. How the conditions are made, and which exporter can
show which, is in [failure modes](../failure-modes.md).
"""


@dataclass(frozen=True, slots=True)
class Exporter:
    """Who may be scraped: `names` are the series it exposes."""

    title: str
    names: frozenset[str]


EXPORTERS = (
    Exporter("gpu-exporter", coverage.exposed()),
    Exporter("dcgm-exporter, its own list of fields", coverage.DCGM_DEFAULT),
    Exporter("dcgm-exporter, with [our list](../alerts/dcgm-exporter.csv)", coverage.DCGM_OURS),
)
FULL = coverage.exposed(full=True)
REQUIRED = {
    "attribution": "[whose GPU is it](../attribution.md)",
    "kube-state-metrics": "[allocation](../signals.md#allocation)",
}
WORKS = {Works.YES: "yes", Works.PARTLY: "in part", Works.NO: "no"}


def path(mode: FailureMode) -> str:
    """Where the runbook of a mode is; the tail of its alert's URL."""
    return f"{FOLDER}/{mode.name.lower()}.md"


def link(name: str) -> str:
    """A link between two runbooks."""
    return f"[{name}]({name.lower()}.md)"


def works(mode: FailureMode) -> tuple[str, ...]:
    """Whether a mode works with each exporter, in words."""
    said = [WORKS[coverage.works(mode, each.names)] for each in EXPORTERS]
    if said[0] != "yes" and coverage.works(mode, FULL) is Works.YES:
        said[0] = f"with `--metrics {MetricSet.FULL.value}`"
    return tuple(said)


def index(modes: Sequence[FailureMode] = MODES) -> str:
    """docs/runbooks/README.md: the modes by domain, in triage order."""
    parts = [banner.markdown(failure_modes), INDEX]
    for domain in dict.fromkeys(mode.domain for mode in modes):
        rows = [
            (link(mode.name), mode.severity.value, mode.action.value, summary(mode))
            for mode in modes
            if mode.domain is domain
        ]
        parts.append(f"\n## {DOMAIN[domain]}\n\n" + table(("alert", "severity", "action", "it says"), rows))
    return "".join(parts)


def summary(mode: FailureMode) -> str:
    """The alert's summary with words in place of its templates."""
    text = markdown.untemplated(mode.summary.replace("{gpu}", "a GPU").replace("{job}", "a job"))
    return text[0].upper() + text[1:]


def runbook(mode: FailureMode, modes: Sequence[FailureMode] = MODES, limits: Limits | None = None) -> str:
    """docs/runbooks/<name>.md."""
    title = f"# {mode.name}\n\n{summary(mode)}.\n\n{mode.advice}\n\n"
    others = {each.name for each in modes} - {mode.name}
    said = partial(_linked, names=others)
    sections = (
        ("Meaning", said(f"{mode.meaning}\n")),
        ("Impact", said(f"{mode.impact}\n")),
        ("Diagnosis", said(numbered(mode.diagnosis))),
        ("Mitigation", said(numbered(mode.mitigation))),
        ("When it is wrong", said(f"{mode.wrong}\n")),
        ("Condition", "".join(_condition(mode, limits or {}))),
        ("Needs", _needs(mode)),
        ("Related", _related(mode, modes)),
        ("PromQL", code("promql", rules.expression(mode, limits or {}))),
    )
    body = "".join(f"\n## {name}\n\n{text}" for name, text in sections)
    return (
        banner.markdown(failure_modes.FILES[mode.domain])
        + title
        + _facts(mode)
        + body
        + "\n[All runbooks](README.md)\n"
    )


def _linked(text: str, names: Collection[str]) -> str:
    """With a link wherever another mode is named."""
    return NAME.sub(lambda found: link(found[0]) if found[0] in names else found[0], text)


def _facts(mode: FailureMode) -> str:
    held = f"{prose.span(mode.hold)} before it fires" if mode.hold else "fires at once"
    kept = f", {prose.span(mode.kept)} after it is over" if mode.kept else ""
    rows = [
        ("severity", SEVERITY[mode.severity.value]),
        ("action", f"`{mode.action.value}`"),
        ("holds for", held + kept),
        ("domain", mode.domain.value),
        ("known from", SCOPE[mode.scope]),
    ]
    return table(("", ""), rows)


def _condition(mode: FailureMode, limits: Limits) -> Iterator[str]:
    if mode.condition:
        yield condition(mode.condition, limits)
        for mark in marks_of(mode.condition):
            yield f"\nA rank counts as one of those that *{prose.verb(mark)}* with:\n\n" + condition(
                mark.condition, limits
            )
        found = limits_of(mode.condition)
        if found:
            yield "\n" + limits_table(found)
    if mode.fleet:
        yield "\nOr what only a Prometheus can see" if mode.condition else "What only a Prometheus can see"
        yield (
            ": the second part of the [expression](#promql).\n" if mode.condition else ": the [expression](#promql).\n"
        )


def condition(of: Condition, limits: Limits) -> str:
    """A condition as nested bullets."""
    return "".join(f"{'  ' * line.depth}- {line.text}\n" for line in prose.lines(of, limits))


def limits_table(limits: Sequence[Limit]) -> str:
    """Limits as rows."""
    rows = [(f"`{each.name}`", f"{each.value:.15g}", each.unit, each.help) for each in limits]
    return table(("limit", "default", "unit", "meaning"), rows)


def _needs(mode: FailureMode) -> str:
    said = "; ".join(
        f"{each.title.replace('../alerts', '../../alerts')}: {how}"
        for each, how in zip(EXPORTERS, works(mode), strict=True)
    )
    if mode.requires:
        return f"Nothing of a GPU, but {mode.requires}: see {REQUIRED[mode.requires]}. It works with {said}.\n"
    if not mode.needs:
        return f"Nothing of a GPU. It works with {said}.\n"
    rows = [signal_row(signal) for signal in prose.with_roots(mode.needs)]
    return table(SIGNAL_HEAD, rows) + f"\nIt works with {said}.\n"


def _series(way: Read) -> str:
    labels = ", ".join(f'{label}="{value}"' for label, value in way.where)
    return f"{way.name}{{{labels}}}" if labels else way.name


SIGNAL_HEAD = ("signal", "what", "gpu-exporter", "dcgm-exporter ≤ 4.8", "dcgm-exporter ≥ 4.9")


def signal_row(signal: Signal, show: Callable[[Read], str] = _series) -> tuple[str, ...]:
    """A signal, and what it is made of in each generation, the best first; `show` writes one read."""
    made = [f"= {prose.derivation(way)}" for way in signal.made if isinstance(way, Derived)]
    ours, classic, modern = (coverage.reads(signal, which) for which in ("ours", "classic", "modern"))
    columns = ((*ours, *(way for way in classic if way.name in FULL)), classic, modern)
    cells = ("; ".join([*made, *(f"`{show(way)}`" for way in ways)]) or "-" for ways in columns)
    return f"`{signal.record}`", signal.help, *cells


def _related(mode: FailureMode, modes: Sequence[FailureMode]) -> str:
    with_it = [link(name) for name in mode.implies]
    of_it = [link(each.name) for each in modes if mode.name in each.implies]
    lines = []
    if with_it:
        lines.append(f"May come with it: {', '.join(with_it)}.")
    if of_it:
        lines.append(f"It may come with: {', '.join(of_it)}.")
    return bullets(lines) if lines else "It comes alone.\n"
