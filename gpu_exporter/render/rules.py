"""Catalogues -> Prometheus rules: recorded signals, classes and job comparisons, and one alert a failure mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_exporter import classes, ownership
from gpu_exporter import metrics as m
from gpu_exporter import signals as s
from gpu_exporter.conditions import Condition, Fn, Limits, Mark, Median, Over, Share, duration, record_of, shared
from gpu_exporter.dcgm_names import RENAMED
from gpu_exporter.failure_modes import MODES
from gpu_exporter.failure_modes.cost import PRICES
from gpu_exporter.failure_modes.mode import Domain, FailureMode
from gpu_exporter.render import aggregates, allocation, boards
from gpu_exporter.words import title

NOTE = "# Rendered by `gpu-exporter generate`; edit gpu_exporter/{} instead.\n"
# Where {gpu} and {job} of a summary come from in an alert.
GPU, JOB = "GPU {{ $labels.gpu }} of {{ $labels.node }}", "{{ $labels.workload }}"
# Where only a Prometheus knows it, which GPU it is may not be known.
SOME_GPU = "{{ if $labels.gpu }}GPU {{ $labels.gpu }}{{ else }}A GPU{{ end }} of {{ $labels.node }}"
# What the dashboard of an alert is narrowed down to: by what is not known, it is not.
SHOWN = {label: f'{{{{ or $labels.{label} "$__all" }}}}' for label in ("node", "gpu", "namespace", "workload")}

Rule = Mapping[str, Any]

# Whatever is scraped of a GPU, one of these is among it.
_IDENTIFYING = (m.GPU_UTIL, m.GPU_TEMP, m.POWER, m.FB_USED, m.SM_CLOCK, m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.DRAM_ACTIVE)
_CLASSIC = "|".join(name for row in _IDENTIFYING for name in (row.name, RENAMED[row.name][0]))
_OURS = "|".join((m.UP.name, *(str(row) for row in m.METRICS if row.integral_of in _IDENTIFYING)))
_EXPORTER = ("cluster", "job", "instance")
_NODES = ("node", "hostname", "Hostname")
_EXPORTED = ("exported_namespace", "exported_pod")
# What the series of a GPU tell of it beside the node, each once: to select them all is dear.
_TELLING = (
    *("job", "instance", *s.DEVICE, "GPU_I_PROFILE", "gpu", "modelName"),
    *("namespace", "pod", *_EXPORTED, *ownership.JOB_LABELS, "source"),
)
SCRAPED = "gpu:scraped:info"


def _identity() -> Iterator[Rule]:
    device, owners = ", ".join(s.DEVICE), ", ".join((*s.DEVICE, *s.OWNER))
    yield _record(SCRAPED, _scraped())
    exporter, identity = ", ".join((*_EXPORTER, "node")), ", ".join(("cluster", "UUID", *s.IDENTITY))
    yield _record("gpu:exporter:info", f"group by ({exporter}) ({m.INFO}) or group by ({exporter}) ({SCRAPED})")
    gpus = f"group by ({', '.join(_EXPORTER)}, UUID) ({SCRAPED})"
    yield _record(
        "gpu:dcgm_gpus:count",
        f"count by ({', '.join(_EXPORTER)}) ({gpus} unless on ({', '.join(_EXPORTER)}) {m.BUILD_INFO})",
    )
    ours = f'label_replace(group by (cluster, UUID, node, gpu, model) ({m.INFO}), "modelName", "$1", "model", "(.+)")'
    alternatives = [
        f"topk by (cluster, UUID) (1, group by ({identity}) ({each}))"
        for each in (ours, SCRAPED, f'{{__name__=~"{_OURS}", UUID!=""}}')
    ]
    yield _record(s.IDENTITY_INFO, "\nor on (cluster, UUID)\n".join(alternatives))
    yield _record("gpu:device_owners:info", _owners(owners))
    yield _record(
        "gpu:device_parts:info",
        f"topk by ({device}) (1, group by ({device}, GPU_I_PROFILE) "
        f'({{__name__=~"{SCRAPED}|{_OURS}", GPU_I_ID!=""}}))\n'
        f"* on (cluster, UUID) group_left ({', '.join(s.IDENTITY)}) {s.IDENTITY_INFO}\n"
        f"or\n{s.IDENTITY_INFO}",
    )
    # A GPU that several pods share has no one owner.
    yield _record(
        "gpu:device_owner:info",
        f"gpu:device_owners:info\nand on ({device})\ncount by ({device}) (gpu:device_owners:info) == 1",
    )
    yield _record(
        s.DEVICE_INFO,
        f"gpu:device_parts:info * on ({device}) group_left ({', '.join(s.OWNER)}) gpu:device_owner:info\n"
        f"or\n(gpu:device_parts:info unless on ({device}) gpu:device_owner:info)",
    )


def _scraped() -> str:
    """A series for each GPU, exporter and owner that classic names tell of, with its node."""
    told = f'group by ({", ".join((*_TELLING, *_NODES))}) ({{__name__=~"{_CLASSIC}", UUID!=""}})'
    # Not in `node` at once: series that differ in nothing else would become one twice, an error.
    for label in _NODES:
        told = f'label_replace({told}, "told", "$1", "{label}", "(.+)")'
    told = f'label_replace(group by ({", ".join((*_TELLING, "told"))}) ({told}), "node", "$1", "told", "(.+)")'
    return f"group by ({', '.join((*_TELLING, 'node'))}) ({told})"


def _owners(labels: str) -> str:
    # Without the labels that are overwritten: an exporter's old and new pod would give one series twice, an error.
    jobs = ", ".join((*s.DEVICE, *ownership.JOB_LABELS))
    exported = _exported(f'{SCRAPED}{{exported_pod!=""}}', jobs)
    plain = f'{SCRAPED}{{exported_pod="", pod!="", pod!~"{ownership.EXPORTER_PODS}"}}'
    # Of a GPU that no pod has, the pod is the exporter that was scraped, if any.
    free = f'{SCRAPED}{{exported_pod="", pod=~"|{ownership.EXPORTER_PODS}"'
    recorded = f'{free}, hpc_job="", source="{ownership.RECORDED}"}}'
    recorded = f'label_replace(group by ({jobs}, source) ({recorded}), "hpc_job", "$1", "source", "(.+)")'
    slurm = f'group by ({jobs}) ({free}, hpc_job!=""}}) or {recorded}'
    pods = f"{exported} or group by ({jobs}, namespace, pod) ({plain})"
    theirs = f'label_replace({pods} or {slurm}, "told", "$1", "workload", "(.+)")'
    by_pod = f'label_replace({theirs}, "workload", "$1", "pod", "{ownership.WORKLOAD_OF_POD}")'
    mine = " or ".join(_told(operator) for operator in ("!=", "="))
    for label in ownership.JOB_LABELS:
        label = "told" if label == "workload" else label
        by_pod = f'label_replace({by_pod}, "workload", "$1", "{label}", "(.+)")'
    return f"group by ({labels}) ({mine})\nor on ({', '.join(s.DEVICE)})\ngroup by ({labels}) ({by_pod})"


def _told(operator: str) -> str:
    """The owner that our own series names; where it is told no workload, by the pod's name."""
    info, by = f'{m.POD_INFO}{{workload{operator}""', ", ".join((*s.DEVICE, "workload"))
    exported = _exported(f'{info}, exported_pod!=""}}', by)
    pods = f'{exported} or group by ({by}, namespace, pod) ({info}, exported_pod=""}})'
    if operator == "!=":
        return pods
    return f'label_replace({pods}, "workload", "$1", "pod", "{ownership.WORKLOAD_OF_POD}")'


