"""Signals of the training loop on a GPU: what it says about itself. Only gpu-exporter has them, with `--job-socket`.

The rules that compare the ranks of a job are in `alerting/training_jobs.py`: they need all nodes of the job.
"""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import Read, Signal
from gpu_exporter.model.job_message import ACTIVITIES, TRAINING, WAITING

PAUSES = tuple(activity for activity in ACTIVITIES if activity != TRAINING)
# With fewer ranks, a median says little: the lowest is the usual one, and the others differ by chance by a share of it,
# unless one stands out.
FEW_RANKS, SHARE_OF_FEW = 4, 0.25
# In a launch-bound job, self time is what the CPU needs, while the GPU waits for other ranks: together, they are longer
# than a step. The last rank changes within seconds, so ranks differ by chance by the same share.
LAUNCH_BOUND = 1.2
# Excess of a straggler, as a share of the step. Where the GPU measures self times, it is that far above the next rank,
# and so many times as far as the others are from each other.
LEAST_EXCESS, STANDS_OUT = 0.05, 2.0
# Steps differ, as where sequences have different lengths. A mean of a few of them is above the usual one by chance by
# several standard errors, in some of the many windows of a job.
STANDARD_ERRORS = 6
# 1.4826 median absolute deviations are a standard deviation. The share of the median is for ranks that hardly differ.
DEVIATIONS, DEVIATION_OF_MEDIANS, LEAST_SHARE = 3.5, 1.4826, 0.01
# Time without a step after which a job stalls. Scraped every 15 s, that is noticed within a minute and three steps.
STALL_SECONDS, STALL_STEPS = 20, 3

PAUSE = Signal(
    "job_pause",
    "ratio",
    "Share of time in which the training loop evaluates, saves a checkpoint or compiles, whichever takes most",
    (Read(m.JOB_ACTIVITY.name, rate=True, any_of=("activity", PAUSES), most=1.0),),
    per_instance=True,
    plain="training loop in an evaluation, a checkpoint or a compilation {} of the time",
)
DATA = Signal(
    "job_data",
    "ratio",
    "Share of time in which the training loop waits for its data loader",
    (Read(m.JOB_DATA.name, rate=True, most=1.0),),
    per_instance=True,
    plain="training loop in its data loader {} of the time",
)
WAITS = Signal(
    "job_waiting",
    "ratio",
    "Share of time in which the training loop waits for other ranks",
    (Read(m.JOB_PHASE.name, rate=True, any_of=("phase", (WAITING,)), most=1.0),),
    per_instance=True,
    plain="training loop waits for other ranks {} of the time",
)
# Computed of the ranks on one node by `diagnosis/training_loops.py`, as `alerting/training_jobs.py` records them of all
# nodes. No rule records these.
SELF_EXCESS = Signal(
    "job_self_excess",
    "ratio",
    "By how much the self time of a rank exceeds the usual one, as a share of the step",
    (),
    plain="the other ranks wait for it {} of each step",
)
SELF_MARGIN = Signal(
    "job_self_margin",
    "ratio",
    "How far the self time of a rank may be above the usual one by chance, as a share of the step",
    (),
    plain="ranks may differ by {} of a step",
)
PAUSE_WAIT = Signal(
    "job_pause_wait",
    "ratio",
    "How much of a step a rank may wait because other ranks are in evaluations, checkpoints or compilations",
    (),
    plain="pauses of other ranks explain {} of a step",
)
STANDSTILL = Signal(
    "job_standstill",
    "seconds",
    "Time since a rank of the job last completed a step, or was not training",
    (),
    plain="no rank has completed a step for {}",
)
STALL_LIMIT = Signal(
    "job_stall_limit",
    "seconds",
    "Time without a step after which a job counts as stalled",
    (),
    plain="a stall after {} without a step",
)
SPEED = Signal(
    "job_speed_15m",
    "ratio",
    "Speed of the last 15 minutes, as a share of the usual one",
    (),
    plain="trains at {} of its usual speed over 15 minutes",
)
SPEED_NOW = Signal(
    "job_speed_5m",
    "ratio",
    "Speed of the last five minutes, as a share of the usual one",
    (),
    plain="at {} of it over the last five",
)
LOST_PAUSES = Signal(
    "job_lost_pauses",
    "ratio",
    "Share of the last six hours in one of evaluations, checkpoints and compilations, whichever took most",
    (),
    plain="{} of the last six hours in evaluations, checkpoints or compilations",
)
LOST_OTHER = Signal(
    "job_lost_other",
    "ratio",
    "Share of the last hour in which the loop was not running, or in a step that did not end",
    (),
    plain="{} of the last hour without a step that ended",
)
ENDED_AGE = Signal(
    "job_rank_ended_age",
    "seconds",
    "Time since the last message of a rank that has ended while others of its job train",
    (),
    plain="last message of its training loop {} ago",
)
RANK = Signal("job_rank", "", "Number of a rank", (), plain="rank {} of its training job")
RESTARTS = Signal("job_restarts", "", "Restarts of a rank", (), plain="restarts of this rank: {}")
# In the order in which they are recorded.
SIGNALS: tuple[Signal, ...] = (PAUSE, DATA, WAITS)
