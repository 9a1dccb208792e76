"""Signals of the training loop on a GPU: what it says about itself. Only gpu-exporter has them, with `--job-socket`.

The rules that compare the ranks of a job are in `alerting/training_jobs.py`: they need all nodes of the job.
"""

from __future__ import annotations

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import Read, Signal
from gpu_exporter.model.job_message import ACTIVITIES, TRAINING

PAUSES = tuple(activity for activity in ACTIVITIES if activity != TRAINING)

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
# In the order in which they are recorded.
SIGNALS: tuple[Signal, ...] = (PAUSE, DATA)
