"""The Job dashboard: the ranks side by side. A straggler makes other ranks wait: it is the rank that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from content.dashboards import between_scrapes, host, loops, queries, why
from content.dashboards import queries as q
from content.dashboards.alert_table import firing
from content.dashboards.frame import DARK_RED, ORANGE, RED, TEAL, About, BoardRow
from content.dashboards.graphs import BAND, GraphStyle, Legend, banded, coloured, lines, time_shares
from content.dashboards.panels import class_timeline, reachable
from content.dashboards.queries import Query
from content.dashboards.tables import NONE, Columns, table
from gpu_exporter.alerting import training_jobs as t
from gpu_exporter.alerting.boards import JOB
from gpu_exporter.alerting.incidents import HELD
from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.catalogue.failure_modes.loops import STRAGGLER
from gpu_exporter.catalogue.failure_modes.mode import INTERRUPTION, Domain, FailureMode
from gpu_exporter.conditions.signal import DEVICE
from gpu_exporter.conditions.tree import Named, duration
from gpu_exporter.diagnosis.rolling import RANK_WORDS, RankState

BOARD = JOB
# Rows of the grid on the first screen.
ALERTS, RANKS = 6, 12
# Of a job with more ranks, those that hold it up, and some others.
MOST_RANKS = 32
# The alerts about a rank that makes the others wait.
STRAGGLERS = (STRAGGLER, *d.STRAGGLERS)
# The states of a rank: the higher, the more it is to blame.
WAITS, HANGS, STARVED, SLOW, MISSING, LOST = range(1, 7)
_HOLDS_UP, _WAITS = RANK_WORDS[RankState.WAITED_FOR], RANK_WORDS[RankState.WAITING]
STATES = (
    ("does not wait", TEAL),
    (_WAITS, ORANGE),
    (f"{_WAITS}: the job hangs", ORANGE),
    (f"{_HOLDS_UP}: its host is slow", RED),
    (f"{_HOLDS_UP}: computes longer", RED),
    (f"{_HOLDS_UP}: not in the collective", RED),
    ("does not answer", DARK_RED),
)


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: progress, waiting ranks, their loops and hosts, the GPUs, traffic, activity between scrapes."""
    return [
        BoardRow(
            "Is the job making progress?",
            [
                reachable(BOARD, height=loops.TILES),
                *loops.progress(),
                firing(BOARD, modes, list(Domain), 24, by_owner=True, height=ALERTS),
                _ranks(),
                class_timeline(BOARD, 8, RANKS, _classes()),
            ],
        ),
        BoardRow("Which rank holds up the job?", _bands()),
        BoardRow("Where does the time of its GPUs go?", [_time(), _bottlenecks(), why.idle_causes(BOARD, 6)]),
        loops.job_row(),
        host.row(BOARD),
        why.fabric_row(BOARD),
        BoardRow("Is a GPU faulty, or does it have more work?", _chips(), True),
        BoardRow("How much data moves between the ranks?", _traffic(), True),
        between_scrapes.row(BOARD),
    ]


def _bottlenecks() -> object:
    return lines(
        "GPUs by bottleneck",
        About(
            "Number of GPUs of the job in each bottleneck class, as in the timeline above.",
            "compute-bound; memory-bound when generating tokens.",
            "the runbook of the alert for the class says what to do.",
        ),
        [Query(f"count by (class) ({q.classes(BOARD)})", "{{class}}", "short")],
        GraphStyle(Legend.LIST, stacked=True, overrides=coloured({each.name: each.colour for each in c.BOTTLENECKS})),
        width=9,
        link=None,
    )


def _time() -> object:
    return time_shares("Time by cause", q.shares_of(BOARD), width=9)


def _band(title: str, about: About, what: q.Recorded) -> object:
    """Return the lowest, the median and the highest value of all ranks, and the ranks that hold up the job."""
    series, culprits = q.selected(BOARD, what), " or ".join(map(q.at_end, _culprits().values()))
    unit = q.unit(what)
    queries = [
        Query(f"{series} and on ({', '.join(DEVICE)}) ({culprits})", f"holds up: {q.legend(BOARD, what)}", unit),
        Query(f"quantile(0.5, {series})", "median", unit),
        Query(f"min({series})", BAND[0], unit),
        Query(f"max({series})", BAND[1], unit),
    ]
    return lines(title, about, queries, GraphStyle(Legend.LIST, overrides=banded(RED)), width=6)


def _bands() -> list[object]:
    ranks = "All ranks as a band with their median, and those that hold up the job now in red."
    return [
        loops.self_time(),
        _band(
            "Engine activity",
            About(
                f"Mean over 5 minutes. {ranks}",
                "a narrow band.",
                "a rank below the others waits for its host: data loader, CPU throttling, noisy neighbours.",
            ),
            c.GR,
        ),
        _band(
            "SM activity",
            About(
                f"Mean over 5 minutes. {ranks}",
                "a narrow band.",
                "a rank above the others spends more time computing: check its clock and power below.",
            ),
            c.SM,
        ),
        _band(
            "Power as a share of the limit",
            About(
                ranks,
                "a narrow band.",
                "a rank far below the others waits for them, or for its host: compare engine activity.",
            ),
            s.POWER_USE,
        ),
    ]


def _culprits() -> Mapping[int, str]:
    """Return the ranks that hold up the job, by state: stragglers, and ranks outside the collective that hangs."""
    return {
        STARVED: _held(d.STARVED_STRAGGLER),
        SLOW: _held(d.SLOW_STRAGGLER),
        MISSING: f"({_in_hanging_job()} == 0)",
    }


