"""Series recorded of training loops: per rank, and per job, whose ranks may be on many nodes.

`job_id` is a name that users choose, so a job is identified by its namespace and workload, too. Without loops there is
no series.
"""

from __future__ import annotations

from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.catalogue import job_signals as j
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import DEVICE, DEVICE_INFO
from gpu_exporter.conditions.tree import duration
from gpu_exporter.model.job_message import LONG_STEPS, ON_GPU, TRAINING, WAITING
from gpu_exporter.model.metric import Metric

WINDOW_SECONDS = 300
WINDOW = duration(WINDOW_SECONDS)
# Programs of the same name may each have a rank 0 on a MIG instance of the same GPU.
RANK_KEY = "cluster, job_id, rank, UUID, GPU_I_ID"
JOB_KEY = "cluster, namespace, workload, job_id"
_PLACE = "node, gpu, modelName, namespace, workload"
OF_RANK = ("node", "gpu", "namespace", "workload", "job_id", "rank")
OF_JOB = ("namespace", "workload", "job_id")
# An aggregation drops labels that a store or a ruler adds to what is recorded.
_SAME_JOB = f"on ({JOB_KEY})"
IN_PAUSE = f'activity=~"{"|".join(j.PAUSES)}"'


def rank_rate(name: str, *by: str) -> str:
    """Return the growth per second of a counter by rank."""
    return f"sum by ({', '.join((RANK_KEY, *by))}) (rate({name}[{WINDOW}]))"


def placed(values: str, *more: str) -> str:
    """Return values by rank with the labels of its GPU; `more` are labels that a rank has several values of."""
    if more:
        return f"{values}\n* on ({RANK_KEY}) group_left ({_PLACE}) {RANK.record}"
    return f"{RANK.record} * on ({RANK_KEY}) group_left ()\n({values})"


def rank_series(name: str, help: str, expression: str, *by: str) -> Aggregate:
    """Return a series recorded of each rank; `by` are labels that a rank has several values of."""
    return Aggregate(f"rank:{name}", help, expression, (*OF_RANK, *by))


def _job(name: str, help: str, expression: str, *by: str) -> Aggregate:
    return Aggregate(f"job:{name}", help, expression, (*OF_JOB, *by))


def _of_job(function: str, values: str, *by: str) -> str:
    """Return an aggregate over the ranks of each job."""
    text = f"\n{values}\n" if "\n" in values else values
    return f"{function} by ({', '.join((JOB_KEY, *by))}) ({text})"


def _median(values: str, *by: str) -> str:
    return f"quantile by ({', '.join((JOB_KEY, *by))}) (0.5, {values})"


def _mean(histogram: Metric) -> str:
    return f"{rank_rate(f'{histogram}_sum')} / ({rank_rate(f'{histogram}_count')} > 0)"


RANK = rank_series(
    "identity:info",
    "Ranks of training loops with their GPU and its owner",
    f"group by ({RANK_KEY}) ({m.JOB_RANK_INFO})\n* on ({', '.join(DEVICE)}) group_left ({_PLACE}) {DEVICE_INFO}",
)
STEP = rank_series("step:seconds", "Mean duration of a step", placed(_mean(m.JOB_STEP)))
SELF = rank_series("self:seconds", "Mean duration of a step without waiting for other ranks", placed(_mean(m.JOB_SELF)))
_STEPS = f"on ({RANK_KEY}) group_left () ({rank_rate(f'{m.JOB_STEP}_count')} > 0)"
_DATA = f'label_replace({rank_rate(m.JOB_DATA.name)}, "phase", "data", "", "")'
IN_TRAINING = f'{m.JOB_ACTIVITY}{{activity="{TRAINING}"}}'
PHASE = rank_series(
    "phase:seconds",
    "Mean time of a step by phase; `data` is the data loader",
    placed(f"({rank_rate(m.JOB_PHASE.name, 'phase')} or {_DATA}) / {_STEPS}", "phase"),
    "phase",
)
RANKS = _job("ranks:count", "Ranks", _of_job("count", RANK.record))
JOB_STEP = _job("step:seconds", "Duration of a step, median of the ranks", _median(STEP.record))


def _usual(values: Aggregate, *by: str) -> str:
    """Return the value that a rank should have: the median of all ranks, or the lowest of a few."""
    count = _of_job("count", values.record, *by)
    lowest = f"min by ({', '.join((JOB_KEY, *by))}) ({values.record})"
    return f"({_median(values.record, *by)} and {count} >= {j.FEW_RANKS})\nor\n({lowest} and {count} > 1)"


