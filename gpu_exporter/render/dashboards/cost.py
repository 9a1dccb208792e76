"""Cost: what GPUs cost, and what of it is paid for nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.render.boards import COST
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import About, BoardRow
from gpu_exporter.render.dashboards.panels import lines, number, watched
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import firing, table
from gpu_exporter.render.rules import aggregates as a

BOARD = COST
_PRICES = "Prices are set where the rules are made."


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Numbers, who pays, which GPUs."""
    return [
        BoardRow("What does it cost?", [watched(BOARD), *_numbers(), firing(BOARD, modes, [Domain.COST], 24)]),
        BoardRow("Who pays, and for what?", _owners()),
        BoardRow("Which GPUs?", _devices()),
    ]


def _numbers() -> list[object]:
    shown = (
        (a.GPU_COST, "GPUs per hour", "What the GPUs cost by the hour, electricity included."),
        (a.WASTED_COST, "Paid for nothing per hour", "Price of idle time and fake load by the hour."),
        (a.ELECTRICITY, "Electricity per hour", "Price of the power that the GPUs take by the hour."),
        (a.POWER, "Power", "Power of the GPUs."),
    )
    return [
        number(
            title,
            About(f"{what} {_PRICES}", "as planned; nothing is paid for nothing.", "the tables below say who."),
            Query(f"sum({q.of(BOARD, each)})", "", q.unit(each)),
            width=5,
        )
        for each, title, what in shown
    ]


def _owners() -> list[object]:
    return [
        table(
            "Workloads",
            About(
                "By the hour. GPUs of no one have no name.",
                "little is paid for nothing.",
                "click on the workload to see why its GPUs wait; give back those of no one.",
            ),
            [
                q.query(BOARD, each, name)
                for each, name in (
                    (a.GPUS, "GPUs"),
                    (a.GPU_COST, "cost"),
                    (a.WASTED_COST, "paid for nothing"),
                    (a.POWER, "power"),
                    (a.ELECTRICITY, "electricity"),
                )
            ],
            ("cluster", "namespace", "workload"),
        ),
        lines(
            "Paid for nothing",
            About("By workload and hour.", "low and falling.", "an idle timeout; smaller or shared GPUs."),
            [q.query(BOARD, a.WASTED_COST)],
            width=12,
            link=None,
            stacked=True,
        ),
    ]


def _devices() -> list[object]:
    return [
        lines(
            "Time paid for nothing",
            About("Share of each GPU's time.", "below 40 %.", "1 for hours is a GPU that nobody uses."),
            [q.query(BOARD, a.WASTED)],
        ),
        lines(
            "Memory in use",
            About("Share of what programs can have.", "used by a GPU that works.", "full and idle is hoarded."),
            [q.query(BOARD, s.FB_USE)],
        ),
        lines(
            "Energy",
            About("Energy that each GPU uses, per second.", "follows the work.", "high at no work is fake load."),
            [q.query(BOARD, s.ENERGY)],
        ),
    ]
