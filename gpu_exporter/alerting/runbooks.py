"""Render a runbook for each failure mode, and their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_exporter.alerting import banner, coverage, rules
from gpu_exporter.alerting.coverage import Detectability
from gpu_exporter.catalogue import failure_modes
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.loops import LOOP
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Scope, Severity
from gpu_exporter.catalogue.faults import FAULTS
from gpu_exporter.catalogue.signals import READ_AGE, XID_FATAL
from gpu_exporter.catalogue.xids import load
from gpu_exporter.conditions import prose
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Derived, Read, Signal
from gpu_exporter.conditions.tree import Condition, Limit, Limits
from gpu_exporter.model.metric import MetricSet
from gpu_exporter.reports import markdown
from gpu_exporter.reports.markdown import bullets, code, numbered, table
from gpu_exporter.reports.numbers import capitalised, exact_duration


def derivation(of: Signal | Derived | float) -> str:
    """Return how a signal is derived from others."""
    match of:
        case Signal():
            return title(of)
        case Derived(left, operator, right):
            sides = (
                f"({derivation(side)})" if isinstance(side, Derived) else derivation(side) for side in (left, right)
            )
            return f" {operator} ".join(sides)
    return f"{of:.15g}"


def with_roots(signals: Iterable[Signal]) -> tuple[Signal, ...]:
    """Return the signals, each followed by those that it is derived from."""
    return tuple(dict.fromkeys(one for signal in signals for one in (signal, *_roots(signal))))


def _roots(side: Signal | Derived | float) -> Iterator[Signal]:
    match side:
        case Signal():
            for way in side.definitions:
                if isinstance(way, Derived):
                    yield from _roots(way)
        case Derived(left, _, right):
            for part in (left, right):
                if isinstance(part, Signal):
                    yield part
                yield from _roots(part)


NAME = re.compile(r"\bGpu[A-Z]\w+")
FOLDER = "docs/runbooks"
# What an alert becomes in the example for Alertmanager; a warning about costs is in a digest.
SEVERITY = {Severity.CRITICAL: "a page", Severity.WARNING: "a ticket", Severity.INFO: "no notification"}
DIGEST = "a digest"
NO_ACTION = "no standard repair: see *Fix*"
SCOPE = {
    Scope.DEVICE: "the metrics of one GPU",
    Scope.JOB: "comparing the ranks of a job",
    Scope.FLEET: "Prometheus only; `gpu-exporter diagnose` does not report it",
}
ON_NODE = "step timers, by Prometheus and by `gpu-exporter diagnose --url`"
DOMAIN = {
    Domain.HEALTH: "Health: is the hardware healthy?",
    Domain.BOTTLENECK: "Bottlenecks: why is the job slow?",
    Domain.DISTRIBUTED: "Distributed jobs: which rank holds up the job?",
    Domain.NETWORK: "Network: do the links between nodes work?",
    Domain.COST: "Cost: which GPUs are paid for but not used?",
    Domain.REMEDIATION: "Remediation: what stops the controller, and what waits for people?",
}
INDEX = """# Runbooks

One page per alert, in triage order: an alert higher up can be the cause of those further down. On a node,
`gpu-exporter diagnose` shows which of these conditions are true at the moment, and why. How the conditions are defined,
and which exporter provides the data for each: [failure modes](../failure-modes.md).

## Where to run the commands

On Kubernetes, run `gpu-exporter` commands in the exporter's pod of that node:

```
kubectl exec -n gpu-monitoring $(kubectl get pods -n gpu-monitoring \\
  -l app.kubernetes.io/part-of=gpu-exporter,app.kubernetes.io/component=exporter \\
  --field-selector spec.nodeName=NODE -o name) -- gpu-exporter check
```

The label `app.kubernetes.io/component` distinguishes the exporter's pod from that of the remediation controller, which
may run on the same node.

For jobs and stragglers, run `gpu-exporter diagnose --url http://localhost:9400` there, or give the URL of Prometheus,
which also shows ranks on other nodes. Run `nvidia-smi`, `journalctl` and `lspci` on the node itself.

`gpu-exporter events` needs a kernel log, which the chart does not mount by default: then ask the exporter,
`curl -s ADDRESS:9400/api/v1/events`.

In these commands and queries, NODE is the node's name: the label `node` of recorded series (`gpu:…`), and usually the
part of `instance` before the port. ADDRESS is the pod's IP, or the node's with `hostNetwork` and outside Kubernetes. N
is the index of the GPU (label `gpu`).

## How to reset a GPU

1. Cordon the node, and let the jobs on the GPU end.
2. Stop DCGM, the device plugin and nvidia-persistenced, because a reset fails while a process uses the driver.
3. Run `gpu-exporter release --for 10m`, so that the exporter [releases the driver](../hand-over.md). With the systemd
   unit in `deploy/`, add `--token-file /run/gpu-exporter/token` here and to `resume`.
