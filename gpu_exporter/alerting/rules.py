"""Render Prometheus rules: recorded signals, classes and job comparisons, and one alert per failure mode."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

from gpu_exporter.alerting import (
    aggregates,
    alert_texts,
    allocation,
    banner,
    boards,
    hourly_sums,
    identity,
    incidents,
    levels,
    remediation,
    roofline,
    selection,
    serving,
    training_jobs,
    vmalert,
)
from gpu_exporter.alerting.groups import Groups, Rule, RuleGroup, as_text
from gpu_exporter.alerting.levels import RuleLevel
from gpu_exporter.catalogue import bottlenecks, failure_modes, stopped_counters
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Scope, Severity
from gpu_exporter.catalogue.time_shares import TIME_SHARES
from gpu_exporter.conditions import promql
from gpu_exporter.conditions.formulas import expression as expression_of
from gpu_exporter.conditions.formulas import parts
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import DEVICE_KEY, Read, Signal, record_name
from gpu_exporter.conditions.tree import (
    Condition,
    Fn,
    Is,
    Leaf,
    Limit,
    Limits,
    Mark,
    Named,
    OfRanks,
    Over,
    PeerShare,
    duration,
    nodes,
    record_of,
    required_terms,
    shared,
    terms,
)
from gpu_exporter.reports.numbers import spoken_duration

# What replaces {gpu} and {job} in the summary of an alert.
NODE, JOB = "on node {{ $labels.node }}", "{{ $labels.workload }}"
GPU = f"GPU {{{{ $labels.gpu }}}}{{{{ with $labels.GPU_I_ID }}}} (MIG instance {{{{ . }}}}){{{{ end }}}} {NODE}"
# Alerts that name no job in their own words.
OWNED_GPU = f"{GPU}{{{{ with $labels.workload }}}} (workload {{{{ . }}}}){{{{ end }}}}"
# An alert that only Prometheus can evaluate may not know which GPU it is.
SOME_GPU = f"{{{{ if $labels.gpu }}}}GPU {{{{ $labels.gpu }}}}{{{{ else }}}}A GPU{{{{ end }}}} {NODE}"
SHOWN = ("cluster", "node", "gpu", "namespace", "workload")

# Groups of signals: Prometheus evaluates groups in parallel, but the rules of one group in sequence.
OF_BOARD, OF_INSTANCE, OF_GPU, OF_HISTOGRAMS = "gpu-board", "gpu-instance", "gpu-signals", "gpu-distributions"


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _signals(group: str) -> Iterator[Rule]:
    for signal in s.SIGNALS:
        if _group(signal) == group:
            yield _record(signal.record, signal.promql())


def _stopped() -> Iterator[Rule]:
    """Yield what the signals of profiling counters read: which of these have stopped."""
    yield from (_record(name, text) for name, text in stopped_counters.recorded())


def _group(signal: Signal) -> str:
    """Return the group that records a signal: hardware state, or activity of the owner of a GPU or instance."""
    if any(isinstance(way, Read) and way.shape for way in signal.definitions):
        return OF_HISTOGRAMS
    if not signal.has_owner:
        return OF_BOARD
    return OF_INSTANCE if signal.per_instance else OF_GPU


def _windows() -> Iterator[Rule]:
    for window in dict.fromkeys(_recorded_windows(terms_of_all())):
        yield _record(window.record, promql.term_definition(window))


def _judged(limits: Limits) -> Iterator[Rule]:
    """Yield marks, comparisons with other ranks and classes; shared conditions come before the rules that read them."""
    leaves = [term for condition in _conditions() for term in terms(condition)]
    marks, named = _marks(leaves), shared_conditions()
    of_class = {name for name, each in named.items() if any(isinstance(node, Is) for node in nodes(each))}
    local = {name for name, each in named.items() if all(isinstance(term, Over) for term in terms(each))} - of_class
    definitions = {name: _record(name, promql.definition(condition, limits)) for name, condition in named.items()}
    yield from (rule for name, rule in definitions.items() if name in local)
    for mark in marks:
        yield _record(mark.record, promql.mark_definition(mark, limits))
    for term in dict.fromkeys(term for term in leaves if isinstance(term, PeerShare | OfRanks) and term.record):
        yield _record(term.record, promql.term_definition(term))
    yield from (rule for name, rule in definitions.items() if name not in local | of_class)
    yield _record(bottlenecks.CLASS, promql.classification(bottlenecks.CLASSIFICATION, limits))
    yield from (rule for name, rule in definitions.items() if name in of_class)


def _bridges(limits: Limits) -> Iterator[Rule]:
    """Yield conditions, each followed by the same also for a while after something that it reads went missing.

    Both are recorded at the same time: between the evaluations of two groups, it may come back.
    """
    for mode in MODES:
        if mode.bridge and mode.condition:
            holds = record_name(mode.record, "holds")
            yield _record(holds, expression(mode, limits))
            before = f"last_over_time({holds}[{duration(mode.bridged)}])"
            reads = dict.fromkeys(term.record or term.signal.record for term in required_terms(mode.condition))
            known = " and on (cluster, UUID) ".join(reads)
            yield _record(mode.bridge, f"{holds}\nor\n({before} unless on (cluster, UUID) ({known}))")


def _time_shares(limits: Limits) -> list[Rule]:
    return [
        {**_record(share.record, expression_of(share.of, limits)), "labels": {share.label: share.name}}
        for share in TIME_SHARES.values()
    ]


def shared_conditions() -> Mapping[str, Named]:
    """Return the conditions that several classes and alerts read, by their recorded name, inner ones first."""
    conditions = _conditions()
    marks = _marks(term for condition in conditions for term in terms(condition))
    named = (inner for condition in (*conditions, *(mark.condition for mark in marks)) for inner in shared(condition))
    return {record_of(condition): condition for condition in named}


def _conditions() -> list[Condition]:
    judged = [each.condition for each in bottlenecks.BOTTLENECKS]
    judged += [each for mode in MODES for each in mode.conditions]
    return judged + [part for part in _parts() if isinstance(part, Condition)]


def _parts() -> list[Leaf | Condition | Limit]:
    """Return what the time shares are made of."""
    return [part for share in TIME_SHARES.values() for part in parts(share)]


def terms_of_all() -> Iterator[Leaf]:
    """Yield the terms of all conditions and time shares, with those of their marks."""
    leaves = [term for condition in _conditions() for term in terms(condition)]
    leaves += [part for part in _parts() if isinstance(part, Leaf)]
    yield from leaves
    for mark in _marks(leaves):
        yield from terms(mark.condition)


def _marks(leaves: Iterable[Leaf]) -> list[Mark]:
    return list(dict.fromkeys(term.mark for term in leaves if not isinstance(term, Over)))


def _recorded_windows(leaves: Iterable[Leaf]) -> Iterator[Over]:
    for term in leaves:
        over = term.of if isinstance(term, OfRanks) else term
        if isinstance(over, Over) and over.record:
            yield Over(over.signal, over.fn, over.window)


def _priced(of: Iterable[aggregates.Aggregate], prices: Limits) -> Iterator[Rule]:
    for each in of:
        yield _record(each.record, with_limits(each.expression, PRICES, prices))


def with_limits(text: str, of: Iterable[Limit], limits: Limits) -> str:
    """Return an expression with the values of these limits in place of their names in braces."""
    for limit in of:
        text = text.replace(f"{{{limit.name}}}", f"{limits.get(limit.name, limit.value):.15g}")
    return text


# For what is read over windows of five minutes or more, and for alerts that wait for ten, a shorter interval has no
# benefit.
SLOW, RECORDED_EVERY = "1m", 60.0
# For means over five minutes that no alert reads.
SLOWEST = "2m"
# For alerts that fire at once.
PROMPT = "10s"
# For what must be known before Alertmanager has waited for the group of a node (30 s), in vmalert after four steps.
FASTEST = "5s"
# The groups that need their own intervals: alerts count samples of `gpu-classes`, reports add up those of others, and
# a fault of the fleet must be known before its nodes notify.
OWN_INTERVAL = (
    "gpu-classes",
    "gpu-time",
    "gpu-accounting",
    "gpu-fleet",
    "gpu-reports",
    "gpu-alerts",
    "gpu-health-prompt",
)


def _recorded(limits: Limits) -> Groups:
    return [
        RuleGroup("gpu-identity", [_record(name, text) for name, text in identity.recorded()]),
        RuleGroup(OF_BOARD, [*_signals(OF_BOARD), *_aggregates([aggregates.LOST_GPUS])]),
        RuleGroup(OF_INSTANCE, [*_stopped(), *_signals(OF_INSTANCE)], SLOW),
        RuleGroup(OF_GPU, list(_signals(OF_GPU)), SLOW),
        RuleGroup(OF_HISTOGRAMS, list(_signals(OF_HISTOGRAMS)), SLOW),
        RuleGroup("gpu-classes", [*_windows(), *_judged(limits)], SLOW),
        RuleGroup("gpu-holds", list(_bridges(limits)), SLOW),
        RuleGroup("gpu-time", _time_shares(limits), SLOWEST),
        RuleGroup("gpu-jobs", _aggregates((*training_jobs.JOBS, incidents.RANKS)), SLOW),
        RuleGroup("gpu-progress", _aggregates(training_jobs.PROMPT), PROMPT),
        RuleGroup("gpu-accounting", list(_priced((*aggregates.COSTS, training_jobs.TOKEN_COST), limits)), SLOW),
        RuleGroup("gpu-reports", _aggregates(hourly_sums.REPORTS), hourly_sums.EVERY),
        RuleGroup("gpu-fleet", _aggregates(aggregates.FLEET), SLOW),
        RuleGroup("gpu-roofline", _aggregates(roofline.ROOFLINE), SLOW),
        RuleGroup("gpu-serving", _aggregates(serving.SERVING), SLOW),
        RuleGroup("gpu-allocation", _aggregates(allocation.ALLOCATION)),
        RuleGroup("gpu-controller", _aggregates(remediation.REMEDIATION)),
        RuleGroup("gpu-alerts", _aggregates(incidents.ALERTS), FASTEST),
        RuleGroup("gpu-incidents", _aggregates(incidents.INCIDENTS)),
        RuleGroup("gpu-incident-costs", list(_priced(incidents.COSTS, limits))),
    ]


def _aggregates(of: Sequence[aggregates.Aggregate]) -> list[Rule]:
    return [_record(each.record, each.expression) for each in of]


def _alerting(domain: Domain, limits: Limits, modes: Sequence[FailureMode]) -> Groups:
    rules: dict[str, list[Rule]] = {}
    for mode in modes:
        if mode.domain is domain:
            rules.setdefault(_interval(mode), []).extend(alerts_of(mode, limits))
    return [
        RuleGroup(f"gpu-{domain.value}{'-prompt' if interval in (PROMPT, FASTEST) else ''}", of_interval, interval)
        for interval, of_interval in rules.items()
    ]


def _interval(mode: FailureMode) -> str:
    """Return how often the alert of a mode is evaluated; some health alerts must fire immediately."""
    if mode.domain is Domain.HEALTH:
        return FASTEST if mode.scope is Scope.FLEET and not mode.hold else ""
    return SLOW if mode.hold else PROMPT


def recording(limits: Limits | None = None, domains: Collection[Domain] = tuple(Domain), interval: str = "") -> str:
    """Return alerts/recording.yaml: the rules that those of the domains read, in the order of their evaluation."""
    chosen = selection.groups_of_domains(groups(limits or {}, interval), domains)
    return banner.comment(s, bottlenecks, failure_modes) + as_text(group for group in chosen if group.is_recording)


def alerts(
    domain: Domain, limits: Limits | None = None, modes: Sequence[FailureMode] = MODES, interval: str = ""
) -> str:
    """Return alerts/<domain>.yaml: one alert per failure mode."""
    return banner.comment(*_files(domain)) + as_text(_every(interval, _alerting(domain, limits or {}, modes)))


def level_rules(
    level: RuleLevel, limits: Limits | None = None, domains: Collection[Domain] = tuple(Domain), interval: str = ""
) -> str:
    """Return levels/<level>.yaml of a bundle: recording rules and alerts of one of two levels of Prometheus."""
    chosen = levels.split(selection.groups_of_domains(groups(limits or {}, interval), domains))
    return banner.comment(s, bottlenecks, failure_modes, levels) + as_text(chosen.groups(level))


def vmalert_rules(limits: Limits | None = None, domains: Collection[Domain] = tuple(Domain), interval: str = "") -> str:
    """Return vmalert/rules.yaml of a bundle: all recording rules and alerts, in groups for vmalert."""
    chosen = selection.groups_of_domains(groups(limits or {}, interval), domains)
    return banner.comment(s, bottlenecks, failure_modes, vmalert) + as_text(vmalert.chained(chosen))


def forwarding() -> str:
    """Return alerts/examples/remote_write.yaml: the configuration by which shards forward what they have recorded."""
    return banner.comment(levels) + levels.remote_write(levels.split(groups({})).forwarded)


def _files(domain: Domain) -> Sequence[ModuleType]:
    """Return the files with the entries of a domain."""
    return list(dict.fromkeys(failure_modes.file_of(mode) for mode in MODES if mode.domain is domain))


def groups(limits: Limits, interval: str = "") -> Groups:
    """Return the groups of all files, in the order of their evaluation, evaluated every `interval` if there is one."""
    alerting = (group for domain in Domain for group in _alerting(domain, limits, MODES))
    return _every(interval, [*_recorded(limits), *alerting])


def _every(interval: str, of: Groups) -> Groups:
    """Return groups with this interval, but for those that need their own."""
    return [replace(group, interval=interval) if interval and group.name not in OWN_INTERVAL else group for group in of]


def bundle(limits: Limits) -> str:
    """Return all rules in one file, for the chart: each with its levels and domains."""
    return banner.comment(s, bottlenecks, failure_modes) + as_text(selection.tagged(groups(limits)))


def alerts_of(mode: FailureMode, limits: Limits) -> list[Rule]:
    """Return the alert of a mode; if it is only info under a condition, in two rules."""
    main = alert(mode, limits)
    if mode.lesser is None:
        return [main]
    on = f"on ({DEVICE_KEY})"
    lesser = f"(\n{promql.condition(mode.lesser, limits)}\n)"
    labels = {**main["labels"], "severity": Severity.INFO.value}
    texts = {**main["annotations"], "severity_reason": mode.lesser_because}
    return [
        {**main, "expr": f"(\n{main['expr']}\n)\nand {on} {lesser}", "labels": labels, "annotations": texts},
        {**main, "expr": f"(\n{main['expr']}\n)\nunless {on} {lesser}"},
    ]


def alert(mode: FailureMode, limits: Limits) -> Rule:
    """Return the alert of a mode, with its usual severity."""
    rule: dict[str, Any] = {"alert": mode.name, "expr": mode.bridge or expression(mode, limits)}
    if mode.pending:
        rule["for"] = duration(mode.pending)
    if mode.kept:
        rule["keep_firing_for"] = duration(mode.kept)
    rule["labels"] = {"severity": mode.severity.value, "domain": mode.domain.value, "action": mode.action.value}
    rule["annotations"] = {
        "summary": mode.summary.replace("{gpu}", _gpu(mode)).replace("{job}", JOB) + alert_texts.link(mode),
        "description": f"{mode.advice}{_shown(mode)}",
        "runbook_url": boards.runbook(mode),
        "dashboard_url": _dashboard(mode),
        **alert_texts.annotations_of(mode),
        **mode.annotations,
    }
    return rule


def _dashboard(mode: FailureMode) -> str:
    """Return the address of its dashboard, for all values of a variable whose label the alert does not have."""
    board = boards.board_of(mode)
    every = {label: boards.EVERY if label in board.single else "$__all" for label in SHOWN}
    return board.link(**{label: f'{{{{ or $labels.{label} "{value}" }}}}' for label, value in every.items()})


def _gpu(mode: FailureMode) -> str:
    """Return how the summary names the GPU: with its workload where that matters and is not named otherwise."""
    if mode.fleet:
        return SOME_GPU
    return OWNED_GPU if mode.domain in (Domain.BOTTLENECK, Domain.COST) else GPU


def _shown(mode: FailureMode) -> str:
    """Return a sentence with the value of the alert if the value is a mean over a window; a share as a percentage."""
    value = mode.value
    if value is None or value.fn is not Fn.MEAN:
        return ""
    formatter = "humanizePercentage" if value.signal.unit == "ratio" else "humanize"
    return f" Average {title(value.signal)} over {spoken_duration(value.window)}: {{{{ $value | {formatter} }}}}."


def expression(mode: FailureMode, limits: Limits) -> str:
    """Return the expression of the condition of a mode, which is that of its alert unless it is bridged."""
    parts = [promql.condition(mode.condition, limits)] if mode.condition else []
    if mode.counted and mode.condition:
        samples = promql.samples(mode.condition, mode.counted_within)
        parts = [f"{part}\nand\n{samples} >= {mode.hold / RECORDED_EVERY:.0f}" for part in parts]
    if mode.shows:
        parts = [f"{promql.term(mode.shows)}\nand (\n{part}\n)" for part in parts]
    if _blames_a_job(mode):
        parts = [_with_owner(mode, part) for part in parts]
    if mode.fleet:
        parts.append(with_limits(mode.fleet, mode.limits, limits))
    whole = parts[0] if len(parts) == 1 else "\nor\n".join(f"(\n{part}\n)" for part in parts)
    return f"(\n{whole}\n)\nunless {mode.unless}" if mode.unless else whole


def _blames_a_job(mode: FailureMode) -> bool:
    """Return whether a mode explains what happens in the job on the GPU, whose labels its signals do not have."""
    in_job = any(Place.JOB in places for places in EFFECTS.get(mode.name, {}).values())
    return in_job and mode.scope is Scope.DEVICE and alert_texts.lacks_owner(mode)


def _with_owner(mode: FailureMode, expression: str) -> str:
    """Return the series with the last owner of the GPU.

    A page keeps its owner, or none, when the job goes or another one comes, so as not to page again.
    """
    owner = identity.LAST_OWNER
    if mode.severity is Severity.CRITICAL:
        now = f'ALERTS{{alertname="{mode.name}"}}'
        before = f'last_over_time(ALERTS{{alertname="{mode.name}", workload!=""}}[15m])'
        owners = [*(f"topk by (cluster, UUID) (1, {each})" for each in (now, before)), owner]
        owner = "(\n  {}\n)".format("\n  or on (cluster, UUID)\n  ".join(owners))
    return f"(\n{expression}\n)\n* on (cluster, UUID) group_left (namespace, workload) {owner}"