def _exported(series: str, by: str) -> str:
    """With the pod that has the GPU, where Prometheus has put the pod that it scraped in its place."""
    series = f"group by ({by}, exported_namespace, exported_pod) ({series})"
    for label in ("namespace", "pod"):
        series = f'label_replace({series}, "{label}", "$1", "exported_{label}", "(.+)")'
    return series


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _signals(owned: bool) -> Iterator[Rule]:
    """What belongs to who has the GPU, or the state of the board."""
    for signal in s.SIGNALS:
        if signal.owned is owned:
            yield _record(signal.record, signal.promql())


def _windows_of(owned: bool) -> Iterator[Rule]:
    for window in dict.fromkeys(_windows(_terms())):
        if window.signal.owned is owned:
            yield _record(window.record, window.expression())


def _judged(limits: Limits) -> Iterator[Rule]:
    """Classes, marks and what is asked of other ranks; what several conditions share comes before all that read it."""
    terms = [term for condition in _conditions() for term in condition.terms()]
    marks = _marks(terms)
    conditions = [*_conditions(), *(mark.condition for mark in marks)]
    named = {record_of(each): each for condition in conditions for each in shared(condition)}
    of_others = {name for name, each in named.items() if not all(isinstance(term, Over) for term in each.terms())}
    yield from (_record(name, each.expression(limits)) for name, each in named.items() if name not in of_others)
    yield _record(classes.CLASS, classes.promql(limits))
    for mark in marks:
        yield _record(mark.record, mark.expression(limits))
    for term in dict.fromkeys(term for term in terms if isinstance(term, Share | Median)):
        yield _record(term.record, term.expression())
    yield from (_record(name, named[name].expression(limits)) for name in named if name in of_others)


