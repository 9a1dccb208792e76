"""Catalogues -> Prometheus rules: recorded signals, classes and job comparisons, and one alert a failure mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_exporter.catalogue import bottlenecks, failure_modes, promql
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.conditions import (
    Condition,
    Fn,
    Leaf,
    Limits,
    Mark,
    Named,
    Over,
    PeerMedian,
    PeerShare,
    duration,
    record_of,
    shared,
    terms,
)
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.signal import Read, Signal
from gpu_exporter.render import banner, boards
from gpu_exporter.render.prose import title
from gpu_exporter.render.rules import aggregates, allocation, identity

# Where {gpu} and {job} of a summary come from in an alert.
GPU, JOB = "GPU {{ $labels.gpu }} of {{ $labels.node }}", "{{ $labels.workload }}"
# Where only a Prometheus knows it, which GPU it is may not be known.
SOME_GPU = "{{ if $labels.gpu }}GPU {{ $labels.gpu }}{{ else }}A GPU{{ end }} of {{ $labels.node }}"
# What the dashboard of an alert is narrowed down to: by what is not known, it is not.
SHOWN = {label: f'{{{{ or $labels.{label} "$__all" }}}}' for label in ("node", "gpu", "namespace", "workload")}

# Units whose values are codes: a summary names them itself.
UNITLESS = ("bool", "action", "status")

# Groups of signals: several, for they are evaluated side by side, but the rules of one in turn.
OF_BOARD, OF_INSTANCE, OF_GPU, OF_HISTOGRAMS = "gpu-board", "gpu-instance", "gpu-signals", "gpu-distributions"

Rule = Mapping[str, Any]


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _signals(group: str) -> Iterator[Rule]:
    for signal in s.SIGNALS:
        if _group(signal) == group:
            yield _record(signal.record, signal.promql())


def _group(signal: Signal) -> str:
    """Where a signal is recorded: by whether it is the board's state, or belongs to who has the GPU or the instance."""
    if any(isinstance(way, Read) and way.shape for way in signal.made):
        return OF_HISTOGRAMS
    if not signal.owned:
        return OF_BOARD
    return OF_INSTANCE if signal.per_instance else OF_GPU


def _windows_of(owned: bool) -> Iterator[Rule]:
    for window in dict.fromkeys(_windows(_terms())):
        if window.signal.owned is owned:
            yield _record(window.record, promql.term_definition(window))


def _judged(limits: Limits) -> Iterator[Rule]:
    """Classes, marks and comparisons with other ranks; conditions that several rules read come before these rules."""
    leaves = [term for condition in _conditions() for term in terms(condition)]
    marks, named = _marks(leaves), shared_conditions()
    of_others = {name for name, each in named.items() if not all(isinstance(term, Over) for term in terms(each))}
    definitions = {name: _record(name, promql.definition(condition, limits)) for name, condition in named.items()}
    yield from (rule for name, rule in definitions.items() if name not in of_others)
    yield _record(bottlenecks.CLASS, promql.classification(bottlenecks.CLASSIFICATION, limits))
    for mark in marks:
        yield _record(mark.record, promql.mark_definition(mark, limits))
    for term in dict.fromkeys(term for term in leaves if isinstance(term, PeerShare | PeerMedian)):
        yield _record(term.record, promql.term_definition(term))
    yield from (rule for name, rule in definitions.items() if name in of_others)


def shared_conditions() -> Mapping[str, Named]:
    """Conditions that several classes and alerts read, by the name under which they are recorded; inner ones first."""
    conditions = _conditions()
    marks = _marks(term for condition in conditions for term in terms(condition))
    named = (inner for condition in (*conditions, *(mark.condition for mark in marks)) for inner in shared(condition))
    return {record_of(condition): condition for condition in named}


def _conditions() -> list[Condition]:
    return [each.condition for each in bottlenecks.BOTTLENECKS] + [mode.condition for mode in MODES if mode.condition]


def _terms() -> Iterator[Leaf]:
    leaves = [term for condition in _conditions() for term in terms(condition)]
    yield from leaves
    for mark in _marks(leaves):
        yield from terms(mark.condition)


def _marks(leaves: Iterable[Leaf]) -> list[Mark]:
    return list(dict.fromkeys(term.mark for term in leaves if not isinstance(term, Over)))


def _windows(leaves: Iterable[Leaf]) -> Iterator[Over]:
    for term in leaves:
        over = term.of if isinstance(term, PeerMedian) else term
        if isinstance(over, Over) and over.record:
            yield Over(over.signal, over.fn, over.window)


def _cost(prices: Limits) -> Iterator[Rule]:
    named = {price.name: f"{prices.get(price.name, price.value):.15g}" for price in PRICES}
    for each in aggregates.COSTS:
        text = each.expression
        for name, price in named.items():
            text = text.replace(f"{{{name}}}", price)
        yield _record(each.record, text)


