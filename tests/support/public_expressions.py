"""Which expressions of public dashboards and rules a page answers, and why it does not answer the others."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpu_exporter.catalogue.dcgm_exporter import fields as dcgm_fields
from tests import ROOT

DATA = ROOT / "tests" / "data" / "public_expressions.jsonl"
FIELDS = dcgm_fields.load()
NAME = re.compile(r"[A-Za-z_:][\w:]*")
LABEL = re.compile(r'([A-Za-z_]\w*)="(?:[^"\\]|\\.)*"')
UNSUPPORTED = re.compile(r'gpu_metric_supported\{.*metric="(\w+)",reason="(\w+)"')


class Answer(Enum):
    """By what an expression is answered. The order is from the best to the worst; the value is the table's head."""

    DEFAULT = "default set"
    FULL = "`--metrics full`"
    FILE = "file of fields"
    OTHER = "with another exporter"
    NOT = "not"


class Reason(Enum):
    """Why a metric is on no page of an H200."""

    NOT_ON_GPU = "an H200 does not support it"
    NEEDS_DCGM = "needs `--source dcgm`"
    TEXT = "text, which dcgm-exporter exposes only as a label"
    UNKNOWN = "not a metric of dcgm-exporter"


@dataclass(frozen=True, slots=True)
class Expression:
    """What one expression of a public file uses. `other`: it also reads another exporter."""

    source: str
    metrics: Sequence[str]
    labels: Sequence[str]
    other: bool

    @property
    def repository(self) -> str:
        """The repository of its file."""
        return self.source.partition(":")[0]


def expressions() -> Iterator[Expression]:
    """Yield the expressions of all public files."""
    for line in DATA.read_text().splitlines():
        file = json.loads(line)
        for _, metrics, labels, _, *other in file["expressions"]:
            yield Expression(file["source"], metrics, labels, bool(other))


def labels_by_name(page: str) -> Mapping[str, set[str]]:
    """Return the labels of each series name of a page in text format."""
    labels: dict[str, set[str]] = defaultdict(set)
    for line in page.splitlines():
        if name := NAME.match(line):
            labels[name[0]].update(LABEL.findall(line))
    return labels


class Pages:
    """The pages of an H200: of the default set, of `full`, and with a file of fields that has the other names."""

    def __init__(self, default: str, full: str, file: str) -> None:
        self._names = [
            (answer, {name.upper() for name in labels_by_name(page)})
            for answer, page in ((Answer.DEFAULT, default), (Answer.FULL, full), (Answer.FILE, file))
        ]
        self._unsupported = {metric: why for page in (full, file) for metric, why in UNSUPPORTED.findall(page)}

    def answer(self, expression: Expression) -> Answer:
        """Return what answers all metrics of an expression."""
        worst = max((self._of(metric) for metric in expression.metrics), key=list(Answer).index)
        return Answer.OTHER if expression.other and worst is not Answer.NOT else worst

    def _of(self, metric: str) -> Answer:
        return next((answer for answer, names in self._names if metric.upper() in names), Answer.NOT)

    def reasons(self, expression: Expression) -> Mapping[str, Reason]:
        """Return why each metric of an expression that is on no page is missing."""
        missing = [metric for metric in expression.metrics if self._of(metric) is Answer.NOT]
        names = [metric.upper() if metric.upper() in FIELDS.by_name else metric for metric in missing]
        return {name: self._why(name) for name in names}

    def _why(self, metric: str) -> Reason:
        why = self._unsupported.get(metric)
        if why is not None:
            return Reason.NOT_ON_GPU if why == "not_supported" else Reason.NEEDS_DCGM
        field = FIELDS.by_name.get(metric)
        return Reason.TEXT if field is not None and field.type == "string" else Reason.UNKNOWN


def table(pages: Pages) -> str:
    """Return the tables of docs/migration.md: expressions by repository, and the metrics that are missing."""
    answers: dict[str, Counter[Answer]] = defaultdict(Counter)
    reasons: dict[str, Counter[Reason]] = defaultdict(Counter)
    metrics: dict[Reason, set[str]] = defaultdict(set)
    for expression in expressions():
        answers[expression.repository][pages.answer(expression)] += 1
        found = pages.reasons(expression)
        reasons[expression.repository].update(set(found.values()))
        for metric, reason in found.items():
            metrics[reason].add(metric)
    head = ("repository", "expressions", *(answer.value for answer in Answer), "why not")
    rows = [
        _row(name, counts, "; ".join(f"{why.value} ({n})" for why, n in reasons[name].items()))
        for name, counts in sorted(answers.items(), key=lambda item: (item[0] == "other", item[0].lower()))
    ]
    total = _row("**all**", sum(answers.values(), Counter()), "")
    missing = [(reason.value, _listed(metrics[reason])) for reason in Reason]
    return _markdown(head, [*rows, total]) + "\n" + _markdown(("why not", "metrics"), missing)


def _row(name: str, counts: Counter[Answer], why: str) -> tuple[str, ...]:
    shown = "other files" if name == "other" else name
    return (shown, str(counts.total()), *(str(counts[answer] or "") for answer in Answer), why)


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
