"""The Cost dashboard: what the GPUs cost, and how much of it is wasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from content.dashboards import loops
from content.dashboards import queries as q
from content.dashboards.alert_table import incidents
from content.dashboards.frame import ORANGE, RED, About, BoardRow
from content.dashboards.graphs import CAUSES, GraphStyle, Legend, hues, lines, time_shares
from content.dashboards.panels import numbers, wasted, watched
from content.dashboards.queries import Query
from content.dashboards.tables import FEW, SHARE_OF_COST, WASTEFUL, Columns, table
from gpu_exporter.alerting import aggregates as a
from gpu_exporter.alerting import hourly_sums as h
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.boards import COST
from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import COLOURS, SHARES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.catalogue.time_shares import LABEL, RECORD
from gpu_exporter.conditions.signal import DEVICE

BOARD = COST
_PRICES = "Prices are set when the recording rules are rendered."
_PRICE = f"sum({q.selected(BOARD, a.GPU_COST)}) / sum({q.selected(BOARD, a.GPUS)})"
_TEXTS = {cause.value: (CAUSES[cause], COLOURS[cause]) for cause in SHARES}
# In place of a cause: in a job that hangs, all time is waiting, also that of the rank that holds it up.
MISSING, HANGING = "culprit", "hanging"
# A lost GPU has no shares of its time.
LOST = "lost"
_IN_HANGING_JOB = {
    MISSING: ("job hangs: this rank holds it up", RED),
    HANGING: ("job hangs: waits", ORANGE),
}
# What waste is, and why a job that makes progress may have much of it.
WASTE = (
    "GPU time counts as wasted in which a GPU is lost or idle, waits for its host or for other ranks, copies, is "
    "throttled, or only looks busy."
)
WITHIN_STEPS = (
    "A job may waste much at a high goodput: goodput is the *time in steps*, and ranks wait for each "
    "other within these."
)
UNMEASURED = "A GPU without measurements counts as cost, and as waste only if it is lost."
# How many days the graph of costs shows, whatever the time range is.
DAYS = 14
# Rows of the grid on the first screen: the numbers, and two tables.
TILES, WORKLOADS, CHARGEBACK = 3, 8, 8
# Longer lists belong into a report.
WORST = 20


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: totals and owners, alerts, costs over time, wasted GPUs, causes, training jobs, single GPUs.

    The table of wasted GPUs reads series of each GPU, which takes seconds in a large fleet: it is not in view at first.
    """
    return [
        BoardRow(
            "What do the GPUs cost, who wastes them, and who pays?",
            [watched(BOARD, height=TILES), *_numbers(), _workloads(), _cost_by_cause(), _chargeback()],
        ),
        BoardRow("What causes the waste?", [incidents(BOARD, modes, 24, 6, by_cost=True)]),
        BoardRow("How do cost and waste change?", [_wasted_spend(), _per_day()]),
        BoardRow("Which GPUs are wasted?", [_wasted_gpus()]),
        BoardRow("Where do the GPU hours go?", _time()),
        loops.cost_row(),
        BoardRow("How do single GPUs waste time?", _devices(), True),
    ]


def _numbers() -> list[object]:
    cost = About(
        "Cost of the GPUs per hour, including electricity; the electricity alone; and the price of one GPU for an "
        f"hour, with which this dashboard computes all costs. {_PRICES}",
        "as budgeted, with little wasted spend, at your own price.",
        "the tables below show which workloads and GPUs; for another price, set `usdPerGpuHour` in the chart, or with "
        "`gpu-exporter bundle --limits`.",
    )
    of_day = About(
        "Cost of wasted GPU time: in the last 24 whole hours, and in a day at the present rate. *last 24 h* is the sum "
        "over the hours with data, and counts whole namespaces, also if a workload is chosen.",
        "a small share of what the GPUs cost per day.",
        "the tables below show which namespaces and workloads, and what causes it.",
    )
    hourly, now = q.selected(BOARD, h.WASTED), q.selected(BOARD, a.WASTED_COST)
    return [
        numbers(
            "GPU cost per hour",
            cost,
            Query(f"sum({q.selected(BOARD, a.GPU_COST)})", "total", "currencyUSD"),
            Query(f"sum({q.selected(BOARD, a.ELECTRICITY)})", "electricity", "currencyUSD"),
            Query(_PRICE, "one GPU", "currencyUSD"),
            width=8,
            height=TILES,
        ),
        wasted(BOARD, f"Cost of wasted GPU time per hour. {WASTE} {UNMEASURED}", width=6, height=TILES),
        numbers(
            "Wasted per day",
            of_day,
            Query(f"sum(sum_over_time({hourly}[1d]))", "last 24 h", "currencyUSD"),
            Query(f"sum({now}) * 24", "at this rate", "currencyUSD"),
            width=6,
            height=TILES,
        ),
    ]


