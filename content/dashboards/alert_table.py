"""Tables of firing alerts and of incidents: by severity, cost and start, as in `diagnosis.incidents.urgency`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any

from content.dashboards import queries as q
from content.dashboards.frame import BLUE, ORANGE, RED, About
from content.dashboards.queries import Query
from content.dashboards.tables import CENTS, NONE, SINCE, ZERO, coloured_text, merged, numeric, override, texts
from gpu_exporter.alerting import incidents as i
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.alert_texts import NVLINK_FAULTS
from gpu_exporter.alerting.boards import Board
from gpu_exporter.alerting.training_jobs import RANK
from gpu_exporter.catalogue.bottlenecks import WINDOW
from gpu_exporter.catalogue.failure_modes import MODES, STALLS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.conditions.signal import DEVICE

SEVERITY_COLOURS = {Severity.CRITICAL: RED, Severity.WARNING: ORANGE, Severity.INFO: BLUE}
# The labels of an alert that a table of alerts shows. An alert of several GPUs of a node is one row on a dashboard that
# is about more than this node.
ALERT_COLUMNS = ("severity", "alertname", "cluster", "node", "namespace", "workload", "action")
# What a row of a single GPU names besides.
SINGLE = ("gpu", "rank")
OF_GPU = "cluster, node, gpu"
# The modes whose alerts may be about a network port or an NVLink that is known.
OF_LINKS = frozenset(
    {*NVLINK_FAULTS, *(mode.name for mode in MODES if mode.domain is Domain.NETWORK and "{gpu}" in mode.summary)}
)
# Numbers of a row of incidents that are labels, so that they need no queries of their own.
NUMBERS = {"nodes": i.OPEN_NODES, "symptoms": i.OPEN_EXPLAINED}
# Why a symptom may be older than its root cause.
ACTIVE_SINCE = (
    "*active since*: when the condition of the {what} became true. Symptoms may begin minutes before their root cause, "
    "because conditions look back over different times."
)
# Whether no other alert explains an alert.
SYMPTOM = "symptom"
ROLES = {"root cause": ("root cause", RED), SYMPTOM: (SYMPTOM, "text")}
# What to do first about a symptom: the advice of its own may be wrong if something else causes it.
BEGIN_WITH_CAUSE = "Fix the root cause first: this alert then ends"
# The label with what an incident costs. A symptom has no cost of its own.
COST = "usd"
COST_OF_ROW = override(
    COST, {"id": "unit", "value": "currencyUSD"}, {"id": "decimals", "value": CENTS}, texts({"0": (NONE, "text")})
)
# Alerts about a job that stands still, of which a rank outside of the collective is the culprit.
# What identifies an alert about a job.
OF_JOB = ("cluster", "alertname", "severity", "namespace", "workload")
# Letters of a step that have a place in a column: a longer step is in the runbook.
LONGEST_STEP = 70
# How sentences of advice begin that are no steps.
NO_STEP = tuple(
    f"{each} "
    for each in (
        *("Do not", "ECC", "If", "It", "Multi-node", "No", "Not", "Nothing", "Other", "Programs", "Python", "Running"),
        *("The", "This", "What", "Which"),
    )
)


def _shows(board: Board, mode: FailureMode) -> bool:
    """Return whether alerts of a mode can be on a dashboard: those about a job or a node are not about its GPU."""
    return "gpu" not in board.single or "{gpu}" in mode.summary


def firing(
    board: Board,
    all_modes: Sequence[FailureMode],
    domains: Sequence[Domain],
    width: int = 12,
    *,
    by_gpu: bool = False,
    by_owner: bool = False,
    height: int = 8,
) -> Any:
    """Return a table of firing alerts, critical ones first, with links to what is affected and to the runbook.

    It has one row per alert, node and workload; it names the GPU if there is only one, or one that holds up its job;
    with `by_gpu`, one per GPU. `by_owner` adds the alerts about GPUs of the selected workloads that do not name their
    workload.
    """
    modes = [mode for mode in all_modes if mode.domain in domains and _shows(board, mode)]
    what = "all domains" if set(domains) == set(Domain) else ", ".join(domain.value for domain in domains)
    about = About(
        f"Firing alerts ({what}), with the number of GPUs that fire each (*firing*). "
        f"{ACTIVE_SINCE.format(what='alert')} Many alerts wait for a while before they fire.",
        "empty, while all GPUs are monitored: without data no alert can fire.",
        "critical alerts come first, then root causes, by *cost/h* and time. Begin with a *root cause*, which no other "
        "alert explains: symptoms end with it. The name of an alert opens its runbook. *what to do first* begins with "
        "the network port or the NVLink that an alert is about, if the exporter knows it.",
    )
    columns = [name for name in ALERT_COLUMNS if name != "workload" or name not in board.single]
    after_node = columns.index("node") + 1
    columns[after_node:after_node] = SINGLE[:1] if by_gpu else SINGLE
    number, since = _rows(board, domains, columns, by_gpu=by_gpu, by_owner=by_owner)
    timed = q.with_runbooks(q.with_order(f"({since}) * 1000"), modes)
    shown = ["severity", "role", COST, *(name for name in columns[1:] if name != "action" and name != "cluster")]
    if not board.single:
        shown.insert(3, "cluster")
        timed = q.with_cluster(timed, _of_any_gpu(board, domains))
    queries = [
        Query(number, "", "short", "firing"),
        Query(
            f'label_replace({_with_first_step(timed)}, "first", "{SYMPTOM}", "role", "{SYMPTOM}")',
            "",
            SINCE,
            "active since",
        ),
    ]
    overrides = [*_overrides(queries, modes), override("role", texts(ROLES), coloured_text()), COST_OF_ROW]
    empty = "no firing alerts"
    return merged("Firing alerts", about, queries, (*shown, "first"), (width, height), overrides, empty=empty)


def _of_any_gpu(board: Board, domains: Sequence[Domain]) -> str:
    """Return the alerts of the cluster. The text is shorter: VictoriaMetrics refuses queries of more than 16 KiB."""
    return q.alerts(replace(board, chosen=board.chosen[:1]), domains)


def _with_role(board: Board, domains: Sequence[Domain], rows: str) -> str:
    """Add to each row of alerts whether it is a root cause, which no other explains, and what its incident costs."""
    key = "cluster, alertname, severity, node"
    costs = f"{i.PLACES.record} * on ({i.KEY}) group_left () max by ({i.KEY}) ({_of_cluster(board, i.OPEN_COST)})"
    no_cost = partial(_labelled, COST, "0")
    roles = f" or on ({key}) ".join(
        _labelled("role", role, found)
        for role, found in zip(
            ("root cause", *ROLES),
            (
                f'count_values by ({key}) ("{COST}", max by ({key}) ({costs}))',
                no_cost(f"group by ({key}) ({i.CAUSES.record})"),
                no_cost(f"group by ({key}) ({_of_any_gpu(board, domains)})"),
            ),
            strict=True,
        )
    )
    return f"({rows}) * on ({key}) group_left (role, {COST}) ({roles})"


def _labelled(name: str, value: str, rows: str) -> str:
    return f'label_replace({rows}, "{name}", "{value}", "", "")'


def _of_cluster(board: Board, what: Aggregate) -> str:
    """Return the series of the selected cluster: the labels of an incident are missing if it has several owners."""
    return q.selected(replace(board, chosen=board.chosen[:1]), what)


def _with_first_step(alerts: str) -> str:
    """Add the name of each alert, with its link if that is known, as a further label.

    A table shows this label as what to do first.
    """
    joined = f'label_join({alerts}, "first", " ", "alertname", "link")'
    return f'label_replace({joined}, "first", "$1", "first", "(.*) ")'


def _ranks(board: Board) -> str:
    """Return how rows of a table get the rank of their GPU, if it is known."""
    ranks = f"max by ({OF_GPU}, rank) ({_of_cluster(board, i.RANKS)})"
    return f"* on ({OF_GPU}) group_left (rank) {ranks}"


def _with_names(board: Board, rows: str) -> str:
    """Return rows of alerts with the rank of their GPU, and the link that they are about, if these are known."""
    names = _of_cluster(board, i.NAMES)
    names = f"{names} {_ranks(board)} or on ({i.ROW_KEY}) {names}"
    return f"({rows}) * on ({i.ROW_KEY}) group_left (rank, link) ({names})"


def _named(board: Board, incidents: str) -> str:
    """Return the same for incidents, of which there are fewer than of names."""
    ranked = f"({incidents} {_ranks(board)} or on ({i.KEY}) {incidents})"
    links = _of_cluster(board, i.NAMES).replace("}", ', link!=""}')
    return f"({ranked} * on ({i.ROW_KEY}) group_left (link) {links} or on ({i.KEY}) {ranked})"


def _rows(
    board: Board, domains: Sequence[Domain], columns: Sequence[str], *, by_gpu: bool, by_owner: bool
) -> tuple[str, str]:
    """Return two queries with one series per row: the number of GPUs, and the time since when the alert is active.

    The second one also says whether it is a root cause. The role of an alert about a job that hangs is that of the
    alert, which names no node.
    """
    found = q.alerts(board, domains, by_owner=by_owner)
    began = q.with_owner(q.alerts_since(board, domains, by_owner=by_owner))
    # Alerts about nodes and jobs have a time, but no number of GPUs.
    of_gpus = q.with_owner(q.having(found, "UUID"))
    if by_gpu:
        rows = _with_names(board, grouped(began, "min", columns))
        return grouped(of_gpus, by=columns), _with_role(board, domains, rows)
    naming = partial(_naming_the_culprit, board) if Domain.DISTRIBUTED in domains else _naming_a_single_gpu
    # In one read only: ALERTS_FOR_STATE has a series for each pending alert, too, which may be many.
    times = f"on ({', '.join(ALERT_COLUMNS)}) group_left () {grouped(began, 'min')}"
    rows = _with_role(board, domains, _with_names(board, f"0 * ({naming(q.with_owner(found))}) + {times}"))
    if Domain.DISTRIBUTED in domains:
        stalled = grouped(q.named(q.alerts_since(board, [Domain.DISTRIBUTED]), STALLS[1:]), "min")
        stalled = f"({_with_role(board, domains, stalled)})"
        rows = f"{_of_culprit(board, stalled)} or on ({', '.join(OF_JOB)}) ({rows})"
    return f"sum without (rank) ({naming(of_gpus)})", rows


def incidents(board: Board, modes: Sequence[FailureMode], width: int, height: int, *, by_cost: bool = False) -> Any:
    """Return a table of incidents, critical ones first, then by their cost, with links to what is affected.

    It has one row per cause, and node or job; it names the GPU, the node and the owner if there is only one. `by_cost`
    puts those first that cost most, whatever their severity.
    """
    first = "the most expensive" if by_cost else "critical"
    about = About(
        f"What is wrong, by {'' if by_cost else 'severity, then '}cost, then start. *GPUs*, *nodes*: how many it hits: "
        "those that cause it, and those that wait for them. *cost/h*: all that the first waste, and the time in which "
        f"the others wait. It is a rate over the last {WINDOW / 60:.0f} minutes, not a sum since the start, and "
        f"{i.COST_INCLUDES}. No GPU time counts in two rows. *symptoms*: how many "
        "other alerts it explains. " + ACTIVE_SINCE.format(what="root cause"),
        "empty, while all GPUs are monitored: without data no alert can fire.",
        f"{first} incidents come first; the name opens the runbook, which says what to do.",
    )
    since = f"({_with_culprit(board, q.selected(board, i.OPEN_SINCE))}) * 1000"
    for name, number in NUMBERS.items():
        counted = f'count_values by ({i.KEY}) ("{name}", {q.selected(board, number)})'
        every = f"group by ({i.KEY}) ({q.selected(board, i.OPEN)})"
        since = f"{since} * on ({i.KEY}) group_left ({name}) ({counted} or on ({i.KEY}) {every})"
    timed = _with_first_step(q.with_runbooks(since if by_cost else q.with_order(since), modes))
    clusters = f"{q.CLUSTERS} or {q.selected(board, i.OPEN)}"
    queries = [
        Query(f"max by ({i.KEY}) ({q.selected(board, i.OPEN_COST)})", "", "currencyUSD", "cost/h"),
        Query(q.with_cluster(timed, clusters), "", SINCE, "active since"),
        Query(f"max by ({i.KEY}) ({q.selected(board, i.OPEN_GPUS)})", "", "short", "GPUs"),
    ]
    columns = ["severity", "alertname", "cluster", "node", *SINGLE, "namespace", "workload", "first", *NUMBERS]
    overrides = _overrides(queries, modes)
    title = f"Incidents by {'cost' if by_cost else 'severity'}"
    return merged(title, about, queries, columns, (width, height), overrides, "cost/h", "no incidents")


def first_step(mode: FailureMode) -> str:
    """Return the first sentence of what to do about a mode that is a step, not a condition or an explanation."""
    sentences = mode.advice.removesuffix(".").replace("`", "").split(". ")
    step = next((each for each in sentences if not each.startswith(NO_STEP)), sentences[0])
    step = re.sub(r" \([^)]*\)", "", step.removeprefix("Otherwise "))
    step = _shortened(step)
    return step[0].upper() + step[1:]


def _shortened(step: str) -> str:
    """Return the clauses of a step that have a place in a column. None is cut, unless the first is only a condition."""
    if len(step) <= LONGEST_STEP:
        return step
    clauses = re.split(r"(?<=[,;:]) ", step)
    while clauses and (len(" ".join(clauses).rstrip(",;:")) > LONGEST_STEP or clauses[-1].startswith("if ")):
        clauses.pop()
    if not clauses or (len(clauses) == 1 and clauses[0].startswith(("With ", "If "))):
        return shorten(step, LONGEST_STEP, placeholder=" …")
    return " ".join(clauses).rstrip(",;:")


def _with_culprit(board: Board, incidents: str) -> str:
    """Return incidents; that of a job that hangs has the GPU, and the rank, that holds it up, if it is a single one."""
    return f"{_of_culprit(board, q.named(incidents, STALLS))} or on ({i.KEY}) {_named(board, incidents)}"


def _of_culprit(board: Board, stalls: str) -> str:
    """Return alerts about jobs that stand still, with the GPU and the rank that hold up each, if it is a single one."""
    job, device, culprits = "cluster, namespace, workload", ", ".join(DEVICE), q.absent(board)
    rank = f"topk by ({device}) (1, {q.selected(board, RANK)})"
    numbered = f"{culprits} * on ({device}) group_left (rank) {rank} or on ({device}) {culprits}"
    single = f"count by ({job}, node, gpu, rank) ({numbered}) and on ({job}) count by ({job}) ({culprits}) == 1"
    return f"{stalls} * on ({job}) group_left (node, gpu, rank) ({single})"


def _overrides(queries: Sequence[Query], modes: Sequence[FailureMode]) -> list[Any]:
    colours = {severity.value: (severity.value, colour) for severity, colour in SEVERITY_COLOURS.items()}
    # Without what else a mapping may have, because there are many.
    texts_of = {mode.name: first_step(mode) for mode in modes} | {SYMPTOM: BEGIN_WITH_CAUSE}
    steps: list[dict[str, Any]] = [
        {"type": "value", "options": {name: {"text": text} for name, text in texts_of.items()}}
    ]
    steps += [
        {"type": "regex", "options": {"pattern": f"^{name} (.+)$", "result": {"text": f"$1: {texts_of[name]}"}}}
        for name in sorted(OF_LINKS & texts_of.keys())
    ]
    return [
        *(numeric(each, optional=True) for each in queries),
        override("first", {"id": "mappings", "value": steps}),
        *(override(name, texts(ZERO)) for name in NUMBERS),
        override("severity", texts(colours), coloured_text()),
    ]


def grouped(alerts: str, of: str = "count", by: Sequence[str] = ALERT_COLUMNS) -> str:
    """Return one series per row of a table of alerts: their number, or what else the aggregation `of` returns."""
    return f"{of} by ({', '.join(by)}) ({alerts})"


def _naming_a_single_gpu(alerts: str) -> str:
    """Return the rows of `grouped`; those of a single GPU have its label, and that of the rank if the alert has one."""
    key = ", ".join(ALERT_COLUMNS)
    of_gpu = grouped(alerts, by=(*ALERT_COLUMNS, *SINGLE))
    return f"{of_gpu} and on ({key}) {grouped(alerts)} == 1 or on ({key}) {grouped(alerts)}"


def _naming_the_culprit(board: Board, alerts: str) -> str:
    """Return the same rows; a job that hangs has the GPU, and the rank, that holds it up, if it is a single one."""
    key, device = ", ".join(ALERT_COLUMNS), ", ".join(DEVICE)
    culprits = q.absent(board)
    rank = f"topk by ({device}) (1, {q.selected(board, RANK)})"
    numbered = f"{culprits} * on ({device}) group_left (rank) {rank} or on ({device}) {culprits}"
    of_gpu = (
        f"0 * {grouped(numbered, by=(*ALERT_COLUMNS, *SINGLE))} + on ({key}) group_left () {grouped(q.stalls(board))}"
    )
    return f"({of_gpu}) and on ({key}) {grouped(culprits)} == 1 or on ({key}) ({_naming_a_single_gpu(alerts)})"