SELF_USUAL = _job(
    "self_usual:seconds", "Self time of a usual rank: the median, or the lowest of two or three ranks", _usual(SELF)
)
SELF_EXCESS = rank_series(
    "self_excess:seconds",
    "By how much the self time of a rank exceeds the usual one",
    f"{SELF.record} - on ({JOB_KEY}) group_left () {SELF_USUAL.record}",
)
SELF_SHARE = rank_series(
    "self_excess:ratio",
    "By how much the self time of a rank exceeds the usual one, as a share of the step",
    f"{SELF_EXCESS.record} / on ({JOB_KEY}) group_left () {JOB_STEP.record}",
)
# With the time of rare long steps, which is part of the step, but of no self time.
_WAITS = (
    f'(sum by ({RANK_KEY}) ({PHASE.record}{{phase=~"{WAITING}|{LONG_STEPS}"}})'
    f' and on ({RANK_KEY}) {PHASE.record}{{phase="{WAITING}"}})'
)
RANK_BUSY = rank_series(
    "self_and_waiting:ratio",
    "Self time, waiting and rare long steps of a rank as a share of the step, if its GPU measures them",
    f"({SELF.record} + on ({RANK_KEY}) group_left () {_WAITS})\n"
    f"/ on ({RANK_KEY}) group_left () ({STEP.record} > 0)\n"
    f'and on ({RANK_KEY}) {m.JOB_RANK_INFO}{{clock="{ON_GPU}"}}',
)
BUSY = _job(
    "self_and_waiting:ratio",
    "Self time, waiting and rare long steps of the ranks as a share of the step, median: clearly above 1 if the job is"
    " launch-bound",
    _median(RANK_BUSY.record),
)
SELF_NEXT = _job(
    "self_next:seconds",
    "The second longest self time of the ranks",
    _of_job("max", f"{SELF.record} unless topk by ({JOB_KEY}) (1, {SELF.record})"),
)
_DEVIATION = f"{j.DEVIATION_OF_MEDIANS} * {_median(f'abs({SELF_EXCESS.record})')}"
_SELF_COUNT = rank_rate(f"{m.JOB_SELF}_count")
SELF_ERROR = rank_series(
    "self_error:seconds",
    "Standard error of the mean self time of a rank: how far it may be off by chance, because steps differ",
    placed(
        f"sqrt(clamp_min({rank_rate(m.JOB_SELF_SQUARES.name)} / ({_SELF_COUNT} > 0) - ({_mean(m.JOB_SELF)}) ^ 2, 0)\n"
        f"/ ({WINDOW_SECONDS} * {_SELF_COUNT} - 1 > 0))"
    ),
)
_OF_FEW, _LEAST = f"{j.SHARE_OF_FEW} * {SELF_USUAL.record}", f"{j.LEAST_EXCESS} * {JOB_STEP.record}"
SELF_SPREAD = _job(
    "self_spread:seconds",
    "How far self times are above the usual one by chance: by their median absolute deviation, or by a share of it if"
    f" there are fewer than {j.FEW_RANKS} ranks",
    f"({j.DEVIATIONS} * ({_DEVIATION} + {_SAME_JOB} {j.LEAST_SHARE} * {SELF_USUAL.record})\n"
    f"and {_of_job('count', SELF.record)} >= {j.FEW_RANKS})\nor {_SAME_JOB}\n{_OF_FEW}",
)
_APART = f"{j.STANDS_OUT:g} * ({SELF_NEXT.record} - {_SAME_JOB} {_of_job('min', SELF.record)})"
_STANDS_OUT = (
    f"{SELF_NEXT.record} - {SELF_USUAL.record} + {_SAME_JOB} ({_APART} >= {_SAME_JOB} {_LEAST} or {_SAME_JOB} {_LEAST})"
)
SELF_MARGIN = _job(
    "self_margin:seconds",
    "How far the self time of a rank may be above the usual one by chance",
    f"({_STANDS_OUT} < {_SAME_JOB} {SELF_SPREAD.record} and {_SAME_JOB} {BUSY.record} <= {j.LAUNCH_BOUND})\n"
    f"or {_SAME_JOB}\n({SELF_SPREAD.record} unless {BUSY.record} > {j.LAUNCH_BOUND})\n"
    f"or {_SAME_JOB}\n({SELF_SPREAD.record} > {_OF_FEW})\nor {_SAME_JOB}\n{_OF_FEW}",
)
PHASE_EXCESS = rank_series(
    "phase_excess:seconds",
    "By how much the time of a phase exceeds the usual one; a rank that waits longer is not slow, nor are rare steps",
    f'{PHASE.record}{{phase!~"{WAITING}|{LONG_STEPS}"}}'
    f" - on ({JOB_KEY}, phase) group_left () (\n{_usual(PHASE, 'phase')}\n)",
    "phase",
)
PAUSED = placed(rank_rate(f"{m.JOB_ACTIVITY}{{{IN_PAUSE}}}"))
PAUSE_SPREAD = _job(
    "pause_spread:ratio",
    "Difference between the ranks in the share of time in evaluations, checkpoints and compilations",
    f"{_of_job('max', PAUSED)}\n-\n{_of_job('min', PAUSED)}",
)
TIME = _job(
    "time:ratio",
    "Share of time by activity",
    _of_job("avg", placed(rank_rate(m.JOB_ACTIVITY.name, "activity"), "activity"), "activity"),
    "activity",
)
PHASES = _job(
    "phase:ratio",
    "Share of a step by phase, mean of the ranks",
    f"{_of_job('avg', PHASE.record, 'phase')}\n/ on ({JOB_KEY}) group_left ()\n{_of_job('avg', STEP.record)}",
    "phase",
)