def _of_range(report: Aggregate) -> str:
    return f"sum by (cluster, namespace) (sum_over_time({q.selected(BOARD, report)}[$__range]))"


def _chargeback() -> object:
    hours = _of_range(h.GPU_HOURS)
    return table(
        "Chargeback by namespace",
        About(
            "GPU hours, cost and energy of each namespace in the whole hours that end within the time range of the "
            "dashboard, the share of all GPU hours, what it wasted, and its cost per day at this rate. Choose a day or "
            "more.",
            "as budgeted, with little wasted.",
            "click the namespace to see its workloads.",
        ),
        [
            Query(hours, "", "none", "GPU hours"),
            Query(f"{hours} / on () group_left () (sum({hours}) > 0)", "", "percentunit", "share"),
            Query(_of_range(h.COST), "", "currencyUSD", "cost"),
            Query(f"{_of_range(h.COST)} * 86400 / $__range_s", "", "currencyUSD", "per day"),
            Query(_of_range(h.WASTED), "", "currencyUSD", "wasted"),
            Query(_of_range(h.ENERGY), "", "kwatth", "energy"),
        ],
        Columns(("cluster", "namespace"), shares=["share"], optional=["wasted", "energy"]),
        width=14,
        sort="cost",
        height=CHARGEBACK,
    )


def _per_day() -> object:
    daily = f"sum by (cluster, namespace) (sum_over_time({q.selected(BOARD, h.COST)}[1d]))"
    payers = [replace(each, interval="1d") for each in q.ranked_series(daily, "{{namespace}}", "currencyUSD")]
    panel = lines(
        "Cost per day",
        About(
            f"Cost of the GPUs in the day before each point, for {DAYS} days: the {q.RANKS} namespaces that cost most "
            "now, and the sum of the others. Points are at midnight UTC: there is none before the first midnight.",
            "as budgeted.",
            "the table *Chargeback by namespace* says how much of it is wasted.",
        ),
        payers,
        GraphStyle(Legend.LIST, stacked=True, overrides=hues(payers)),
        width=12,
        link=None,
        height=9,
    )
    panel.timeFrom = f"{DAYS}d"
    return panel


def _cost_by_cause() -> object:
    cost = f"sum by ({LABEL}) ({q.selected(BOARD, a.TIME_COST)})"
    query = Query(cost, f"{{{{{LABEL}}}}}", "currencyUSD")
    return time_shares("Cost per hour by cause", query, width=10, height=WORKLOADS + CHARGEBACK)


def _time() -> list[object]:
    by_cause = f"sum by ({LABEL}) ({q.selected(BOARD, a.TIME)})"
    # The rule records it once a minute.
    seen = f"sum by ({LABEL}) (sum_over_time({q.selected(BOARD, a.TIME)}[$__range])) / 60"
    unseen = f"sum by ({LABEL}) (sum_over_time({q.selected(BOARD, a.UNSEEN_TIME)}[$__range]))"
    hours = f"({seen} + {unseen} or {seen})"
    return [
        time_shares("GPUs by cause", Query(by_cause, f"{{{{{LABEL}}}}}", "short"), width=12, height=9),
        table(
            "GPU hours in the time range",
            About(
                "GPU hours of the whole time range, by what they were spent on. What cannot be known is "
                "missing: gaps of more than five minutes, and the first minutes of a job.",
                "most of them useful.",
                "the largest loss is worth the most work: docs/diagnose.md explains the causes.",
            ),
            [
                Query(hours, "", "none", "GPU hours"),
                Query(f"{hours} / scalar(sum({hours}))", "", "percentunit", "share"),
                Query(f"{hours} * scalar({_PRICE})", "", "currencyUSD", "cost"),
            ],
            Columns(
                (LABEL,),
                shares=["share"],
                texts={LABEL: _TEXTS},
            ),
            width=12,
            height=9,
            sort="GPU hours",
        ),
    ]


def _workloads() -> object:
    idle = f"sum by (cluster, namespace, workload) ({q.idle(BOARD)})"
    cost, gpus = q.selected(BOARD, a.GPU_COST), q.selected(BOARD, a.GPUS)
    on = "on (cluster, namespace, workload)"
    return table(
        "Workloads by waste",
        About(
            "What each workload wastes per hour, also as a share of its cost; how many of its GPUs are idle, or only "
            "look busy, according to alerts, and what these cost. Unallocated GPUs have no owner. "
            f"{WASTE} {WITHIN_STEPS}",
            "little is wasted.",
            "click the workload to see why its GPUs are idle; release GPUs that nobody uses.",
        ),
        [
            q.query(BOARD, a.WASTED_COST, "wasted/h"),
            Query(f"{q.selected(BOARD, a.WASTED_COST)} / {on} {cost}", "", "percentunit", SHARE_OF_COST),
            q.query(BOARD, a.GPU_COST, "cost/h"),
            q.query(BOARD, a.GPUS, "GPUs"),
            Query(f"{idle} or 0 * {gpus}", "", "short", "idle GPUs"),
            Query(f"{idle} * {on} {cost} / {on} {gpus} or 0 * {gpus}", "", "currencyUSD", "idle/h"),
        ],
        Columns(
            ("cluster", "namespace", "workload"),
            shares=[SHARE_OF_COST],
            steps={"idle GPUs": FEW, SHARE_OF_COST: WASTEFUL},
        ),
        width=14,
        sort="wasted/h",
        height=WORKLOADS,
    )


