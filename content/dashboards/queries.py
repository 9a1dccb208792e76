"""Build the queries of panels from signals, aggregates and alerts, filtered by a dashboard's variables.

A query for what limits each device returns its bottleneck class, or that it does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpu_exporter.alerting.aggregates import CLUSTER_GPUS, LOST_GPUS, SHARE, Aggregate
from gpu_exporter.alerting.boards import Board, panel_id
from gpu_exporter.alerting.identity import ALERT_OWNER
from gpu_exporter.alerting.rules import SLOW
from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.distributed import COLLECTIVE_STALL
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.catalogue.time_shares import LABEL, RECORD
from gpu_exporter.conditions.signal import DEVICE, DEVICE_INFO, IDENTITY, OWNER, Signal
from gpu_exporter.conditions.tree import Mark, Named, Over, PeerMedian, PeerShare, record_of
from gpu_exporter.model.metric import Metric

Recorded = Signal | Over | PeerShare | PeerMedian | Mark | Aggregate

# Grafana's names of the units of signals and aggregates; counts are "short".
UNITS = {
    "ratio": "percentunit",
    "watts": "watt",
    "joules_per_second": "watt",
    "bytes": "bytes",
    "bytes_per_second": "Bps",
    "celsius": "celsius",
    "hertz": "hertz",
    "usd_per_hour": "currencyUSD",
    "seconds": "s",
    "timestamp": "s",
    "kwh_per_hour": "kwatt",
    "usd": "currencyUSD",
    "per_15m": "short",
    "per_second": "short",
    "info": "short",
    **dict.fromkeys(("count", "gpus", "errors", "total", "rows", "banks", "links", "lanes"), "short"),
    **dict.fromkeys(("cpus", "processes"), "short"),
    **dict.fromkeys(("generation", "action", "status", "code", "bool", "level"), "short"),
}
# The number of a GPU that does not answer, and so has no class: it follows those of the classes.
LOST = len(bottlenecks.BOTTLENECKS)
# In place of the value of a GPU that does not answer: no value of a table is negative.
NO_ANSWER = -1
DEVICE_LEGEND = "{{node}} · GPU {{gpu}}"
# On a dashboard that shows one node at a time.
GPU_LEGEND = "GPU {{gpu}}"
# Alerts about GPUs that someone holds but does not use: idle, or busy only according to nvidia-smi.
IDLE = ("GpuAllocatedIdle", "GpuFakeLoad")
# The alert about a job that hangs in a collective.
# How a selector of firing alerts begins.
FIRING = 'ALERTS{alertstate="firing", '
# What `with_cluster` adds; and what has a series in each cluster with GPUs.
NAME_OF_CLUSTER = "Cluster"
CLUSTERS = f'{CLUSTER_GPUS.record}{{cluster=~"$cluster"}}'
# How many series `ranked` shows one by one: more hues without a meaning are hard to tell apart.
RANKS = 4
# How often classes and most alerts are evaluated. Queries over all of them take long: finer steps would add nothing.
EVALUATED = "1m"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel: `unit` is Grafana's name of the unit, `name` the name of its column in a table.

    `interval` is the least time between two points, from which Grafana computes the window of a rate.
    """

    expr: str
    legend: str
    unit: str
    name: str = ""
    interval: str = ""


def selected(board: Board, what: Recorded) -> str:
    """Return the recorded series that the dashboard's variables select."""
    labels = _labels(what)
    chosen = [label for label in board.chosen if label in labels]
    text = f"{_record(what)}{{{', '.join(map(_matcher, chosen))}}}"
    if set(IDENTITY) <= set(labels) and set(board.chosen) - set(labels):
        return f"({text} and on (cluster, UUID) {devices(board)})"  # only the device has the owner's labels
    return text


def devices(board: Board) -> str:
    """Return the selected devices; unallocated devices belong to no job."""
    return f"{DEVICE_INFO}{{{', '.join(map(_matcher, board.chosen))}}}"


def direct(board: Board, metric: Metric) -> str:
    """Return the series of a metric of the selected GPUs, as the exporter has them."""
    return f"({metric.name}{_of_exporter(board)} and on (cluster, UUID) {devices(board)})"


def _of_exporter(board: Board) -> str:
    """Return the selection of a metric of the exporter, which lacks the labels of the owner."""
    return f"{{{', '.join(_matcher(label) for label in board.chosen if label in ('cluster', 'gpu'))}}}"


def grown(board: Board, metric: Metric, window: str) -> str:
    """Return by how much a counter of the selected GPUs grew within a window."""
    return f"(increase({metric.name}{_of_exporter(board)}[{window}]) and on (cluster, UUID) {devices(board)})"