def _total(metric: Metric) -> str:
    return f"{_of_job('sum', placed(rank_rate(metric.name)))} > 0"


TOKENS = _job("tokens:per_second", "Tokens per second of all ranks", _total(m.JOB_TOKENS))
SAMPLES = _job("samples:per_second", "Samples per second of all ranks", _total(m.JOB_SAMPLES))
_STEPPED = _total(m.JOB_STEPS)
_TRAINS = f"({_of_job('sum', placed(rank_rate(IN_TRAINING)))} > 0)"
SPEED = _job(
    "speed:per_second",
    "Speed of a rank while it trains: tokens per second, or samples, or steps",
    f"(\n{TOKENS.record}\nor {SAMPLES.record}\nor {_SAME_JOB} {_STEPPED}\n)\n/ {_SAME_JOB} {_TRAINS}",
)
SPEED_USUAL = _job(
    "speed_usual:per_second",
    "Median speed of the last day, if it has an hour of values",
    f"quantile_over_time(0.5, {SPEED.record}[1d] offset 30m)\nand count_over_time({SPEED.record}[1d] offset 30m) >= 60",
)
RANK_MFU = placed(f"{rank_rate(m.JOB_FLOPS.name)} / (max by ({RANK_KEY}) ({m.JOB_PEAK}) > 0)")
MFU = _job(
    "mfu:ratio",
    "Share of the peak of the GPUs that the model uses",
    _of_job("avg", RANK_MFU),
)
MFU_HOURS = _job(
    "mfu_hours:ratio",
    "MFU, mean of six hours",
    f"avg_over_time({MFU.record}[6h]) and {MFU.record} and {MFU.record} offset 6h",
)
_AGE = f"(time() - max by ({RANK_KEY}) ({m.JOB_STARTED_AT}))"
RANK_GOODPUT = placed(f"max by ({RANK_KEY}) ({IN_TRAINING}) / ({_AGE} > 0)")
GOODPUT = _job(
    "goodput:ratio",
    "Share of time in training steps since the job started, restarts included",
    _of_job("avg", RANK_GOODPUT),
)


def hour(where: str = "") -> str:
    """Return the share of the last hour by rank and activity.

    It is unknown if the start has changed: an exporter that restarts loses the sums of processes that have ended.
    """
    series, start = f"{m.JOB_ACTIVITY}{where}", m.JOB_STARTED_AT.name
    grown = f"max by ({RANK_KEY}, activity) ({series} - {series} offset 1h >= 0) / 3600"
    same = f"max by ({RANK_KEY}) (abs({start} - {start} offset 1h) < 60)"
    return placed(f"({grown} and on ({RANK_KEY}) {same})", "activity")


def _hour(where: str = "") -> str:
    return _of_job("avg", hour(where), "activity")


