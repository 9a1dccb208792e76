"""The Cost dashboard: what the GPUs cost, and how much of it is wasted."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.time_shares import LABEL
from gpu_exporter.render.boards import COST
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import About, BoardRow
from gpu_exporter.render.dashboards.panels import lines, number, time_shares, watched
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import firing, table
from gpu_exporter.render.rules import aggregates as a

BOARD = COST
_PRICES = "Prices are set when the recording rules are rendered."


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: totals, owners, GPUs."""
    return [
        BoardRow("What do the GPUs cost?", [watched(BOARD), *_numbers(), firing(BOARD, modes, [Domain.COST], 24)]),
        BoardRow("Where do the GPU hours go?", _time()),
        BoardRow("Who uses and who wastes GPUs?", _owners()),
        BoardRow("Which GPUs are wasted?", _devices()),
    ]


def _numbers() -> list[object]:
    shown = (
        (a.GPU_COST, "GPU cost per hour", _cost("Cost of the GPUs per hour, including electricity.")),
        (a.WASTED_COST, "Wasted spend per hour", _cost("Cost of idle time, fake load and hanging jobs per hour.")),
        (a.ELECTRICITY, "Electricity per hour", _cost("Cost of the electricity that the GPUs use per hour.")),
        (
            a.POWER,
            "Power",
            About("Power draw of the GPUs.", "near the planned power.", "compare it with the activity of the GPUs."),
        ),
    )
    return [
        number(title, about, Query(f"sum({q.of(BOARD, each)})", "", q.unit(each)), width=5)
        for each, title, about in shown
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
    return [
        time_shares("GPUs by cause", Query(by_cause, f"{{{{{LABEL}}}}}", "short")),
        time_shares("Cost per hour by cause", Query(cost, f"{{{{{LABEL}}}}}", "currencyUSD")),
    ]


def _owners() -> list[object]:
    return [
        table(
            "Workloads",
            About(
                "Cost per hour by workload. Unallocated GPUs have no name.",
                "little is wasted.",
                "click the workload to see why its GPUs are idle; release GPUs that nobody uses.",
            ),
            [
                q.query(BOARD, each, name)
                for each, name in (
                    (a.GPUS, "GPUs"),
                    (a.GPU_COST, "cost"),
                    (a.WASTED_COST, "wasted"),
                    (a.POWER, "power"),
                    (a.ELECTRICITY, "electricity"),
                )
            ],
            ("cluster", "namespace", "workload"),
        ),
        lines(
            "Wasted spend",
            About(
                "Cost of idle time and fake load per hour, by workload.",
                "low and falling.",
                "set an idle timeout, or use smaller or shared GPUs.",
            ),
            [q.query(BOARD, a.WASTED_COST)],
            width=12,
            link=None,
            stacked=True,
        ),
    ]


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
            "Energy",
            About("Energy that each GPU uses per second.", "follows the load.", "high without SM activity: fake load."),
            [q.query(BOARD, s.ENERGY)],
        ),
    ]