def at_end(expr: str) -> str:
    """Return an expression for the end of the time range, whatever the time of a point; it has selectors in braces."""
    return re.sub(r"(\}(?:\[[^]]*\])?)", r"\1 @ end()", expr)


def verdict(board: Board) -> str:
    """Return the health of each GPU: 0 if it is unknown, 1 healthy, 2 degraded, 3 unhealthy."""
    states = (s.HEALTHY, s.DEGRADED, s.UNHEALTHY)
    return " + ".join(f"{place} * {selected(board, state)}" for place, state in enumerate(states, 1))


def throttled(board: Board) -> str:
    """Return the share of time in which heat or the power supply lowered the clocks of each GPU."""
    return " + ".join(selected(board, each) for each in (s.HW_THERMAL, s.SW_THERMAL, s.POWER_BRAKE))


def buckets(board: Board, histogram: Metric) -> str:
    """Return the buckets of a histogram, summed over all selected devices: observations per second."""
    return f"sum by (le) ({_rate(board, histogram)})"


def shares(board: Board, histogram: Metric) -> str:
    """Return the buckets of a histogram as shares of all observations."""
    whole = _rate(board, histogram, '{le="+Inf"}')
    return f"{buckets(board, histogram)} / scalar(sum({whole}))"


def _rate(board: Board, histogram: Metric, only: str = "") -> str:
    each = "cluster, UUID, GPU_I_ID" if histogram.per_instance else "cluster, UUID"
    return f"rate({histogram}_bucket{only}[$__rate_interval]) and on ({each}) {devices(board)}"


def _matcher(label: str) -> str:
    return f'{label}=~"${label}"'


def _record(what: Recorded) -> str:
    return (what.record or what.signal.record) if isinstance(what, Over) else what.record


def _labels(what: Recorded) -> tuple[str, ...]:
    match what:
        case Aggregate():
            return ("cluster", *what.by)
        case Signal(has_owner=False) | Over(signal=Signal(has_owner=False)):
            return ("cluster", *IDENTITY)
    return ("cluster", *IDENTITY, *OWNER)


def unit(what: Recorded) -> str:
    """Return Grafana's name of its unit."""
    match what:
        case Over() | PeerMedian():
            return unit(what.signal if isinstance(what, Over) else what.of)
        case PeerShare():
            return UNITS["ratio"]
        case Mark():
            return UNITS["bool"]
    return UNITS[what.unit]


def shares_of(board: Board) -> Query:
    """Return where the time of the selected GPUs goes, by cause: their mean."""
    of_selected = f"{RECORD}{{{', '.join(map(_matcher, board.chosen))}}}"
    return Query(f"avg by ({LABEL}) ({of_selected})", f"{{{{{LABEL}}}}}", UNITS["ratio"])


def query(board: Board, what: Recorded, name: str = "", *, grown: bool = False) -> Query:
    """Return a query with one series per device, node or workload; the legend is `name` and the labels.

    With `grown`, it returns the increase within four minutes, or since the previous point if that is longer ago.
    """
    expr = selected(board, what)
    if isinstance(what, Signal) and what.unit == "timestamp":
        expr = f"time() - {expr}"
    if grown:
        expr = f"increase({_record(what)}{{{', '.join(map(_matcher, _filters(board, what)))}}}[$__rate_interval])"
    return Query(
        expr,
        " ".join(filter(None, (name, legend(board, what)))),
        unit(what),
        name,
        SLOW if grown else "",  # of a shorter window, the rate of a recorded signal would have a single value
    )


def ranked(board: Board, what: Aggregate) -> list[Query]:
    """Return one query for each of the highest series at the end of the time range, and one for the sum of the others.

    A query has its own hue; the names of the series, which an override needs, are not known here.
    """
    return ranked_series(selected(board, what), legend(board, what), unit(what))


def ranked_series(series: str, legend: str, unit: str) -> list[Query]:
    """Return the same for an expression."""

    def highest(count: int) -> str:
        return f"topk({count}, {at_end(series)})"

    ranks = [f"{series} and {highest(1)}"]
    ranks += [f"{series} and ({highest(rank)} unless {highest(rank - 1)})" for rank in range(2, RANKS + 1)]
    others = Query(f"sum({series} unless {highest(RANKS)})", "others", unit)
    return [*(Query(rank, legend, unit) for rank in ranks), others]


def _filters(board: Board, what: Recorded) -> list[str]:
    return [label for label in board.chosen if label in _labels(what)]


def device_legend(board: Board) -> str:
    """Return the legend of series of one device each."""
    return GPU_LEGEND if "node" in board.single else DEVICE_LEGEND


