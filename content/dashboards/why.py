"""Rows of GPU, Node and Job that say why: profiles, the fabric, who shares a GPU, active checks, and the exporter.

They read metrics of gpu-exporter itself. No rule records them, because nothing else needs them.
"""

from __future__ import annotations

from content.dashboards import queries as q
from content.dashboards.frame import GREEN, GREY, LIVE_PAGE, OF_A_NODE, ORANGE, RED, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, Legend, coloured, hues, lines
from content.dashboards.mode_panels import ports
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting.boards import Board
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import nic_signals
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BY_NAME
from gpu_exporter.catalogue.causes import STACK_WORDS, TraceCause
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.model.metric import Metric

# The colours of causes: those of the classes that have most to do with them.
COLOURS = {
    cause: GREY if cause is TraceCause.UNKNOWN else BY_NAME[name].colour
    for cause, name in (
        (TraceCause.SYNCHRONISATION, "compute-bound"),
        (TraceCause.DATA_LOADING, "data-loading-bound"),
        (TraceCause.LAUNCH_OVERHEAD, "host-bound"),
        (TraceCause.COLLECTIVES, "communicating"),
        (TraceCause.COPIES, "pcie-bound"),
        (TraceCause.DEPENDENCY, "waiting"),
        (TraceCause.CHECKPOINT, "memory-bound"),
        (TraceCause.COMPILATION, "underfilled"),
        (TraceCause.GARBAGE_COLLECTION, "throttled"),
        (TraceCause.ALLOCATION, "mixed"),
        (TraceCause.PYTHON, "tensor-cores-idle"),
        (TraceCause.UNKNOWN, ""),
    )
}
NEEDED = " Needs `--profile`."
LINE_NEEDED = " (needs `--profile` and `--profile-lines`; without these, the live page of its node shows it)."
CHECKED = " Needs `gpu-exporter check --active`."
SHARED = "not shared, or not collected"


def waiting_lines(board: Board, *more: str) -> str:
    """Return the line of code that keeps a GPU waiting, as the label `line`, of the few GPUs where it is known."""
    lines = f"group by ({', '.join(('cluster, UUID, line', *more))}) ({q.direct(board, m.WAITING_LINE)})"
    return f"topk by (cluster, UUID) (1, {lines})"


def idle_causes(board: Board, width: int = 12) -> object:
    """Return a graph of what the threads did that launch work on the GPUs, by cause."""
    overrides = coloured({cause.value: colour for cause, colour in COLOURS.items()})
    for cause, override in zip(COLOURS, overrides, strict=True):
        override["properties"].append({"id": "displayName", "value": STACK_WORDS[cause]})
    return lines(
        "What do the main threads do?",
        About(
            "Share of the time of the main threads of the processes on the GPUs, by cause, from the latest profile."
            + NEEDED,
            "mostly waiting for the GPU (synchronisation).",
            "the live page of the node has the flame graph of the profile, with the line of code.",
        ),
        [Query(f"avg by (cause) ({q.direct(board, m.IDLE_CAUSE)})", "{{cause}}", "percentunit")],
        GraphStyle(Legend.LIST, stacked=True, most=1, overrides=overrides),
        width=width,
        link=None,
        links=[{"title": "Flame graph", "url": LIVE_PAGE, "targetBlank": True}] if board in OF_A_NODE else [],
    )


def kernels(board: Board, width: int = 12) -> object:
    """Return a table of the GPU time of kernels by class, within the traces that were requested."""
    spent = f"sum by (class) ({q.grown(board, m.KERNEL_CLASS, '$__range')})"
    return table(
        "Kernels by class",
        About(
            "GPU time of kernels and copies by class, within the traces of these GPUs in the time range." + NEEDED,
            "mostly matrix products (gemm) and attention in training.",
            "much communication: see the row about the fabric. Much elementwise: fuse kernels.",
        ),
        [
            Query(f"{spent} / on () group_left () (sum({spent}) > 0)", "", "percentunit", "share"),
            Query(spent, "", "s", "time"),
        ],
        Columns(("class",), shares=["share"]),
        width=width,
        sort="share",
    )


def profile_row(board: Board) -> BoardRow:
    """Return the row about profiles and traces."""
    return BoardRow("Why do the GPUs wait? (profiles and traces)", [idle_causes(board), kernels(board)], True)


