"""Build the queries of panels from signals, aggregates and alerts, filtered by a dashboard's variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue.conditions import Mark, Over, PeerMedian, PeerShare
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Severity
from gpu_exporter.catalogue.signal import DEVICE_INFO, IDENTITY, OWNER, Signal
from gpu_exporter.catalogue.time_shares import LABEL, RECORD
from gpu_exporter.model.metric import Metric
from gpu_exporter.render.boards import Board, page, panel_id
from gpu_exporter.render.rules.aggregates import Aggregate

Recorded = Signal | Over | PeerShare | PeerMedian | Mark | Aggregate

# Grafana's names of the units of signals and aggregates; counts are "short".
UNITS = {
    "ratio": "percentunit",
    "watts": "watt",
    "joules_per_second": "watt",
    "bytes": "bytes",
    "bytes_per_second": "binBps",
    "celsius": "celsius",
    "hertz": "hertz",
    "usd_per_hour": "currencyUSD",
    "seconds": "s",
    "timestamp": "s",
    "per_15m": "short",
    "per_second": "short",
    **dict.fromkeys(("count", "gpus", "errors", "total", "rows", "banks", "links", "lanes"), "short"),
    **dict.fromkeys(("cpus", "processes"), "short"),
    **dict.fromkeys(("generation", "action", "status", "bool"), "short"),
}
DEVICE_LEGEND = "{{node}} · gpu{{gpu}}"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel: `unit` is Grafana's name of the unit, `name` the name of its column in a table."""

    expr: str
    legend: str
    unit: str
    name: str = ""


def of(board: Board, what: Recorded) -> str:
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


def buckets(board: Board, histogram: Metric) -> str:
    """Return the buckets of a histogram, summed over all selected devices: observations per second."""
    each = "cluster, UUID, GPU_I_ID" if histogram.per_instance else "cluster, UUID"
    return f"sum by (le) (rate({histogram}_bucket[$__rate_interval]) and on ({each}) {devices(board)})"


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

    With `grown`, it returns the increase since the previous point.
    """
    expr = of(board, what)
    if isinstance(what, Signal) and what.unit == "timestamp":
        expr = f"time() - {expr}"
    if grown:
        expr = f"increase({_record(what)}{{{', '.join(map(_matcher, _filters(board, what)))}}}[$__rate_interval])"
    return Query(expr, " ".join(filter(None, (name, legend(what)))), unit(what), name)


def _filters(board: Board, what: Recorded) -> list[str]:
    return [label for label in board.chosen if label in _labels(what)]


def legend(what: Recorded) -> str:
    """Return the labels that distinguish the series of a record, as a legend."""
    match what:
        case Aggregate(by=by) if not set(IDENTITY[:2]) <= set(by):
            return " · ".join(f"{{{{{label}}}}}" for label in by) or "{{cluster}}"
        case Signal(per_instance=True) | Over(signal=Signal(per_instance=True)):
            return f"{DEVICE_LEGEND} {{{{GPU_I_ID}}}}"
        case Signal() if what.extra_labels:
            return " ".join((DEVICE_LEGEND, *(f"{label} {{{{{label}}}}}" for label in what.extra_labels)))
    return DEVICE_LEGEND


def class_of(board: Board) -> Query:
    """Return a query for the number of the bottleneck class of each device."""
    expr = f"max without (class) ({bottlenecks.CLASS}{{{', '.join(map(_matcher, board.chosen))}}})"
    return Query(expr, f"{DEVICE_LEGEND} {{{{GPU_I_ID}}}}", "short")


def alerts(board: Board, domains: Iterable[Domain] = Domain, severities: Iterable[Severity] = Severity) -> str:
    """Return the firing alerts of gpu-exporter about the selected devices."""
    matchers = ['alertstate="firing"', *map(_matcher, board.chosen)]
    for label, values in (("domain", domains), ("severity", severities)):
        matchers.append(f'{label}=~"{"|".join(value.value for value in values)}"')
    return f"ALERTS{{{', '.join(matchers)}}}"


def with_runbooks(expr: str, modes: Sequence[FailureMode]) -> str:
    """Add the number of the runbook's panel to alerts as a label, from which a table makes a link."""
    for mode in modes:
        number = panel_id(page(mode.name))
        expr = f'label_replace({expr}, "runbook", "{number}", "alertname", "{mode.name}")'
    return expr
