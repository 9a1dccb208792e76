"""The Cost dashboard: what the GPUs cost, and how much of it is wasted."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import COLOURS, SHARES, WORDS
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.time_shares import LABEL, RECORD
from gpu_exporter.render.boards import COST
from gpu_exporter.render.dashboards import loops
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import ORANGE, About, BoardRow, Step
from gpu_exporter.render.dashboards.graphs import Style, hues, lines, time_shares
from gpu_exporter.render.dashboards.panels import number, watched
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import Columns, firing, table
from gpu_exporter.render.rules import aggregates as a

BOARD = COST
_PRICES = "Prices are set when the recording rules are rendered."
_PRICE = f"sum({q.of(BOARD, a.GPU_COST)}) / sum({q.of(BOARD, a.GPUS)})"
# Longer lists belong into a report.
WORST = 20


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: totals, owners and wasted GPUs, causes, training jobs, single GPUs."""
    return [
        BoardRow(
            "What do the GPUs cost, and who wastes them?",
            [watched(BOARD), *_numbers(), _workloads(), _wasted_spend(), _wasted_gpus()],
        ),
        BoardRow("Which alerts are about waste?", [firing(BOARD, modes, [Domain.COST], 24, height=6)]),
        BoardRow("Where do the GPU hours go?", _time()),
        loops.cost_row(),
        BoardRow("How do single GPUs waste time?", _devices(), True),
    ]


def _numbers() -> list[object]:
    shown = (
        (a.GPU_COST, "GPU cost per hour", _cost("Cost of the GPUs per hour, including electricity.")),
        (a.WASTED_COST, "Wasted per hour", _cost("Cost of idle time, fake load and hanging jobs per hour.")),
        (a.ELECTRICITY, "Electricity per hour", _cost("Cost of the electricity that the GPUs use per hour.")),
        (
            a.POWER,
            "Power",
            About("Power draw of the GPUs.", "near the planned power.", "compare it with the activity of the GPUs."),
        ),
    )
    price = About(
        "The price of one GPU for an hour with which this dashboard computes all costs.",
        "your own price.",
        "set `usdPerGpuHour` in the chart, or with `gpu-exporter bundle --limits`.",
    )
    return [
        *(number(title, about, Query(f"sum({q.of(BOARD, each)})", "", q.unit(each))) for each, title, about in shown),
        number("Price per GPU hour", price, Query(_PRICE, "", "currencyUSD")),
    ]


def _cost(what: str) -> About:
    return About(
        f"{what} {_PRICES}",
        "as budgeted, with little wasted spend.",
        "the tables below show which workloads and GPUs.",
    )


def _time() -> list[object]:
    by_cause = f"sum by ({LABEL}) ({q.of(BOARD, a.TIME)})"
    cost = f"sum by ({LABEL}) ({q.of(BOARD, a.TIME_COST)})"
    # The rule records it once a minute.
    hours = f"sum by ({LABEL}) (sum_over_time({q.of(BOARD, a.TIME)}[$__range])) / 60"
    return [
        time_shares("GPUs by cause", Query(by_cause, f"{{{{{LABEL}}}}}", "short"), width=8, height=9),
        time_shares("Cost per hour by cause", Query(cost, f"{{{{{LABEL}}}}}", "currencyUSD"), width=8, height=9),
        table(
            "GPU hours in the time range",
            About(
                "GPU hours of the whole time range, by what they were spent on; hours without data do not count.",
                "most of them useful.",
                "the largest loss is worth the most work: docs/diagnose.md explains the causes.",
            ),
            [Query(hours, "", "none", "GPU hours"), Query(f"({hours}) * scalar({_PRICE})", "", "currencyUSD", "cost")],
            Columns(
                (LABEL,),
                gauges=["GPU hours"],
                texts={LABEL: {cause.value: (WORDS[cause], COLOURS[cause]) for cause in SHARES}},
            ),
            width=8,
            height=9,
            sort="GPU hours",
        ),
    ]


def _workloads() -> object:
    idle = f"count by (cluster, namespace, workload) ({q.having(q.alerts(BOARD, [Domain.COST]), 'UUID')})"
    return table(
        "Workloads by waste",
        About(
            "Cost per hour by workload, and how many of its GPUs are idle, or only look busy, according to alerts. "
            "Unallocated GPUs have no owner.",
            "little is wasted.",
            "click the workload to see why its GPUs are idle; release GPUs that nobody uses.",
        ),
        [
            *(
                q.query(BOARD, each, name)
                for each, name in (
                    (a.WASTED_COST, "wasted per hour"),
                    (a.GPU_COST, "cost per hour"),
                    (a.GPUS, "GPUs"),
                )
            ),
            Query(f"{idle} or 0 * {q.of(BOARD, a.GPUS)}", "", "short", "idle GPUs"),
        ],
        Columns(
            ("cluster", "namespace", "workload"),
            gauges=["wasted per hour"],
            steps={"idle GPUs": [Step(None, "text"), Step(1, ORANGE)]},
        ),
        width=13,
        sort="wasted per hour",
        height=10,
    )


def _wasted_spend() -> object:
    wasters = q.ranked(BOARD, a.WASTED_COST)
    return lines(
        "Wasted spend",
        About(
            f"Cost of idle time and fake load per hour: the {q.RANKS} workloads that waste most at the end of the "
            "time range, and the sum of the others.",
            "low and falling.",
            "set an idle timeout, or use smaller or shared GPUs.",
        ),
        wasters,
        Style(overrides=hues(wasters)),
        width=11,
        link=None,
        height=10,
    )


def _wasted_gpus() -> object:
    wasted = f"topk({WORST}, {q.of(BOARD, a.WASTED)})"
    share = f"on (cluster, UUID, GPU_I_ID) group_left () {q.of(BOARD, a.SHARE)}"
    return table(
        "Wasted GPUs",
        About(
            f"The {WORST} GPUs with the largest share of wasted time, their owner, and what the waste costs.",
            "small shares.",
            "ask the owner; release the GPU, set an idle timeout, or use a smaller or shared GPU.",
        ),
        [
            Query(f"({wasted}) * {share} * scalar({_PRICE})", "", "currencyUSD", "wasted per hour"),
            Query(wasted, "", "percentunit", "wasted"),
            Query(_worst_cause(wasted), "", "percentunit", "by this cause"),
        ],
        Columns(
            ("node", "gpu", "workload"),
            added=(LABEL,),
            gauges=["wasted"],
            texts={LABEL: {cause.value: (WORDS[cause], COLOURS[cause]) for cause in SHARES}},
        ),
        width=24,
        sort="wasted per hour",
        height=9,
    )


def _worst_cause(of: str) -> str:
    """Return the largest loss of each of these GPUs, with its cause as a label."""
    lost = "|".join(cause.value for cause in SHARES if cause.is_loss)
    shares = f'{RECORD}{{{LABEL}=~"{lost}"}} and on (cluster, UUID, GPU_I_ID) {of}'
    labels = f"node, gpu, namespace, workload, {LABEL}"
    return f"max by ({labels}) (topk by (cluster, UUID, GPU_I_ID) (1, {shares}))"


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
                "Share of the usable device memory in use.",
                "high on busy GPUs only.",
                "memory full on an idle GPU: a workload holds the GPU without using it.",
            ),
            [q.query(BOARD, s.FB_USE)],
        ),
        lines(
            "Power from the energy counter",
            About("Energy that each GPU uses per second.", "follows the load.", "high without SM activity: fake load."),
            [q.query(BOARD, s.ENERGY)],
        ),
    ]