def _classes() -> q.Query:
    """Return the class of each rank; those that held up the job within ten minutes before the end come first."""
    culprits = " or ".join(map(q.at_end, _culprits().values()))
    return queries.classes_of_ranks(BOARD, culprits, q.selected(BOARD, t.RANK), MOST_RANKS)


def _held(straggler: Named) -> str:
    """Return the stragglers of the last minutes: in a checkpoint there is none, but their alerts last."""
    return f"last_over_time({q.holds(BOARD, straggler)}[{duration(INTERRUPTION)}])"


def _in_hanging_job() -> str:
    """Return for each rank of a job that hangs whether it waits in a collective."""
    return f"({q.selected(BOARD, c.SPINS)} and on ({', '.join(DEVICE)}) {q.holds(BOARD, c.HANGS)})"


def _state() -> str:
    """Return the state of each rank, an index in `STATES`; of several, the highest counts."""
    states = {LOST: q.lost(BOARD), **_culprits(), HANGS: _in_hanging_job(), WAITS: q.holds(BOARD, c.WAITING)}
    return " or ".join((*(f"(0 * ({ranks}) + {state})" for state, ranks in states.items()), q.selected(BOARD, d.WAITS)))


def _blamed_since() -> str:
    """Return since when the incident is active that holds up the job; else, an alert about the rank itself."""
    job = "cluster, namespace, workload"
    since = q.having(q.alerts_since(BOARD, [Domain.DISTRIBUTED]), "node")
    return (
        f"0 * ({_state()} > 0) + on ({job}) group_left () {q.selected(BOARD, HELD)} or on ({', '.join(DEVICE)}) {since}"
    )


def _ranks() -> object:
    since = f"(time() - ({_blamed_since()}))"
    device = ", ".join(DEVICE)
    # A rank without a step timer in its loop has no number.
    numbered = f"topk by ({device}) (1, {q.selected(BOARD, t.RANK)}) or on ({device}) {q.devices(BOARD)}"
    # The line that keeps the GPU of a rank waiting is known of few ranks.
    others = f'label_replace(group by (cluster, UUID) ({q.devices(BOARD)}), "line", "{NONE}", "", "")'
    line = f"{why.waiting_lines(BOARD)} or on (cluster, UUID) {others}"
    numbered = f"({numbered}) * on (cluster, UUID) group_left (line) ({line})"
    state = f"topk({MOST_RANKS}, {_state()}) * on ({device}) group_left (rank, line) ({numbered})"
    worst = f"topk({MOST_RANKS}, {_state()})"
    values = [q.query(BOARD, s.GR_ACTIVE, "engine"), q.query(BOARD, s.SM_ACTIVE, "SM")]
    return table(
        "Ranks",
        About(
            f"Up to {MOST_RANKS} ranks, the one that holds up the job first: its state and why, for how long the "
            "incident is active that holds up the job, what it does, and the line of code that keeps its GPU waiting"
            f"{why.LINE_NEEDED} Ranks have numbers if the training loop has a step timer.",
            "no rank that holds up the job, and similar values on all ranks.",
            "click the rank that holds up the job: a less busy engine means that its host is slow, busier SMs that "
            "its GPU is slow.",
        ),
        [
            Query(f"max by (rank, node, gpu, line) ({state})", "", "short", "state"),
            Query(_of(worst, since), "", "s", "for"),
            *(replace(each, expr=_of(worst, f"({each.expr})")) for each in (q.or_lost(BOARD, one) for one in values)),
        ],
        Columns(
            ("rank", "node", "gpu", "line"),
            added=("rank", "line"),
            shares=["engine", "SM"],
            words={"state": ((STATES[0][0], "text"), *STATES[1:-1], (STATES[-1][0], RED))},
            answers=[each.name for each in values],
        ),
        sort="state",
        width=16,
        height=RANKS,
    )


def _of(ranks: str, values: str) -> str:
    return f"{values} and on ({', '.join(DEVICE)}) ({ranks})"


def _chips() -> list[object]:
    return [
        lines(
            "SM clock",
            About(
                "SM clock of each rank.",
                "similar on all ranks.",
                "lower at full power: more work. Lower and hot: the GPU throttles.",
            ),
            [q.query(BOARD, s.SM_CLOCK)],
        ),
        lines(
            "Throttled by heat (hardware)",
            About(
                "Share of time with hardware thermal slowdown. Throttling by the driver: see the GPU dashboard.",
                "0.",
                "this GPU slows down the whole job: move the job to another GPU.",
            ),
            [q.query(BOARD, s.HW_THERMAL)],
        ),
    ]


def _traffic() -> list[object]:
    return [
        lines(
            "NVLink traffic",
            About(
                "Both directions, mean over 5 minutes, and the median of the waiting ranks.",
                "similar on all ranks of a synchronous job.",
                "traffic that stops: a stall. No traffic from the start: the job does not use NVLink. One rank "
                "differs: other topology, or not part of the collective.",
            ),
            [q.query(BOARD, c.NVLINK)],
        ),
        lines(
            "Tensor cores",
            About(
                "Share of cycles with active tensor cores.",
                "similar on all ranks, above 20 % in training.",
                "low on all ranks: see the bottleneck class above.",
            ),
            [q.query(BOARD, c.TENSOR)],
        ),
        lines(
            "PCIe traffic to the GPU",
            About(
                "Share of the link's capacity.",
                "similar on all ranks.",
                "a rank with much more or no traffic loads its data differently from the others.",
            ),
            [q.query(BOARD, s.PCIE_RX_USE)],
        ),
    ]
