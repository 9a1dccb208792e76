"""Job: its ranks side by side. A straggler has victims: look for the rank that differs from the others."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.conditions import PeerMedian, PeerShare
from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.render.boards import JOB
from gpu_exporter.render.dashboards import between_scrapes
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import GREEN, ORANGE, About, BoardRow
from gpu_exporter.render.dashboards.panels import class_timeline, lines, states, watched
from gpu_exporter.render.dashboards.tables import firing

BOARD = JOB


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Who waits, for whom, what moves between them, and what means hide."""
    return [
        BoardRow(
            "Does the job get on?",
            [watched(BOARD), firing(BOARD, modes, [Domain.DISTRIBUTED], 20), class_timeline(BOARD)],
        ),
        BoardRow("Who waits for whom?", _waiting()),
        BoardRow("Is a chip sick, or has it more work?", _chips()),
        BoardRow("What moves between the ranks?", _traffic()),
        between_scrapes.row(BOARD),
    ]


def _waiting() -> list[object]:
    return [
        states(
            "Ranks that wait",
            About(
                "A rank waits if its engine is busy, its SMs are partly filled and traffic moves.",
                "now and then, and all alike.",
                "if all but one wait, that one is the straggler.",
            ),
            q.query(BOARD, d.WAITS),
            (("works", GREEN), ("waits", ORANGE)),
        ),
        lines(
            "Share of the other ranks that wait",
            About(
                "For each rank, how many of the others wait for it or with it.",
                "below half.",
                "the rank with the highest share is the one to look at.",
            ),
            [q.query(BOARD, PeerShare(d.WAITS))],
            width=12,
        ),
        lines(
            "Engine activity",
            About(
                "Each rank, mean of 5 minutes, and the median of those that wait.",
                "all alike.",
                "a rank below is starved by its host: data loader, CPU throttling, neighbours.",
            ),
            [q.query(BOARD, c.GR), q.query(BOARD, PeerMedian(c.GR, d.WAITS), "median of the waiting")],
            width=12,
        ),
        lines(
            "SM activity",
            About(
                "Each rank, mean of 5 minutes, and the median of those that wait.",
                "all alike.",
                "a rank above computes longer: see its clock and power below.",
            ),
            [q.query(BOARD, c.SM), q.query(BOARD, PeerMedian(c.SM, d.WAITS), "median of the waiting")],
            width=12,
        ),
    ]


def _chips() -> list[object]:
    return [
        lines(
            "SM clock",
            About("Clock of each rank.", "alike.", "lower at full power is more work; lower and hot is a sick chip."),
            [q.query(BOARD, s.SM_CLOCK)],
        ),
        lines(
            "Power over its limit",
            About("Power of each rank.", "alike.", "low while its peers are high: it waits."),
            [q.query(BOARD, s.POWER_USE)],
        ),
        lines(
            "Slowed down by heat",
            About("Share of time, by hardware.", "0.", "this chip makes the whole job slow: move the job off it."),
            [q.query(BOARD, s.HW_THERMAL)],
        ),
    ]


def _traffic() -> list[object]:
    return [
        lines(
            "NVLink traffic",
            About(
                "Both directions, mean of 5 minutes, and the median of the ranks that wait.",
                "alike: in a synchronous job all ranks move the same.",
                "none anywhere is a stall; one that differs has another topology, or is no part of the collective.",
            ),
            [q.query(BOARD, c.NVLINK), q.query(BOARD, PeerMedian(c.NVLINK, d.WAITS), "median of the waiting")],
        ),
        lines(
            "Tensor cores",
            About("Share of cycles.", "alike, above 20 % in training.", "low on all: the job mostly communicates."),
            [q.query(BOARD, c.TENSOR)],
        ),
        lines(
            "PCIe traffic to the GPU",
            About("Share of the link.", "alike.", "a rank that has more than the others, or none, loads data apart."),
            [q.query(BOARD, s.PCIE_RX_USE)],
        ),
    ]
