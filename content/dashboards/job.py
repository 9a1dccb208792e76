"""The Job dashboard: the ranks side by side. A straggler makes other ranks wait: it is the rank that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from content.dashboards import between_scrapes, host, loops, queries
from content.dashboards import queries as q
from content.dashboards.alert_table import firing
from content.dashboards.frame import DARK_RED, ORANGE, RED, TEAL, About, BoardRow
from content.dashboards.graphs import GraphStyle, Legend, dashed, hues, lines, time_shares
from content.dashboards.panels import class_timeline, reachable, states
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting import serving
from gpu_exporter.alerting import training_jobs as t
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.boards import JOB
from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import distributed as d
from gpu_exporter.catalogue.failure_modes.mode import INTERRUPTION, Domain, FailureMode
from gpu_exporter.conditions.signal import DEVICE
from gpu_exporter.conditions.tree import Named, PeerMedian, PeerShare, duration
from gpu_exporter.reports.numbers import exact

BOARD = JOB
# Rows of the grid on the first screen. The timeline beside ranks and time has a line for each GPU of four nodes.
ALERTS, RANKS, TIME = 7, 10, 8
BATCH_LIMIT = "recommended limit"
NO_SERVER = (
    "no inference server (vLLM, TGI, Triton) in this job. "
    "Training: see *Achieved against what this GPU can do* on GPU / Node"
)
# The alerts about a rank that makes the others wait.
STRAGGLERS = ("GpuJobStraggler", *d.STRAGGLERS)
# The states of a rank: the higher, the more it is to blame.
WAITS, HANGS, STARVED, SLOW, MISSING, LOST = range(1, 7)
STATES = (
    ("does not wait", TEAL),
    ("waits", ORANGE),
    ("waits: the job hangs", ORANGE),
    ("holds up the job: its host is slow", RED),
    ("holds up the job: computes longer", RED),
    ("holds up the job: not in the collective", RED),
    ("does not answer", DARK_RED),
)


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: progress, waiting ranks, their loops and hosts, the GPUs, traffic, activity between scrapes."""
    return [
        BoardRow(
            "Is the job making progress?",
            [
                reachable(BOARD, height=ALERTS),
                firing(BOARD, modes, list(Domain), 20, by_owner=True, height=ALERTS),
                _ranks(),
                class_timeline(BOARD, 10, RANKS + TIME, _classes()),
                _time(),
            ],
        ),
        BoardRow("Which rank holds up the job?", _waiting()),
        loops.job_row(),
        host.row(BOARD),
        BoardRow("Is a GPU faulty, or does it have more work?", _chips(), True),
        BoardRow("How much data moves between the ranks?", _traffic(), True),
        between_scrapes.row(BOARD),
        BoardRow("Which batch size suits the inference server? (training: see GPU / Node)", _batches(), True),
    ]


def _batches() -> list[object]:
    """Return the panels about inference servers; those of vLLM, TGI and Triton are known by pod, not by workload."""
    of_job = f"and on (cluster, namespace, pod) {q.devices(BOARD)}"

    def mean(aggregate: Aggregate, name: str) -> Query:
        series = f"avg_over_time({q.selected(BOARD, aggregate)}[$__range])"
        return Query(f"({series} {of_job})", "", q.unit(aggregate), name)

    def now(aggregate: Aggregate, name: str) -> Query:
        return Query(f"{q.selected(BOARD, aggregate)} {of_job}", f"{{{{pod}}}} {name}", q.unit(aggregate), name)

    sizes = [now(serving.BATCH, "batch size"), now(serving.KNEE, BATCH_LIMIT)]
    return [
        table(
            "Output and latency by batch size",
            About(
                "*output/s*: tokens per second of vLLM or TGI, inferences per second of Triton. *time/token*: latency "
                "of each token, or of each batch of Triton. Means over the time range, by batch size (powers of two).",
                "more output with each size.",
                "where latency grows more than output, a larger batch only makes requests wait.",
            ),
            [
                mean(serving.OF_SIZE, "output/s"),
                mean(serving.LATENCY_OF_SIZE, "time/token"),
            ],
            Columns(("pod", "batch")),
            empty=NO_SERVER,
        ),
        lines(
            "Batch size and its recommended limit",
            About(
                "The batch size, and the one from which twice the batch raised latency more than output during the "
                "last day: the recommended limit.",
                "a batch size below the limit.",
                "limit the batch there (vLLM: --max-num-seqs), and add replicas. Without a limit, larger batches "
                "still pay, or were not seen.",
            ),
            sizes,
            GraphStyle(Legend.LIST, overrides=[*hues(sizes), *dashed(sizes, [BATCH_LIMIT])], empty=NO_SERVER),
            link=None,
            width=12,
        ),
    ]


def _time() -> object:
    return time_shares("Where does the time of its GPUs go?", q.shares_of(BOARD), width=14, height=TIME)


def _culprits() -> Mapping[int, str]:
    """Return the ranks that hold up the job, by state: stragglers, and ranks outside the collective that hangs."""
    return {
        STARVED: _held(d.STARVED_STRAGGLER),
        SLOW: _held(d.SLOW_STRAGGLER),
        MISSING: f"({_in_hanging_job()} == 0)",
    }


def _classes() -> q.Query:
    """Return the class of each rank; those that held up the job within ten minutes before the end come first."""
    held = [_held(each, " @ end()") for each in (d.STARVED_STRAGGLER, d.SLOW_STRAGGLER)]
    hangs = f"{q.selected(BOARD, c.SPINS)} @ end() == 0 and on ({', '.join(DEVICE)}) {q.holds(BOARD, c.HANGS)} @ end()"
    return queries.classes_of_ranks(BOARD, " or ".join((*held, f"({hangs})")), q.selected(BOARD, t.RANK))