# For windows of five minutes and more, and alerts that hold for ten: a shorter interval would gain nothing.
SLOW = "1m"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after another, each `interval`, or at Prometheus' own evaluation interval."""

    name: str
    rules: Sequence[Rule]
    interval: str = ""

    def content(self) -> Mapping[str, Any]:
        """As Prometheus reads it."""
        interval = {"interval": self.interval} if self.interval else {}
        rules = [{**rule, "expr": _Text(rule["expr"])} for rule in self.rules]
        return {"name": self.name, **interval, "rules": rules}


Groups = Sequence[Group]


def _recorded(limits: Limits) -> Groups:
    return [
        Group("gpu-identity", [_record(name, text) for name, text in identity.recorded()]),
        Group(OF_BOARD, [*_signals(OF_BOARD), *_windows_of(owned=False)]),
        Group(OF_INSTANCE, list(_signals(OF_INSTANCE))),
        Group(OF_GPU, list(_signals(OF_GPU))),
        Group(OF_HISTOGRAMS, list(_signals(OF_HISTOGRAMS)), SLOW),
        Group("gpu-classes", [*_windows_of(owned=True), *_judged(limits)], SLOW),
        Group("gpu-accounting", list(_cost(limits)), SLOW),
        Group("gpu-fleet", [_record(each.record, each.expression) for each in aggregates.FLEET], SLOW),
        Group("gpu-allocation", [_record(each.record, each.expression) for each in allocation.ALLOCATION]),
    ]


def _alerting(domain: Domain, limits: Limits, modes: Sequence[FailureMode]) -> Groups:
    # Some alerts on the health of a GPU must fire at once.
    interval = "" if domain is Domain.HEALTH else SLOW
    return [Group(f"gpu-{domain.value}", [alert(mode, limits) for mode in modes if mode.domain is domain], interval)]


def recording(limits: Limits | None = None) -> str:
    """alerts/recording.yaml: the rules that all others read. They are evaluated in this order."""
    return banner.comment(s, bottlenecks, failure_modes) + _yaml(_recorded(limits or {}))


def alerts(domain: Domain, limits: Limits | None = None, modes: Sequence[FailureMode] = MODES) -> str:
    """alerts/<domain>.yaml: one alert a failure mode."""
    return banner.comment(failure_modes.FILES[domain]) + _yaml(_alerting(domain, limits or {}, modes))


def bundle(limits: Limits) -> str:
    """All rules in one file, for the chart."""
    groups = [*_recorded(limits), *(group for domain in Domain for group in _alerting(domain, limits, MODES))]
    return banner.comment(s, bottlenecks, failure_modes) + _yaml(groups)


def alert(mode: FailureMode, limits: Limits) -> Rule:
    """The alert of a mode."""
    rule: dict[str, Any] = {"alert": mode.name, "expr": expression(mode, limits)}
    if mode.hold:
        rule["for"] = duration(mode.hold)
    if mode.kept:
        rule["keep_firing_for"] = duration(mode.kept)
    rule["labels"] = {"severity": mode.severity.value, "domain": mode.domain.value, "action": mode.action.value}
    rule["annotations"] = {
        "summary": mode.summary.replace("{gpu}", SOME_GPU if mode.fleet else GPU).replace("{job}", JOB),
        "description": f"{mode.advice}{_shown(mode)}",
        "runbook_url": boards.runbook(mode),
        "dashboard_url": boards.board_of(mode.domain).link(**SHOWN),
    }
    return rule


def _shown(mode: FailureMode) -> str:
    if mode.value is None or mode.value.fn not in (Fn.LAST, Fn.MEAN) or mode.value.signal.unit in UNITLESS:
        return ""
    ratio = mode.value.signal.unit == "ratio"
    return f" ({title(mode.value.signal)}: {{{{ $value | {'humanizePercentage' if ratio else 'humanize'} }}}})"


def expression(mode: FailureMode, limits: Limits) -> str:
    """What the alert of a mode evaluates."""
    parts = [promql.condition(mode.condition, limits)] if mode.condition else []
    if mode.shows:
        parts = [f"{promql.term(mode.shows)}\nand (\n{part}\n)" for part in parts]
    if mode.fleet:
        parts.append(mode.fleet)
    return parts[0] if len(parts) == 1 else "\nor\n".join(f"(\n{part}\n)" for part in parts)


class _Text(str):
    """Text that YAML shows as it is, line by line."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _literal(dumper: yaml.SafeDumper, text: _Text) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(_Text, _literal)


def _yaml(groups: Iterable[Group]) -> str:
    content = {"groups": [group.content() for group in groups]}
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