def _wasted_spend() -> object:
    wasters = q.ranked(BOARD, a.WASTED_COST)
    return lines(
        "Wasted spend",
        About(
            f"Cost of wasted GPU time per hour: the {q.RANKS} workloads that waste most at the end of the time range, "
            "and the sum of the others.",
            "low and falling.",
            "set an idle timeout, or use smaller or shared GPUs.",
        ),
        wasters,
        GraphStyle(overrides=hues(wasters)),
        width=12,
        link=None,
        height=9,
    )


def _wasted_gpus() -> object:
    wasted = f"topk({WORST}, {q.selected(BOARD, a.WASTED)})"
    share = f"on (cluster, UUID, GPU_I_ID) group_left () {q.selected(BOARD, a.SHARE)}"
    return table(
        "Wasted GPUs",
        About(
            f"The {WORST} GPUs that waste the largest share of their time (*wasted*): lost, idle, waiting for the host "
            "or for other ranks, copying, throttled, or under a fake load; and how much of their time the largest "
            f"cause takes (*share by cause*). If a job hangs, all time of all of its GPUs is wasted. {UNMEASURED}",
            "small shares.",
            "ask the owner; release the GPU, set an idle timeout, or use a smaller or shared GPU.",
        ),
        [
            Query(f"({wasted}) * {share} * scalar({_PRICE})", "", "currencyUSD", "wasted/h"),
            Query(wasted, "", "percentunit", "wasted"),
            Query(_worst_cause(wasted), "", "percentunit", "share by cause"),
        ],
        Columns(
            ("node", "gpu", "workload", LABEL),
            added=(LABEL,),
            shares=["wasted", "share by cause"],
            texts={LABEL: _TEXTS | _IN_HANGING_JOB | {LOST: ("lost: does not answer", RED)}},
        ),
        width=24,
        sort="wasted/h",
        height=9,
    )


def _worst_cause(of: str) -> str:
    """Return the largest loss of each of these GPUs, with its cause as a label."""
    lost = "|".join(cause.value for cause in SHARES if cause.is_loss)
    device, labels = ", ".join(DEVICE), f"node, gpu, namespace, workload, {LABEL}"
    largest = f'topk by ({device}) (1, {RECORD}{{{LABEL}=~"{lost}"}} and on ({device}) {of})'
    hangs = q.holds(BOARD, c.HANGS)
    spins = f"({q.selected(BOARD, c.SPINS)} and on ({device}) ({hangs} and on ({device}) {of}))"
    states = (
        f'label_replace(0 * ({spins} == {place}) + 1, "{LABEL}", "{state}", "", "")'
        for place, state in enumerate(_IN_HANGING_JOB)
    )
    lost_gpus = f'label_replace({of} and on (cluster, UUID) {a.LOST}, "{LABEL}", "{LOST}", "", "")'
    return f"max by ({labels}) ({lost_gpus} or {' or '.join(states)} or ({largest} unless on ({device}) {hangs}))"


def _devices() -> list[object]:
    return [
        lines(
            "Wasted time",
            About("Share of each GPU's time that is wasted.", "below 40 %.", "100 % for hours: nobody uses the GPU."),
            [q.query(BOARD, a.WASTED)],
        ),
        lines(
            "Memory in use",
            About(
                "Share of the usable device memory in use, at the peak of each minute.",
                "high on busy GPUs only.",
                "memory full on an idle GPU: a workload holds the GPU without using it.",
            ),
            [q.query(BOARD, s.FB_PEAK_USE)],
        ),
        lines(
            "Power from the energy counter",
            About(
                "Energy that each GPU uses per second. It is approximate for GPUs without an energy counter, from the "
                "power samples of their driver.",
                "follows the load.",
                "high without SM activity: fake load.",
            ),
            [_energy()],
        ),
    ]


def _energy() -> Query:
    """Return the energy of each GPU; the legend says which is approximate."""
    energy = q.query(BOARD, s.ENERGY)
    approximate = f"{energy.expr} and on (cluster, UUID) ({q.selected(BOARD, s.ENERGY_APPROXIMATE)} == 1)"
    expr = " or on (cluster, UUID) ".join(
        f'label_replace({of}, "quality", "{name}", "", "")'
        for of, name in ((approximate, "approximate"), (energy.expr, "exact"))
    )
    return replace(energy, expr=expr, legend=f"{energy.legend} {{{{quality}}}}")
