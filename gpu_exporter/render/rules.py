"""Catalogues -> Prometheus rules: recorded signals, classes and job comparisons, and one alert a failure mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from gpu_exporter import classes, ownership
from gpu_exporter import metrics as m
from gpu_exporter import signals as s
from gpu_exporter.conditions import Condition, Limits, Mark, Median, Over, Share, duration
from gpu_exporter.dcgm_names import RENAMED
from gpu_exporter.failure_modes import MODES
from gpu_exporter.failure_modes.cost import PRICES
from gpu_exporter.failure_modes.mode import Domain, FailureMode

NOTE = "# Rendered by `gpu-exporter generate`; edit gpu_exporter/{} instead.\n"
DOCS = "https://github.com/gpu-exporter/gpu-exporter/blob/main/docs/runbooks"
# Where {gpu} and {job} of a summary come from in an alert.
GPU, JOB = "GPU {{ $labels.gpu }} of {{ $labels.node }}", "{{ $labels.workload }}"

Rule = Mapping[str, Any]

# Whatever is scraped of a GPU, one of these is among it.
_IDENTIFYING = (m.GPU_UTIL, m.GPU_TEMP, m.POWER, m.FB_USED, m.SM_CLOCK, m.GR_ENGINE_ACTIVE, m.SM_ACTIVE, m.DRAM_ACTIVE)
_CLASSIC = "|".join(name for row in _IDENTIFYING for name in (row.name, RENAMED[row.name][0]))
_OURS = "|".join((m.UP.name, *(str(row) for row in m.METRICS if row.integral_of and not row.name.startswith("DCGM_"))))


def _identity() -> Iterator[Rule]:
    device, owners = ", ".join(s.DEVICE), ", ".join((*s.DEVICE, *s.OWNER))
    named = f'{{__name__=~"{_CLASSIC}", UUID!=""}}'
    node = f'label_replace(label_replace({named}, "node", "$1", "hostname", "(.+)"), "node", "$1", "Hostname", "(.+)")'
    identity = ", ".join(("cluster", "UUID", *s.IDENTITY))
    ours = f'label_replace({m.INFO}, "modelName", "$1", "model", "(.+)")'
    alternatives = [
        f"topk by (cluster, UUID) (1, group by ({identity}) ({each}))"
        for each in (ours, node, f'{{__name__=~"{_unique(_OURS)}", UUID!=""}}')
    ]
    yield _record("gpu:exporter:info", f"group by (cluster, job, instance, node) ({m.INFO} or {node})")
    yield _record(
        "gpu:dcgm_gpus:count",
        f"count by (cluster, job, instance) (group by (cluster, job, instance, UUID) ({named}) "
        f"unless on (cluster, job, instance) {m.BUILD_INFO})",
    )
    yield _record("gpu:device_identity:info", "\nor on (cluster, UUID)\n".join(alternatives))
    yield _record("gpu:device_owners:info", _owners(named, owners))
    yield _record(
        "gpu:device_parts:info",
        f'group by ({device}, GPU_I_PROFILE) ({{__name__=~"{_CLASSIC}|{_unique(_OURS)}", GPU_I_ID!=""}})\n'
        f"* on (cluster, UUID) group_left ({', '.join(s.IDENTITY)}) gpu:device_identity:info\n"
        f"or\ngpu:device_identity:info",
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


def _unique(names: str) -> str:
    return "|".join(dict.fromkeys(names.split("|")))


def _owners(named: str, labels: str) -> str:
    pod = named.removesuffix("}")
    exported = f'{pod}, exported_pod!=""}}'
    for label in ("namespace", "pod"):
        exported = f'label_replace({exported}, "{label}", "$1", "exported_{label}", "(.+)")'
    plain = f'{pod}, exported_pod="", pod!="", pod!~"{ownership.EXPORTER_PODS}"}}'
    slurm = f'{pod}, exported_pod="", pod="", hpc_job!=""}}'
    theirs = f"{exported} or {plain} or {slurm}"
    by_pod = f'label_replace({theirs}, "workload", "$1", "pod", "{ownership.WORKLOAD_OF_POD}")'
    ours = f'label_replace({m.POD_INFO}, "workload", "$1", "pod", "{ownership.WORKLOAD_OF_POD}")'
    for label in ownership.JOB_LABELS:
        if label != "workload":
            by_pod = f'label_replace({by_pod}, "workload", "$1", "{label}", "(.+)")'
    mine = f'{m.POD_INFO}{{workload!=""}} or ({ours} unless {m.POD_INFO}{{workload!=""}})'
    return f"group by ({labels}) ({mine})\nor on ({', '.join(s.DEVICE)})\ngroup by ({labels}) ({by_pod})"


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _signals(limits: Limits) -> Iterator[Rule]:
    for signal in s.SIGNALS:
        yield _record(signal.record, signal.promql())
    terms = [term for condition in _conditions() for term in condition.terms()]
    marks = _marks(terms)
    windows = dict.fromkeys(_windows([*terms, *(term for mark in marks for term in mark.condition.terms())]))
    for window in windows:
        yield _record(window.record, window.expression())
    yield _record(classes.CLASS, classes.promql(limits))
    for mark in marks:
        yield _record(mark.record, mark.expression(limits))
    for term in dict.fromkeys(term for term in terms if isinstance(term, Share | Median)):
        yield _record(term.record, term.expression())


def _conditions() -> list[Condition]:
    return [each.condition for each in classes.CLASSES] + [mode.condition for mode in MODES if mode.condition]


def _marks(terms: Iterable[Over | Share | Median]) -> list[Mark]:
    named = (term.mark if isinstance(term, Share) else term.where for term in terms if not isinstance(term, Over))
    return list(dict.fromkeys(named))


def _windows(terms: Iterable[Over | Share | Median]) -> Iterator[Over]:
    for term in terms:
        over = term.of if isinstance(term, Median) else term
        if isinstance(over, Over) and over.record:
            yield Over(over.signal, over.fn, over.window)


def _cost(prices: Limits) -> Iterator[Rule]:
    owner = "cluster, namespace, workload"
    kwh, gpu_hour = (f"{prices.get(price.name, price.value):.15g}" for price in PRICES)
    yield _record("workload:gpus:count", f"count by ({owner}) ({s.POWER.record})")
    yield _record("workload:power:watts", f"sum by ({owner}) ({s.POWER.record})")
    yield _record("workload:electricity:usd_per_hour", f"workload:power:watts / 1000 * {kwh}")
    yield _record("workload:cost:usd_per_hour", f"workload:gpus:count * {gpu_hour}")
    # Time in which the engine stands still, and all of a fake load, is paid for nothing.
    yield _record(
        "gpu:wasted:ratio",
        f'max without (class) ({classes.CLASS}{{class="fake-load"}} * 0 + 1)\nor\n1 - {classes.GR.record}',
    )
    yield _record("workload:wasted_cost:usd_per_hour", f"sum by ({owner}) (gpu:wasted:ratio) * {gpu_hour}")
    yield _record(
        "namespace:wasted_cost:usd_per_hour", "sum by (cluster, namespace) (workload:wasted_cost:usd_per_hour)"
    )
    yield _record("node:power:watts", f"sum by (cluster, node) ({s.POWER.record})")
    yield _record("node:gpus:count", "count by (cluster, node) (gpu:device_identity:info)")
    yield _record("cluster:classes:count", f"count by (cluster, class) ({classes.CLASS})")


def recording(limits: Limits | None = None) -> str:
    """alerts/recording.yaml: the rules that all others read. They are evaluated in this order."""
    groups = [
        ("gpu-identity", list(_identity())),
        ("gpu-signals", list(_signals(limits or {}))),
        ("gpu-accounting", list(_cost(limits or {}))),
    ]
    return NOTE.format("signals.py, classes.py and failure_modes/") + _yaml(groups)


def alerts(domain: Domain, limits: Limits | None = None, modes: Sequence[FailureMode] = MODES) -> str:
    """alerts/<domain>.yaml: one alert a failure mode."""
    rules = [alert(mode, limits or {}) for mode in modes if mode.domain is domain]
    return NOTE.format(f"failure_modes/{domain.value}.py") + _yaml([(f"gpu-{domain.value}", rules)])


def alert(mode: FailureMode, limits: Limits) -> Rule:
    """The alert of a mode."""
    rule: dict[str, Any] = {"alert": mode.name, "expr": expression(mode, limits)}
    if mode.hold:
        rule["for"] = duration(mode.hold)
    if mode.keep:
        rule["keep_firing_for"] = duration(mode.keep)
    rule["labels"] = {"severity": mode.severity.value, "domain": mode.domain.value, "action": mode.action.value}
    rule["annotations"] = {
        "summary": mode.summary.replace("{gpu}", GPU).replace("{job}", JOB),
        "description": mode.advice,
        "runbook_url": f"{DOCS}/{mode.name.lower()}.md",
        "dashboard_url": f"/d/{dashboard(mode)}?var-node={{{{ $labels.node }}}}&var-gpu={{{{ $labels.gpu }}}}",
    }
    return rule


def dashboard(mode: FailureMode) -> str:
    """The uid of the dashboard that shows a mode."""
    return {Domain.DISTRIBUTED: "gpu-job", Domain.COST: "gpu-cost"}.get(mode.domain, "gpu-gpu")


def expression(mode: FailureMode, limits: Limits) -> str:
    """What the alert of a mode evaluates."""
    parts = [mode.condition.promql(limits)] if mode.condition else []
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


def _yaml(groups: Iterable[tuple[str, Sequence[Rule]]]) -> str:
    content = {
        "groups": [
            {"name": name, "rules": [{**rule, "expr": _Text(rule["expr"])} for rule in rules]} for name, rules in groups
        ]
    }
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
