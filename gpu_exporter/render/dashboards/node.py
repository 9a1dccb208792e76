"""Node: its GPUs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.render.boards import NODE
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import GREEN, RED, About, BoardRow, Step
from gpu_exporter.render.dashboards.panels import class_timeline, lines, number, watched
from gpu_exporter.render.dashboards.queries import Query
from gpu_exporter.render.dashboards.tables import firing
from gpu_exporter.render.prose import title
from gpu_exporter.render.rules import aggregates as a

BOARD = NODE


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """What is wrong, what limits each GPU, what each does."""
    numbers = [
        watched(BOARD),
        number(
            "Firing alerts",
            About("Alerts on this node.", "0, while GPUs are watched.", "the table has each with its runbook."),
            Query(f"count({q.alerts(BOARD)}) or 0 * sum({q.of(BOARD, a.NODE_GPUS)})", "", "short"),
            [Step(None, GREEN), Step(1, RED)],
        ),
        number(
            "Hottest GPU",
            About("The highest temperature.", "well below the slowdown, see the GPU.", "see to air flow and fans."),
            Query(f"max({q.of(BOARD, a.NODE_TEMP)})", "", "celsius"),
        ),
        number(
            "Power",
            About("Power of all its GPUs.", "near the plan.", "compare with the GPUs' limits."),
            Query(f"sum({q.of(BOARD, a.NODE_POWER)})", "", "watt"),
        ),
        number(
            "SM activity",
            About("Mean over its GPUs.", "above 60 % in training.", "the classes below say what limits it."),
            Query(f"avg({q.of(BOARD, a.NODE_SM)})", "", "percentunit"),
        ),
        number(
            "Utilisation",
            About(
                "What nvidia-smi calls utilisation, mean over its GPUs.",
                "close to SM activity.",
                "far above SM activity it is waiting or fake load.",
            ),
            Query(f"avg({q.of(BOARD, a.NODE_UTIL)})", "", "percentunit"),
        ),
    ]
    return [
        BoardRow("Is anything wrong?", [*numbers, firing(BOARD, modes, list(Domain), 24)]),
        BoardRow("Why is it slow?", [class_timeline(BOARD)]),
        BoardRow(
            "What does each GPU do?",
            [lines(_sentence(title(each)), about, [q.query(BOARD, each)]) for each, about in _DOING],
        ),
    ]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


_ALIKE = "GPUs of one job look alike."
_DOING = (
    (
        s.GR_ACTIVE,
        About("Share of time in which any engine works.", _ALIKE, "a GPU below its peers waits for its host."),
    ),
    (
        s.SM_ACTIVE,
        About("Share of SMs that hold a warp.", _ALIKE, "a GPU above its peers is the slow one they wait for."),
    ),
    (s.POWER, About("Board power.", "near the limit at full load.", "an idle level at full utilisation does no work.")),
    (s.GPU_TEMP, About("Temperature of the chip.", "even over the node.", "one that is hotter has an air-flow fault.")),
    (s.FB_USE, About("Memory in use.", "stable over steps.", "what grows without end will end the job.")),
    (
        s.PCIE_RX_USE,
        About(
            "Traffic to the GPU over what its link carries.", "below 70 %.", "data loading, or a link that fell back."
        ),
    ),
)