LOST = _job(
    "lost:ratio",
    "Share of the last hour that was not spent in training steps, by activity",
    f"{_hour(f'{{{IN_PAUSE}}}')}\nor\n"
    f'label_replace(1 - sum by ({JOB_KEY}) (\n{_hour()}\n), "activity", "other", "", "")',
    "activity",
)
TYPICAL = _job(
    "step_typical:seconds",
    "Duration of a step, median of the last hour",
    f"quantile_over_time(0.5, {JOB_STEP.record}[1h])\nor {_SAME_JOB}\n"
    + "\n/\n".join(
        f"({_of_job('sum', placed(f'max by ({RANK_KEY}) ({m.JOB_STEP}_{part})'))} > 0)" for part in ("sum", "count")
    ),
)
# All ranks have steps of the same length, so the histogram of one is enough. Not a rate, which Prometheus extrapolates:
# it may differ between buckets that have grown alike.
_BUCKET = f'{m.JOB_STEP}_bucket{{rank="0"}}'
BUCKETS = placed(f"max by ({RANK_KEY}, le) ({_BUCKET} - {_BUCKET} offset {WINDOW} >= 0)", "le")
LONGEST = _job(
    "step_longest:seconds",
    "Upper bound of the longest step of the last minutes",
    f"histogram_quantile(1, {_of_job('sum', BUCKETS, 'le')}) > 0",
)
_THRICE, _PAST = f"({j.STALL_SECONDS} + {j.STALL_STEPS} * {TYPICAL.record})", f"max_over_time({LONGEST.record}[6h])"
STALL_LIMIT = _job(
    "stall_limit:seconds",
    f"Time without a step after which a job counts as stalled: {j.STALL_STEPS} steps and {j.STALL_SECONDS} s, or its"
    " longest step of the past",
    f"({_THRICE} >= {_PAST})\nor\n{_PAST}\nor\n{_THRICE}",
)
# Not the rates of all ranks: only jobs that train compare with the price of GPUs.
TOKEN_COST = _job(
    "million_tokens:usd",
    "Price of the GPUs for a million tokens",
    f"{RANKS.record} * {{usdPerGpuHour}} / ({TOKENS.record} * 3600) * 1e6",
)
JOBS = (
    RANK,
    STEP,
    SELF,
    PHASE,
    RANKS,
    JOB_STEP,
    SELF_USUAL,
    SELF_EXCESS,
    SELF_SHARE,
    RANK_BUSY,
    BUSY,
    SELF_NEXT,
    SELF_ERROR,
    SELF_SPREAD,
    SELF_MARGIN,
    PHASE_EXCESS,
    PAUSE_SPREAD,
    TIME,
    PHASES,
    TOKENS,
    SAMPLES,
    SPEED,
    SPEED_USUAL,
    MFU,
    MFU_HOURS,
    GOODPUT,
    LOST,
    TYPICAL,
    LONGEST,
    STALL_LIMIT,
)

RANK_PAUSES = placed(f"max by ({RANK_KEY}) ({m.JOB_NOW[0].name}{{{IN_PAUSE}}} == 1)")
PAUSED_AT = _job(
    "paused:timestamp",
    "When a rank of the job last was in an evaluation, a checkpoint or a compilation",
    f"{_of_job('max', RANK_PAUSES)} * 0 + time()",
)
# Both times are of the clock of the node and of one scrape: neither a wrong clock nor a rare scrape looks like a stall.
_STEP_AGE = f"{m.RENDERED_AT} - on (cluster, job, instance) group_right () {m.JOB_STEPPED_AT}"
RANK_SINCE_STEP = placed(f"min by ({RANK_KEY}) ({_STEP_AGE})")
_SINCE_STEP = _of_job("min", RANK_SINCE_STEP)
_SINCE_PAUSE = f"(time() - max_over_time({PAUSED_AT.record}[1h]))"
STANDSTILL = _job(
    "standstill:seconds",
    "Time since a rank of the job last completed a step, or was not training",
    f"({_SINCE_STEP} <= {_SAME_JOB} {_SINCE_PAUSE})\nor {_SAME_JOB}\n"
    f"({_SINCE_PAUSE} and {_SAME_JOB} {_SINCE_STEP})\nor {_SAME_JOB}\n{_SINCE_STEP}",
)
# What says that a job stalls must be recorded soon.
PROMPT = (PAUSED_AT, STANDSTILL)