def fabric_row(board: Board) -> BoardRow:
    """Return the row about NVLink, network ports and NCCL."""
    link = f"sum by (cluster, UUID) ({q.direct(board, m.NVLINK_SPEED)})"
    used = f"{q.selected(board, s.NVLINK)} / on (cluster, UUID) group_left () ({link})"
    bus = f"avg by (operation, message_size, scope) ({q.direct(board, m.NCCL_BUS)})"
    traffic = [
        q.query(board, nic_signals.TX, "sent"),
        q.query(board, nic_signals.RX, "received"),
    ]
    return BoardRow(
        "Fabric: NVLink, network ports, NCCL",
        [
            lines(
                "NVLink use",
                About(
                    "NVLink traffic in both directions, as a share of the capacity of the links that are up.",
                    "high while ranks communicate, and alike on all ranks.",
                    "0 in a job over several GPUs: it does not use NVLink. Lower on one GPU: a link of it is down.",
                ),
                [Query(used, q.device_legend(board), "percentunit")],
            ),
            lines(
                "Network traffic of the nearest ports",
                About(
                    "Traffic of the network ports nearest to each GPU.",
                    "alike on all ranks of a job over several nodes.",
                    "lower on one GPU: its rail is slow, see the table of ports.",
                ),
                traffic,
                GraphStyle(Legend.NONE, overrides=hues(traffic)),
            ),
            table(
                "NCCL bandwidth",
                About(
                    "Bus bandwidth of NCCL's operations, by operation and size of the message. Needs "
                    "`--nccl-inspector-dir`.",
                    "large messages near the bandwidth of NVLink or of the network (docs/fabric.md).",
                    "lower than expected: look for a port or an NVLink that is slow or down.",
                ),
                [Query(bus, "", "Bps", "bandwidth")],
                Columns(("operation", "message_size", "scope")),
                width=8,
                sort="bandwidth",
            ),
            *([] if Domain.NETWORK in board.shows else [ports(board)]),
        ],
        True,
    )


def sharing_row(board: Board) -> BoardRow:
    """Return the row about who uses the GPUs, active checks, and the exporter."""
    tables = [_pods(board), _checks(board), _exporters(board)]
    return BoardRow("Who shares it, what did the last check find, and does the exporter work?", tables, True)


def exporter_row(board: Board) -> BoardRow:
    """Return the same without who uses the GPUs."""
    tables = [_checks(board), _exporters(board)]
    return BoardRow("What did the last check find, and does the exporter work?", tables, True)


def _of_pods(board: Board, metric: Metric) -> str:
    return f"sum by (gpu, pod) ({q.direct(board, metric)})"


def _pods(board: Board) -> object:
    return table(
        "Pods on the GPU",
        About(
            "Pods with processes on the GPU, their memory, and the share of time in which their *kernels* run.",
            "a single pod, or those that share the GPU on purpose.",
            "another pod: ask its owner; `gpu-exporter top` shows the processes.",
        ),
        [
            Query(_of_pods(board, m.POD_MEMORY), "", "bytes", "memory"),
            Query(_of_pods(board, m.POD_SM), "", "percentunit", "kernels"),
        ],
        Columns(("gpu", "pod"), shares=["kernels"], optional=["kernels"]),
        width=8,
        sort="memory",
        empty=SHARED,
    )


def _checks(board: Board) -> object:
    by = "by (gpu)"
    return table(
        "Last active check",
        About(
            "Whether the last active check found a problem, when it was, and what it measured: the arithmetic rate "
            "(*compute*), and the slowest of memory, PCIe and NVLink." + CHECKED,
            "passed, within the last days.",
            "failed: `gpu-exporter check --active` on the node says what is wrong.",
        ),
        [
            Query(f"min {by} ({q.direct(board, m.CHECK_PASSED)})", "", "short", "passed"),
            Query(f"max {by} ({q.direct(board, m.CHECK_AT)}) * 1000", "", "dateTimeFromNow", "checked"),
            Query(f"min {by} ({q.direct(board, m.CHECK_RATE)})", "", "flops", "compute"),
            Query(f"min {by} ({q.direct(board, m.CHECK_BANDWIDTH)})", "", "Bps", "slowest"),
        ],
        Columns(
            ("gpu",),
            words={"passed": (("failed", RED), ("passed", GREEN))},
            optional=["passed", "compute", "slowest"],
        ),
        width=7,
        sort="checked",
    )


def _exporters(board: Board) -> object:
    by = "by (instance)"
    of_gpus = f"and on (cluster, instance) {q.direct(board, m.DURATION)}"
    return table(
        "Exporter",
        About(
            "How long the exporter needs to read its slowest GPU, and to answer; failed reads and lost "
            "records of the kernel log. The name opens its live page, with profiles and flame graphs.",
            "well below the interval; no failures.",
            "`gpu-exporter doctor` on the node says why reads are slow or fail.",
        ),
        [
            Query(f"max {by} ({q.direct(board, m.DURATION)})", "", "s", "read"),
            Query(f"max {by} ({m.RENDER_TIME.name} {of_gpus})", "", "s", "response"),
            Query(f"sum {by} ({q.grown(board, m.FAILURES, '1h')})", "", "short", "failures"),
            Query(f"max {by} (increase({m.MISSED.name}[1h]) {of_gpus})", "", "short", "log lost"),
        ],
        Columns(
            ("instance",),
            steps={name: (ColourStep(None, "text"), ColourStep(1, ORANGE)) for name in ("failures", "log lost")},
            optional=["failures", "log lost"],
        ),
        width=9,
        sort="read",
    )