def legend(board: Board, what: Recorded) -> str:
    """Return the labels that distinguish the series of a record, as a legend."""
    device = device_legend(board)
    match what:
        case Aggregate(by=by) if not set(IDENTITY[:2]) <= set(by):
            return " · ".join(f"{{{{{label}}}}}" for label in by) or "{{cluster}}"
        case Signal(per_instance=True) | Over(signal=Signal(per_instance=True)):
            return f"{device} {{{{GPU_I_ID}}}}"
        case Signal() if what.extra_labels:
            return " ".join((device, *(f"{label} {{{{{label}}}}}" for label in what.extra_labels)))
    return device


def classes(board: Board) -> str:
    """Return the bottleneck class of each device as a label."""
    return f"{bottlenecks.CLASS}{{{', '.join(map(_matcher, board.chosen))}}}"


def class_of(board: Board) -> str:
    """Return the number of the bottleneck class of each device."""
    return f"max without (class) ({classes(board)})"


def lost(board: Board) -> str:
    """Return the GPUs that do not answer."""
    return selected(board, LOST_GPUS)


def or_lost(board: Board, values: Query) -> Query:
    """Return values by GPU, and `NO_ANSWER` for a GPU that does not answer; a table takes the highest of each GPU."""
    return replace(values, expr=f"{values.expr} or (0 * ({lost(board)}) - {-NO_ANSWER})")


def alerts(
    board: Board,
    domains: Iterable[Domain] = Domain,
    severities: Iterable[Severity] = Severity,
    *,
    by_owner: bool = False,
) -> str:
    """Return the firing alerts of gpu-exporter about the selected devices.

    Those without a workload are found by their GPU if `by_owner`.
    """
    return _alerts(board, FIRING, (domains, severities), by_owner=by_owner)


def alerts_since(
    board: Board,
    domains: Iterable[Domain] = Domain,
    severities: Iterable[Severity] = Severity,
    *,
    by_owner: bool = False,
) -> str:
    """Return, for each firing alert, since when it is active, in Unix seconds: pending at first, if it has a `for`."""
    since = _alerts(board, "ALERTS_FOR_STATE{", (domains, severities), by_owner=by_owner)
    # Of any GPU of the cluster, because the text is shorter.
    firing = _alerts(replace(board, chosen=board.chosen[:1]), FIRING, (domains, severities), by_owner=False)
    return f"{since} and ignoring (alertstate) {firing}"


def stalls(board: Board) -> str:
    """Return the firing alerts about jobs that hang in a collective."""
    return named(alerts(board, [Domain.DISTRIBUTED]), [COLLECTIVE_STALL])


def absent(board: Board) -> str:
    """Return the firing alerts about the ranks that never entered the collective in which their job hangs."""
    return f"({stalls(board)} unless on ({', '.join(DEVICE)}) {holds(board, bottlenecks.SPINNING)})"


def named(alerts: str, names: Iterable[str]) -> str:
    """Return those of some alerts that have one of these names."""
    return alerts.replace("{", f'{{alertname=~"{"|".join(names)}", ')


def throttling(board: Board) -> str:
    """Return the firing alerts about GPUs whose clocks heat or the power supply lowers."""
    return named(alerts(board), (mode.name for mode in MODES if mode.cause is Cause.THROTTLED))


def idle(board: Board) -> str:
    """Return the GPUs that are held but not used, according to firing alerts, as shares: those of MIG instances."""
    return f"{selected(board, SHARE)} and on ({', '.join(DEVICE)}) {named(alerts(board), IDLE)}"


def having(alerts: str, label: str) -> str:
    """Return those of some alerts that have a label: an alert about a job names neither a node nor a GPU."""
    # Not `{label}=~".+"`: Prometheus would look up all values of the label, such as the UUID of each GPU.
    return f"({alerts} unless on ({label}) vector(0))"


def with_owner(found: str) -> str:
    """Add namespace and workload to alerts that lack them, if their GPU has one owner."""
    return (
        f"(({found}) * on (cluster, UUID) group_left (namespace, workload) {ALERT_OWNER} "
        f"or ignoring (namespace, workload) ({found}))"
    )


def _alerts(board: Board, begin: str, kinds: tuple[Iterable[Domain], Iterable[Severity]], *, by_owner: bool) -> str:
    domains, severities = map(list, kinds)
    these = [_any_of("domain", domains, Domain)]
    these += [_any_of("severity", severities, Severity)] if len(severities) < len(Severity) else []
    found = f"{begin}{', '.join([*these, *map(_matcher, board.chosen)])}}}"
    if not by_owner:
        return found
    others = f"{begin}{', '.join([*these, *map(_matcher, board.chosen[:1])])}}}"
    return f"({found} or {others} and on (cluster, UUID) {devices(board)} and on (workload) vector(0))"