4. Run `nvidia-smi --gpu-reset -i N`.
5. Run `gpu-exporter resume`, and start the other services again.
6. When `gpu-exporter check` says that the GPU is healthy, uncordon the node.
"""
WHERE = (
    "Where to run the commands, and what to do before a GPU reset: [runbooks](README.md#where-to-run-the-commands).\n\n"
)
PLACES = {
    Place.GPU: "on the same GPU",
    Place.NODE: "on the same node",
    Place.JOB: "in the same job",
    Place.CLUSTER: "in the same cluster",
}
UNRELATED = """No particular alert is linked to this one. [All runbooks](README.md) are in triage order: an alert higher
up can be the cause.
"""


@dataclass(frozen=True, slots=True)
class Exporter:
    """An exporter that may be scraped: `names` are the series that it exposes."""

    title: str
    names: frozenset[str]


EXPORTERS = (
    Exporter("gpu-exporter", coverage.exposed()),
    Exporter("dcgm-exporter with its default fields", coverage.DCGM_DEFAULT),
    Exporter("dcgm-exporter with the [recommended fields](../alerts/dcgm-exporter.csv)", coverage.DCGM_RECOMMENDED),
)
FULL = coverage.exposed(full=True)
OPTIONS = {"--host-evidence": coverage.exposed(host=True), "--job-socket": coverage.exposed(jobs=True)}
EVERYTHING = coverage.exposed(full=True, host=True, jobs=True)
LIMITS = """[How to change a limit](../failure-modes.md#limits).
"""
REQUIRED = {
    "alerts": "This alert reads no metrics of GPUs: it reads the critical alerts of the nodes.",
    "attribution": "This alert reads no metrics of GPUs. It needs attribution to be enabled; see "
    "[which workload uses a GPU](../attribution.md).",
    "inference server": "It reads the activity of the GPU, and `pod:requests:count`: the requests that the inference "
    "server of the pod runs or queues (metrics of vLLM, SGLang, TGI or Triton, which Prometheus must scrape).",
    LOOP: "This alert reads what training loops send: see [training](../training.md) and [their metrics](../jobs.md).",
    "kube-state-metrics": "This alert reads no metrics of GPUs. It needs kube-state-metrics; see "
    "[allocation](../signals.md#allocation).",
    "remediation": "This alert reads no metrics of GPUs. It needs the metrics of the "
    "[remediation controller](../remediation.md#how-do-i-know-what-it-did).",
}
WORKS = {Detectability.YES: "yes", Detectability.PARTLY: "partly", Detectability.NO: "no"}


def path(mode: FailureMode) -> str:
    """Return the path of the runbook of a mode, with which the URL in its alert ends."""
    return f"{FOLDER}/{mode.page}.md"


def link(name: str, folder: str = "") -> str:
    """Return a link to a runbook, from another one or from the page that has them in this folder."""
    return f"[{name}]({folder}{name.lower()}.md)"


def works(mode: FailureMode) -> tuple[str, ...]:
    """Return for each exporter whether the mode works with it, in words."""
    said = [WORKS[coverage.detectability(mode, each.names)] for each in EXPORTERS]
    if said[0] != "yes" and coverage.detectability(mode, FULL) is Detectability.YES:
        said[0] = f"with `--metrics {MetricSet.FULL.value}`"
    for option, names in OPTIONS.items():
        if said[0] == "no" and coverage.detectability(mode, names) is Detectability.YES:
            said[0] = f"with `{option}`"
    return tuple(said)


def index(modes: Sequence[FailureMode] = MODES) -> str:
    """Return docs/runbooks/README.md: the modes by domain, in triage order."""
    parts = [banner.markdown(failure_modes), INDEX]
    for domain in dict.fromkeys(mode.domain for mode in modes):
        rows = [
            (link(mode.name), mode.severity.value, _suggested(mode), summary(mode))
            for mode in modes
            if mode.domain is domain
        ]
        parts.append(f"\n## {DOMAIN[domain]}\n\n" + table(("Alert", "Severity", "Suggested action", "Summary"), rows))
    return "".join(parts)


def _suggested(mode: FailureMode) -> str:
    """Return the action for the index."""
    return mode.action.words or "see the runbook"


def summary(mode: FailureMode) -> str:
    """Return the summary of the alert with words in place of its templates."""
    named = mode.summary.replace(" ({job})", "").replace(" ({gpu})", "").replace("{gpu}", "a GPU")
    return capitalised(markdown.untemplated(named.replace("Job {job}", "A job").replace("job {job}", "a job")))


def runbook(mode: FailureMode, modes: Sequence[FailureMode] = MODES, limits: Limits | None = None) -> str:
    """Return docs/runbooks/<name>.md."""
    others = {each.name for each in modes} - {mode.name}
    linked = partial(_linked, names=others)
    sections = (
        ("What happened", linked(f"{mode.meaning}\n")),
        ("Impact", linked(f"{mode.impact}\n")),
        ("What to do first", linked(f"{mode.advice}\n")),
        ("Find the cause", WHERE + linked(numbered(mode.diagnosis)) + _without_prometheus(mode)),
        ("Fix", linked(numbered(mode.mitigation))),
        ("When this alert is wrong", linked(f"{mode.wrong}\n")),
        ("Related alerts", _related(mode, modes)),
        ("How it is detected", _detection(mode, limits or {})),
    )
    body = "".join(f"\n## {name}\n\n{text}" for name, text in sections)
    text = summary(mode)
    title = f"# {mode.name}\n\n{text}{'' if text.endswith('?') else '.'}\n\n"
    return banner.markdown(failure_modes.file_of(mode)) + title + _facts(mode) + body + "\n[All runbooks](README.md)\n"


def _linked(text: str, names: Collection[str]) -> str:
    """Return the text with a link wherever another mode is named."""
    return NAME.sub(lambda found: link(found[0]) if found[0] in names else found[0], text)


def _facts(mode: FailureMode) -> str:
    held = f"{exact_duration(mode.hold)} after the condition becomes true" if mode.hold else "immediately"
    if mode.bridged:
        held += f"; up to {exact_duration(mode.bridged)} without data do not restart this"
    if mode.counted:
        window = exact_duration(mode.counted_within)
        held = f"when the condition is true, and was for {exact_duration(mode.hold)} of the last {window}"
    kept = f"{exact_duration(mode.kept)} after the condition ends" if mode.kept else "when the condition ends"
    rows = [
        ("Suggested action", f'{mode.action.words or NO_ACTION} (label `action="{mode.action.value}"`)'),
        ("Fires", held),
        ("Resolves", kept),
        ("Domain", mode.domain.value),
        ("Detected from", ON_NODE if mode.on_node else SCOPE[mode.scope]),
    ]
    of_cost = mode.domain is Domain.COST and mode.severity is Severity.WARNING
    notified = DIGEST if of_cost else SEVERITY[mode.severity]
    if mode.lesser:
        rows.append(("Only info", mode.lesser_because))
    example = "[example for Alertmanager](../../alerts/examples/alertmanager.yaml)"
    return table(("Severity", f"{mode.severity.value}: {notified} in the {example}"), rows)


def _detection(mode: FailureMode, limits: Limits) -> str:
    """Return the condition in words, its limits, the exporters and signals that it needs, and its PromQL."""
    parts = ["### Condition\n\n" + "".join(_condition(mode, limits))]
    if mode.all_limits:
        parts.append(f"### Limits that you can change\n\n{LIMITS}\n{limits_table(mode.all_limits)}")
    parts.append("### Data it needs\n\n" + _data(mode))
    parts.append("### PromQL\n\n" + code("promql", rules.expression(mode, limits)))
    return "\n".join(parts)


def _condition(mode: FailureMode, limits: Limits) -> Iterator[str]:
    if mode.condition:
        yield f"The alert fires for a GPU if:\n\n{condition(mode.condition, limits)}"
        yield from definitions((mode.condition,), limits)
    if mode.fleet and mode.condition:
        yield (
            "\nThe expression of the alert ([PromQL](#promql)) has a second part, which only Prometheus can evaluate. "
            "It also fires the alert.\n"
        )
    elif mode.on_node:
        yield "It is the expression of the alert ([PromQL](#promql)). `gpu-exporter diagnose --url http://NODE:9400` "
        yield "evaluates it, too, for the ranks on the nodes that it is given: repeat `--url` for each.\n"
    elif mode.fleet:
        yield "Only Prometheus can evaluate it: it is the expression of the alert ([PromQL](#promql)).\n"


def condition(of: Condition, limits: Limits) -> str:
    """Return a condition as nested bullets."""
    return _bullets(prose.lines(of, limits))


def _bullets(lines: Iterable[prose.ConditionLine]) -> str:
    return "".join(f"{'  ' * line.depth}- {line.text}\n" for line in lines)


def definitions(of: Sequence[Condition], limits: Limits) -> Iterator[str]:
    """Yield what the marks and shared conditions in some conditions mean, as nested bullets."""
    for what, lines in prose.definitions(of, limits):
        yield f"\n{what} if:\n\n{_bullets(lines)}"


def limits_table(limits: Sequence[Limit]) -> str:
    """Return limits as a table."""
    rows = [(f"`{each.name}`", f"{each.value:.15g}", each.unit, each.help) for each in limits]
    return table(("Limit", "Default", "Unit", "Meaning"), rows)


def _data(mode: FailureMode) -> str:
    exporters = (each.title.replace("../alerts", "../../alerts") for each in EXPORTERS)
    text = table(("Exporter", "Does this alert work?"), zip(exporters, works(mode), strict=True))
    if mode.needs:
        rows = [signal_row(signal) for signal in with_roots(mode.needs)]
        return f"{text}\nIt reads these signals, each from the first series that exists:\n\n{table(SIGNAL_HEAD, rows)}"
    return f"{text}\n{REQUIRED.get(mode.requires, 'It reads no metrics of GPUs.')}\n"


def _series(way: Read) -> str:
    labels = ", ".join(f'{label}="{value}"' for label, value in way.where)
    return f"{way.name}{{{labels}}}" if labels else way.name


SIGNAL_HEAD = ("Signal", "Meaning", "gpu-exporter", "dcgm-exporter ≤ 4.8", "dcgm-exporter ≥ 4.9")


def signal_row(signal: Signal, show: Callable[[Read], str] = _series) -> tuple[str, ...]:
    """Return the row of a signal, with its sources for each exporter, best first; `show` formats one source."""
    made = [f"= {derivation(way)}" for way in signal.definitions if isinstance(way, Derived)]
    ours, classic, modern = (coverage.reads(signal, which) for which in coverage.Generation)
    served = sorted((*ours, *(way for way in classic if way.name in EVERYTHING)), key=signal.definitions.index)
    columns = (served, classic, modern)
    cells = ("; ".join([*made, *(f"`{show(way)}`" for way in ways)]) or "-" for ways in columns)
    return f"`{signal.record}`", signal.help, *cells


def _without_prometheus(mode: FailureMode) -> str:
    """Return how to see the values of the condition without Prometheus; empty if `diagnose` does not evaluate it."""
    if mode.condition is None or mode.scope is Scope.FLEET:
        return ""
    if READ_AGE in mode.needs:
        return (
            "\nWithout Prometheus, run `gpu-exporter diagnose --verbose --url http://ADDRESS:9400`, so that the "
            "exporter is asked.\n"
        )
    of_job = " --one-job" if mode.scope is Scope.JOB else ""
    return (
        f"\nWithout Prometheus, `gpu-exporter diagnose --verbose{of_job}` evaluates this condition now. If it is true, "
        "it shows the values that decided it.\n"
    )


def _related(mode: FailureMode, modes: Sequence[FailureMode]) -> str:
    """Return the alerts that explain this one, those that it explains, and links to other related ones."""
    lines = []
    causes = {place: [each.name for each in modes if mode.name in each.explains.get(place, ())] for place in Place}
    if where := _by_place(causes):
        lines.append(f"Check first, because these alerts explain this one: {where}.")
    if where := _by_place(mode.explains):
        lines.append(f"This alert explains {where}.")
    related = {name for of_place in (*causes.values(), *mode.explains.values()) for name in of_place}
    same = [name for name in _same_fault(mode, modes) if name not in related]
    if same:
        lines.append(f"May fire for the same fault, depending on the XID: {', '.join(map(link, same))}.")
    listed = {mode.name, *related, *same}
    mentioned = [
        each.name for each in modes if each.name not in listed and (_mentions(mode, each) or _mentions(each, mode))
    ]
    if mentioned:
        lines.append(f"See also: {', '.join(map(link, mentioned))}.")
    return bullets(lines) if lines else UNRELATED


def _by_place(modes: Mapping[Place, Sequence[str]]) -> str:
    """Return modes with where they are: on the same GPU A, B; in the same job C."""
    return "; ".join(f"{PLACES[place]} {', '.join(names)}" for place, names in modes.items() if names)


def _same_fault(mode: FailureMode, modes: Sequence[FailureMode]) -> Iterator[str]:
    """Yield the alerts that an XID which requires a drain fires, too: for its alert those of faults, and vice versa."""
    drained = {xid.code for xid in load() if xid.drain}
    reported = {fault.mode for fault in FAULTS if drained.intersection(fault.xids)}
    for each in modes:
        of_fault, other = (mode, each) if mode.name in reported else (each, mode)
        if of_fault.name in reported and XID_FATAL in other.needs:
            yield each.name


def _mentions(mode: FailureMode, other: FailureMode) -> bool:
    """Return whether the runbook of a mode names another one."""
    texts = (mode.meaning, mode.impact, mode.advice, *mode.diagnosis, *mode.mitigation, mode.wrong)
    return any(other.name in NAME.findall(text) for text in texts)