def _conditions() -> list[Condition]:
    return [each.condition for each in classes.CLASSES] + [mode.condition for mode in MODES if mode.condition]


def _terms() -> Iterator[Over | Share | Median]:
    terms = [term for condition in _conditions() for term in condition.terms()]
    yield from terms
    for mark in _marks(terms):
        yield from mark.condition.terms()


def _marks(terms: Iterable[Over | Share | Median]) -> list[Mark]:
    named = (term.mark if isinstance(term, Share) else term.where for term in terms if not isinstance(term, Over))
    return list(dict.fromkeys(named))


def _windows(terms: Iterable[Over | Share | Median]) -> Iterator[Over]:
    for term in terms:
        over = term.of if isinstance(term, Median) else term
        if isinstance(over, Over) and over.record:
            yield Over(over.signal, over.fn, over.window)


def _cost(prices: Limits) -> Iterator[Rule]:
    named = {price.name: f"{prices.get(price.name, price.value):.15g}" for price in PRICES}
    for each in aggregates.COSTS:
        text = each.expression
        for name, price in named.items():
            text = text.replace(f"{{{name}}}", price)
        yield _record(each.record, text)


# Windows of five minutes and more, and what is told after ten: nothing is lost where the rest is evaluated more often.
SLOW = "1m"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after another, each `interval`, or as Prometheus is told to."""

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
        Group("gpu-identity", list(_identity())),
        Group("gpu-board", [*_signals(owned=False), *_windows_of(owned=False)]),
        Group("gpu-signals", list(_signals(owned=True))),
        Group("gpu-classes", [*_windows_of(owned=True), *_judged(limits)], SLOW),
        Group("gpu-accounting", list(_cost(limits)), SLOW),
        Group("gpu-fleet", [_record(each.record, each.expression) for each in aggregates.FLEET], SLOW),
        Group("gpu-allocation", [_record(each.record, each.expression) for each in allocation.ALLOCATION]),
    ]


def _alerting(domain: Domain, limits: Limits, modes: Sequence[FailureMode]) -> Groups:
    # What a GPU is ill with may have to be told at once.
    interval = "" if domain is Domain.HEALTH else SLOW
    return [Group(f"gpu-{domain.value}", [alert(mode, limits) for mode in modes if mode.domain is domain], interval)]


def recording(limits: Limits | None = None) -> str:
    """alerts/recording.yaml: the rules that all others read. They are evaluated in this order."""
    return NOTE.format("signals.py, classes.py and failure_modes/") + _yaml(_recorded(limits or {}))


def alerts(domain: Domain, limits: Limits | None = None, modes: Sequence[FailureMode] = MODES) -> str:
    """alerts/<domain>.yaml: one alert a failure mode."""
    return NOTE.format(f"failure_modes/{domain.value}.py") + _yaml(_alerting(domain, limits or {}, modes))


def bundle(limits: Limits) -> str:
    """All rules in one file, for the chart."""
    groups = [*_recorded(limits), *(group for domain in Domain for group in _alerting(domain, limits, MODES))]
    return NOTE.format("signals.py, classes.py and failure_modes/") + _yaml(groups)


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
    if mode.value is None or mode.value.fn not in (Fn.LAST, Fn.MEAN) or mode.value.signal.unit in ("bool", "action"):
        return ""
    ratio = mode.value.signal.unit == "ratio"
    return f" ({title(mode.value.signal)}: {{{{ $value | {'humanizePercentage' if ratio else 'humanize'} }}}})"


def expression(mode: FailureMode, limits: Limits) -> str:
    """What the alert of a mode evaluates."""
    parts = [mode.condition.promql(limits)] if mode.condition else []
    if mode.shows:
        parts = [f"{mode.shows.promql()}\nand (\n{part}\n)" for part in parts]
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
