"""What training loops say: a row on the Job dashboard, rank by rank, and one on the Cost dashboard, job by job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from content.dashboards import queries as q
from content.dashboards.frame import BLUE, GREEN, GREY, ORANGE, RED, About, BoardRow
from content.dashboards.graphs import BAND, GraphStyle, Legend, banded, coloured, dashed, hues, lines
from content.dashboards.panels import fitted, number, numbers
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting import training_jobs as t
from gpu_exporter.alerting.boards import COST, JOB
from gpu_exporter.catalogue import job_signals
from gpu_exporter.catalogue.causes import COLOURS, Cause
from gpu_exporter.catalogue.failure_modes import loops
from gpu_exporter.conditions.signal import DEVICE
from gpu_exporter.reports.numbers import exact

NEEDED = " Needs a step timer in the training loop, and `--job-socket`."
RANK, RANK_PHASE, ONLY_JOB = "rank {{rank}} · {{node}}", "rank {{rank}} {{phase}}", "{{job_id}}"
ACTIVITIES = {
    "training": GREEN,
    "evaluation": BLUE,
    "checkpoint": COLOURS[Cause.COPIES],
    "compile": ORANGE,
    "other": GREY,
}
WORST = 10
# What the time since the last step is named.
MOVES, STALLS = "ago", "stands still"
# What the time of a step is named.
NOW, SLOWER = "now", "now, too slow"
# What it is compared with, and what that is named while there is too little of it.
USUAL, NEW_JOB = "24 h median", "none yet"
# What goodput measures: ranks that wait for each other within a step waste GPU time at a high goodput.
IN_STEPS = "time in steps"
# Shorter differences say nothing about a step.
LEAST_SECONDS = 0.001


# Rows of the grid of the numbers on the first screen of a job.
TILES = 3


def progress() -> list[object]:
    """Return the numbers that say whether a job is on schedule."""
    step, speed, usual, since, limit = (
        q.selected(JOB, each) for each in (t.JOB_STEP, t.SPEED, t.SPEED_USUAL, t.STANDSTILL, t.STALL_LIMIT)
    )
    stalls = f'label_replace(max({since} > {limit}), "state", "{STALLS}", "", "")'
    moves = f'label_replace(max({since}), "state", "{MOVES}", "", "")'
    standstill = numbers(
        "Last step",
        _about(
            "Time since a rank completed a step or was not training, and the limit of GpuJobStalled.",
            "about one step.",
            "above the limit, the job stands still: see the rank that holds it up, below.",
        ),
        Query(f"{stalls} or on () {moves}", "{{state}}", "s"),
        Query(f"max({limit})", "limit", "s"),
        height=TILES,
    )
    standstill.overrides = [_coloured(STALLS, RED)]
    slower = f'label_replace(max({step} and {speed} / {usual} < {loops.SLOWER}), "state", "{SLOWER}", "", "")'
    duration = numbers(
        "Step time",
        _about(
            "Duration of a step, median of the ranks; and what it would be at the median speed of the last 24 hours "
            f"without the last half: *{NEW_JOB}* until the job has an hour of values in these.",
            "no longer than usual.",
            f"*{SLOWER}*: the job has less than {loops.SLOWER:.0%} of its usual speed. See which rank holds it up, "
            "then the phases of a step.",
        ),
        Query(f'{slower} or on () label_replace(max({step}), "state", "{NOW}", "", "")', "{{state}}", "s"),
        Query(f"max({step} * {speed} / {usual}) or on () 0 * max({step}) - 1", USUAL, "s"),
        height=TILES,
    )
    text = fitted(NEW_JOB)
    no_history = {"id": "mappings", "value": [{"type": "value", "options": {"-1": {"text": text}}}]}
    unknown = {"matcher": {"id": "byName", "options": USUAL}, "properties": [no_history]}
    duration.overrides = [_coloured(SLOWER, ORANGE), unknown]
    return [
        duration,
        standstill,
        number(
            "Tokens per second",
            _about(
                "Tokens per second of all ranks.", "steady.", "see GpuJobSlower. Evaluations and checkpoints are dips."
            ),
            Query(f"sum({q.selected(JOB, t.TOKENS)}) or 0 * max({since})", "", "short"),
            height=TILES,
        ),
        numbers(
            "MFU and goodput",
            _about(
                f"MFU: share of the peak of the GPUs that the model uses. Goodput (*{IN_STEPS}*): share of the time "
                "since the start of the job in training steps, restarts included. Ranks that wait for each other in a "
                "step waste GPU time, but no goodput.",
                "MFU of 30 % or more for large models; goodput above 90 %.",
                "low MFU: see the bottleneck. Low goodput: see the time by activity.",
            ),
            Query(f"avg({q.selected(JOB, t.MFU)})", "MFU", "percentunit"),
            Query(f"avg({q.selected(JOB, t.GOODPUT)})", IN_STEPS, "percentunit"),
            height=TILES,
        ),
        number(
            "Cost of a million tokens",
            _about(
                "Price of the GPUs for a million tokens. Prices are set when the recording rules are rendered.",
                "as planned.",
                "it rises if steps become slower, or if the job evaluates and saves more often.",
            ),
            Query(f"max({q.selected(JOB, t.TOKEN_COST)})", "", "currencyUSD"),
            height=TILES,
        ),
    ]


def _coloured(name: str, colour: str) -> dict[str, Any]:
    """Return the override that gives a number of this name a colour."""
    fixed = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
    return {"matcher": {"id": "byName", "options": name}, "properties": [fixed]}


def self_time() -> object:
    """Return a graph of the time of a step without waiting: all ranks as a band, and the slowest one."""
    own = q.selected(JOB, t.SELF)
    slowest = f"topk(1, {q.at_end(own)})"
    queries = [
        Query(f"{own} and on (cluster, namespace, workload, job_id, rank) {slowest}", f"slowest: {RANK}", "s"),
        Query(f"quantile(0.5, {own})", "median", "s"),
        Query(f"min({own})", BAND[0], "s"),
        Query(f"max({own})", BAND[1], "s"),
    ]
    return lines(
        "Step without waiting",
        _about(
            "Duration of a step on each rank without waiting for other ranks: all ranks as a band with their median, "
            "and the rank that is slowest now.",
            "a narrow band.",
            "the slowest rank makes the others wait: look at its phases and its data loader.",
        ),
        queries,
        GraphStyle(Legend.LIST, overrides=banded(RED)),
        width=6,
        link=None,
    )


def job_row() -> BoardRow:
    """Return the row of the Job dashboard: steps by rank, what is in them, speed."""
    return BoardRow(
        "What does the training loop say?", [*_steps(), *_parts(), _standstill(), _speed(), _shares()], True
    )


def cost_row() -> BoardRow:
    """Return the row of the Cost dashboard: what a token costs, and what raises its price."""
    return BoardRow("What does training cost?", [_jobs(), _price(), _lost()], True)


def _about(what: str, good: str, cure: str) -> About:
    return About(what + NEEDED, good, cure)


def _steps() -> list[object]:
    data, of_device = q.selected(JOB, job_signals.DATA), q.legend(JOB, job_signals.DATA)
    return [
        lines(
            "Step time",
            _about(
                "Mean duration of a step: the shortest and the longest of all ranks.",
                "steady, and the same on all ranks.",
                "longer than before: see the phases. Different: the ranks do not wait for each other.",
            ),
            [
                Query(f"{of}({q.selected(JOB, t.STEP)})", name, "s")
                for of, name in (("min", "shortest"), ("max", "longest"))
            ],
            GraphStyle(Legend.LIST),
            link=None,
        ),
        lines(
            "Data loader",
            _about(
                f"Share of time in which a loop waits for its data loader: the {WORST} ranks that wait most.",
                f"below {exact(loops.DATA_SHARE.value, 'ratio')} (limit `{loops.DATA_SHARE.name}`).",
                "one rank: its host is slow. All ranks: more workers, cheaper preprocessing, faster storage.",
            ),
            [Query(f"{data} and on ({', '.join(DEVICE)}) topk({WORST}, {q.at_end(data)})", of_device, "percentunit")],
        ),
    ]


def _parts() -> list[object]:
    slowest = f"topk({WORST}, {q.selected(JOB, t.PHASE_EXCESS)} > {LEAST_SECONDS:g})"
    return [
        lines(
            "Phases of a step",
            _about(
                "Share of a step by phase, mean of the ranks; `data` is the data loader.",
                "mostly forward and backward.",
                "waiting: stragglers or communication. data: the loader. optimizer: fuse it.",
            ),
            [Query(q.selected(JOB, t.PHASES), "{{phase}}", q.unit(t.PHASES))],
            GraphStyle(stacked=True),
            link=None,
        ),
        lines(
            "Phases that take longer than on other ranks",
            _about(
                f"The {WORST} largest differences between a phase of a rank and the median of its job, per step.",
                "small compared with the step.",
                "this phase makes this rank the straggler.",
            ),
            [Query(slowest, RANK_PHASE, q.unit(t.PHASE_EXCESS))],
            GraphStyle(empty="no difference, or not collected"),
            link=None,
        ),
        lines(
            "Time by activity",
            _about(
                "Share of time by activity, mean of the ranks. What is missing to 100 % was spent in no loop.",
                "mostly training.",
                "evaluate and save checkpoints less often, or beside the training.",
            ),
            [Query(q.selected(JOB, t.TIME), "{{activity}}", q.unit(t.TIME))],
            GraphStyle(Legend.LIST, stacked=True, most=1, overrides=coloured(ACTIVITIES)),
            link=None,
        ),
    ]


def _standstill() -> object:
    queries = [
        Query(q.selected(JOB, t.STANDSTILL), f"{ONLY_JOB} without a step", q.unit(t.STANDSTILL)),
        Query(q.selected(JOB, t.STALL_LIMIT), f"{ONLY_JOB} limit", q.unit(t.STALL_LIMIT), "limit"),
    ]
    return lines(
        "Time without a step",
        _about(
            "Time since a rank completed a step or was not training, and the limit of GpuJobStalled.",
            "about one step.",
            "above the limit, the job stands still: save the stacks of all ranks.",
        ),
        queries,
        GraphStyle(Legend.LIST, overrides=[*hues(queries), *dashed(queries, ["limit"])]),
        link=None,
    )


def _speed() -> object:
    return lines(
        "Throughput",
        _about(
            "Tokens per second of all ranks, and samples per second if the loop counts them.",
            "steady.",
            "see GpuJobSlower. Evaluations and checkpoints are dips.",
        ),
        [
            Query(q.selected(JOB, t.TOKENS), f"{ONLY_JOB} tokens per second", q.unit(t.TOKENS)),
            Query(q.selected(JOB, t.SAMPLES), f"{ONLY_JOB} samples per second", q.unit(t.SAMPLES)),
        ],
        GraphStyle(Legend.LIST),
        link=None,
    )


def _shares() -> object:
    return lines(
        "MFU and goodput",
        _about(
            "Share of the peak of the GPUs that the model uses (`flops=` and `dtype=` in the loop), and share of the "
            "time since the start of the job in training steps, restarts included.",
            "MFU of 30 % or more for large models; goodput above 90 %.",
            "low MFU: see the phases and the bottleneck class. Low goodput: see the time by activity.",
        ),
        [
            Query(q.selected(JOB, t.MFU), f"{ONLY_JOB} MFU", q.unit(t.MFU)),
            Query(q.selected(JOB, t.GOODPUT), f"{ONLY_JOB} {IN_STEPS}", q.unit(t.GOODPUT)),
        ],
        GraphStyle(Legend.LIST),
        link=None,
    )


def _jobs() -> object:
    shown = (
        (t.TOKEN_COST, "per million tokens"),
        (t.TOKENS, "tokens per second"),
        (t.RANKS, "ranks"),
        (t.MFU, "MFU"),
        (t.GOODPUT, IN_STEPS),
    )
    return table(
        "Training jobs",
        _about(
            "Price of the GPUs for a million tokens now, MFU, and the share of the time of the job in training steps.",
            f"a price as planned, {IN_STEPS} (goodput) above 90 %.",
            "click the workload: its dashboard shows what its steps and its time consist of.",
        ),
        [q.query(COST, what, name) for what, name in shown],
        Columns(
            ("namespace", "workload", "job_id"),
            shares=["MFU", IN_STEPS],
            optional=["per million tokens", "tokens per second"],  # a job that hangs has none
        ),
        width=24,
        sort="ranks",
    )


def _price() -> object:
    return lines(
        "Cost of a million tokens",
        _about(
            "Price of the GPUs for a million tokens. Prices are set when the recording rules are rendered.",
            "steady.",
            "it rises if steps become slower, or if the job evaluates and saves more often.",
        ),
        [replace(q.query(COST, t.TOKEN_COST), legend=ONLY_JOB)],
        width=12,
        link=None,
    )


def _lost() -> object:
    return lines(
        "Time lost by cause",
        _about(
            "Share of the last hour that a job did not spend in training steps; `other` is restarts and stalls.",
            "below 10 %.",
            "see GpuJobGoodputLow.",
        ),
        [Query(f"{q.selected(COST, t.LOST)} > 0", f"{ONLY_JOB} {{{{activity}}}}", q.unit(t.LOST))],
        width=12,
        link=None,
    )
