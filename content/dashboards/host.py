"""What the host of each GPU does: the row of dashboards that show why a rank waits for its CPU, loader or storage."""

from __future__ import annotations

from content.dashboards import queries as q
from content.dashboards.frame import ABSENT, About, BoardRow
from content.dashboards.graphs import GraphStyle, lines
from gpu_exporter.alerting.boards import Board
from gpu_exporter.catalogue import host_signals as s
from gpu_exporter.catalogue.failure_modes import host as h
from gpu_exporter.conditions.tree import Limit
from gpu_exporter.reports.numbers import exact

NO_LIMIT = "no CPU limit, or not collected"
NEEDED = " Needs `--host-evidence`."


def _below(limit: Limit) -> str:
    return f"below {exact(limit.value, 'ratio')} (limit `{limit.name}`)"


# Title, what it shows, what is good, what to do otherwise, signal.
PANELS = (
    (
        "Launching thread on a CPU",
        "Share of time in which the thread that launches kernels runs.",
        "similar on all ranks.",
        "near 100 % while the GPU waits: Python or launch overhead. Near 0: it waits for workers or storage.",
        s.LAUNCH_CPU,
    ),
    (
        "Launching thread waits for a CPU",
        "Share of time in which this thread is runnable, but other threads use its CPUs.",
        f"{_below(h.STARVED)}.",
        "give the rank CPUs of its own: affinity, fewer threads, no neighbours.",
        s.LAUNCH_WAIT,
    ),
    (
        "Stopped by the CPU limit",
        "Share of the periods of the CPU limit in which it stopped the process.",
        f"{_below(h.THROTTLED)}, or empty: no limit.",
        "raise the CPU limit of the pod.",
        s.THROTTLED,
    ),
    (
        "Workers on a CPU",
        "Share of time in which an active loader worker runs.",
        "below 80 %, with a GPU that does not wait.",
        "near 100 %: more workers if CPUs are free, else cheaper preprocessing.",
        s.WORKER_CPU,
    ),
    (
        "Workers blocked by storage",
        "Share of time in which an active loader worker is in uninterruptible sleep.",
        f"{_below(h.BLOCKED)}.",
        "the storage is too slow: cache the data locally, read larger files.",
        s.WORKER_BLOCKED,
    ),
    (
        "Use of the allowed CPUs",
        "Use of the CPUs that the process may use, by any process.",
        f"{_below(h.FULL_CPUS)}.",
        "more workers would not help: more CPUs, or less work per sample.",
        s.CPU_USE,
    ),
)


def row(board: Board) -> BoardRow:
    """Return the row: the launching thread, then the workers, then what limits both."""
    panels = [
        lines(
            title,
            About(what + NEEDED, good, cure),
            [q.query(board, signal)],
            GraphStyle(empty=NO_LIMIT if signal is s.THROTTLED else ABSENT),
        )
        for title, what, good, cure, signal in PANELS
    ]
    return BoardRow("What does the host of each rank do?", panels, True)