def _any_of(label: str, chosen: Sequence[Enum], every: type[Enum]) -> str:
    # Short if nothing is excluded: VictoriaMetrics refuses queries of more than 16 KiB.
    values = ".+" if len(chosen) == len(every) else "|".join(str(each.value) for each in chosen)
    return f'{label}=~"{values}"'


def with_runbooks(expr: str, modes: Sequence[FailureMode]) -> str:
    """Add the number of the runbook's panel to alerts as a label, from which a table makes a link."""
    for mode in modes:
        number = panel_id(mode.page)
        expr = f'label_replace({expr}, "runbook", "{number}", "alertname", "{mode.name}")'
    return expr


def with_cluster(rows: str, clusters: str = CLUSTERS) -> str:
    """Add the name of its cluster to each row as a further label, but not if there is a single cluster.

    `clusters` has at least one series of each cluster of the rows.
    """
    each = f"group by (cluster) ({clusters})"
    several = f'label_replace({each} unless on () (count({each}) == 1), "{NAME_OF_CLUSTER}", "$1", "cluster", "(.+)")'
    named = f"{rows} * on (cluster) group_left ({NAME_OF_CLUSTER}) ({several} or on (cluster) {each})"
    # VictoriaMetrics copies a label that is missing as an empty one, and drops it here.
    return f'label_replace({named}, "{NAME_OF_CLUSTER}", "$1", "{NAME_OF_CLUSTER}", "(.*)")'


def with_order(expr: str) -> str:
    """Add a label by which a table sorts alerts: the rank of the severity. Alphabetically, info comes second."""
    for rank, severity in enumerate(Severity):
        expr = f'label_replace({expr}, "order", "{rank}", "severity", "{severity.value}")'
    return expr


def holds(board: Board, condition: Named) -> str:
    """Return the devices for which a shared condition holds."""
    return f"{record_of(condition)}{{{', '.join(map(_matcher, board.chosen))}}}"


def limit_of(board: Board) -> str:
    """Return the number of the bottleneck class of each device, or `LOST`."""
    return f"(0 * ({lost(board)}) + {LOST}) or {class_of(board)}"


def classes_of(board: Board) -> Query:
    """Return a query for what limits each device, in their natural order."""
    legend = f"{device_legend(board)} {{{{GPU_I_ID}}}}"
    return Query(in_order(limit_of(board)), legend, "short", interval=EVALUATED)


def classes_of_ranks(board: Board, culprits_now: str, rank: str, most: int) -> Query:
    """Return the same for up to `most` ranks of a job: those that hold it up now come first.

    `rank` has the number of each rank as a label.
    """
    device = ", ".join(DEVICE)
    # Of now, so that a device has one row.
    known = f"topk by ({device}) (1, last_over_time({rank}[$__range] @ end())) or on ({device}) {devices(board)}"
    blamed = f'label_replace(({known}) and on ({device}) ({culprits_now}), "Culprit", "0", "", "")'
    others = f'label_replace(topk({most}, {known}), "Culprit", "1", "", "")'
    known = f"{blamed} or on ({device}) {others}"
    known = f'label_replace({known}, "Rank", "$1 · ", "rank", "(.+)")'
    joined = f"({limit_of(board)}) * on ({device}) group_left (Culprit, Rank) ({known})"
    # VictoriaMetrics copies a label that is missing as an empty one, and drops it here.
    joined = f'label_replace({joined}, "Rank", "$1", "Rank", "(.*)")'
    legend = f"{{{{Rank}}}}{DEVICE_LEGEND} {{{{GPU_I_ID}}}}"
    return Query(in_order(joined, "Culprit", "Rank"), legend, "short", interval=EVALUATED)


def in_order(expr: str, *labels: str) -> str:
    """Return series of devices in the natural order of node, GPU and instance; Grafana keeps Prometheus' order.

    Prometheus sorts by the first label: this is the added one, because its name comes first, unless that of one of the
    further labels does.
    """
    by = ", ".join(("cluster", "node", "gpu", "GPU_I_ID", *labels))
    padded = f'label_replace(max by ({by}) ({expr}), "Digits", "0$1", "gpu", "(.)")'
    padded = f'label_replace({padded}, "Digits", "$1", "gpu", "(..+)")'
    return f'label_join({padded}, "Device", " ", "cluster", "node", "Digits", "GPU_I_ID")'