def _held(straggler: Named, at: str = "") -> str:
    """Return the stragglers of the last minutes: in a checkpoint there is none, but their alerts last."""
    return f"last_over_time({q.holds(BOARD, straggler)}[{duration(INTERRUPTION)}]{at})"


def _in_hanging_job() -> str:
    """Return for each rank of a job that hangs whether it waits in a collective."""
    return f"({q.selected(BOARD, c.SPINS)} and on ({', '.join(DEVICE)}) {q.holds(BOARD, c.HANGS)})"


def _state() -> str:
    """Return the state of each rank, an index in `STATES`; of several, the highest counts."""
    states = {LOST: q.lost(BOARD), **_culprits(), HANGS: _in_hanging_job(), WAITS: q.holds(BOARD, c.WAITING)}
    return " or ".join((*(f"(0 * ({ranks}) + {state})" for state, ranks in states.items()), q.selected(BOARD, d.WAITS)))


def _others() -> str:
    """Return the share of the other ranks that wait: a rank that moves no data hangs."""
    return " + ".join(q.selected(BOARD, PeerShare(mark)) for mark in (d.WAITS, c.SPINS))


def _blamed_since() -> str:
    """Return since when an alert about each rank is active, or about the straggler that it waits for."""
    since = q.having(q.alerts_since(BOARD, [Domain.DISTRIBUTED]), "node")
    job = "cluster, namespace, workload"
    straggler = f"min by ({job}) ({q.named(since, STRAGGLERS)})"
    return f"{since} or 0 * ({q.selected(BOARD, d.WAITS)} == 1) + on ({job}) group_left () {straggler}"


def _ranks() -> object:
    since = f"time() - ({_blamed_since()})"
    device = ", ".join(DEVICE)
    # A rank without a step timer in its loop has no number.
    numbered = f"topk by ({device}) (1, {q.selected(BOARD, t.RANK)}) or on ({device}) {q.devices(BOARD)}"
    state = f"({_state()}) * on ({device}) group_left (rank) ({numbered})"
    values = [
        q.query(BOARD, s.GR_ACTIVE, "engine"),
        q.query(BOARD, s.SM_ACTIVE, "SM"),
        q.query(BOARD, s.POWER_USE, "power"),
        q.query(BOARD, s.NVLINK, "NVLink"),
    ]
    return table(
        "Ranks",
        About(
            "Each rank, the one that holds up the job first: its state and why, for how long an alert about it, or "
            "about the straggler that it waits for, is active, and what it does. Ranks have numbers if the training "
            "loop has a step timer.",
            "no rank that holds up the job, and similar values on all ranks.",
            "click the rank that holds up the job: a less busy engine means that its host is slow, busier SMs that "
            "its GPU is slow.",
        ),
        [
            Query(f"max by (rank, node, gpu) ({state})", "", "short", "state"),
            Query(since, "", "s", "for"),
            *(q.or_lost(BOARD, each) for each in values),
        ],
        Columns(
            ("rank", "node", "gpu"),
            added=("rank",),
            shares=["engine", "SM", "power"],
            words={"state": ((STATES[0][0], "text"), *STATES[1:-1], (STATES[-1][0], RED))},
            answers=[each.name for each in values],
        ),
        sort="state",
        width=14,
        height=RANKS,
    )


def _states() -> object:
    return states(
        "Waiting ranks",
        About(
            "A rank waits if its engine is busy, its SMs are partly filled and data is transferred, or if it spins in a"
            " collective while no data moves. The others wait for a straggler, or for a rank outside the collective.",
            "short waits that are similar on all ranks.",
            "investigate the rank that holds up the job; if all wait, see GpuCommunicationBound.",
        ),
        Query(queries.in_order(_state()), q.legend(BOARD, d.WAITS), "short"),
        STATES,
        width=24,
        height=11,
    )


def _waiting() -> list[object]:
    return [
        _states(),
        lines(
            "Share of other ranks that wait",
            About(
                "For each rank, the share of the other ranks that wait for it, or hang in a collective.",
                f"below {exact(d.VICTIMS.value, 'ratio')} (limit `{d.VICTIMS.name}`).",
                "investigate the rank with the highest share first.",
            ),
            [Query(_others(), q.legend(BOARD, d.WAITS), "percentunit")],
            GraphStyle(Legend.NONE),
        ),
        lines(
            "Engine activity",
            About(
                "Each rank, mean over 5 minutes.",
                "similar on all ranks.",
                "a rank below the others waits for its host: data loader, CPU throttling, noisy neighbours.",
            ),
            [q.query(BOARD, c.GR)],
            GraphStyle(Legend.NONE),
        ),
        lines(
            "SM activity",
            About(
                "Each rank, mean over 5 minutes, and the median of the waiting ranks.",
                "similar on all ranks.",
                "a rank above the others spends more time computing: check its clock and power below.",
            ),
            [q.query(BOARD, c.SM), q.query(BOARD, PeerMedian(c.SM, d.WAITS), "median of waiting ranks")],
            GraphStyle(Legend.NONE),
        ),
    ]


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
            "Power as a share of the limit",
            About(
                "Power of each rank.",
                "similar on all ranks.",
                "a rank far below the others waits for them, or for its host: compare engine activity.",
            ),
            [q.query(BOARD, s.POWER_USE)],
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
