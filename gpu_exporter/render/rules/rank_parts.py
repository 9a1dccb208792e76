"""What a shard records of each rank of a training loop, so that the level above needs none of its series."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.job_message import TRAINING
from gpu_exporter.render.rules import training_jobs as jobs
from gpu_exporter.render.rules.aggregates import Aggregate


def _rate(name: str, help: str, series: str) -> Aggregate:
    return jobs.of_rank(name, help, jobs.placed(jobs.rank_rate(series)))


def _step(part: str, unit: str) -> Aggregate:
    series = f"max by ({jobs.RANK_KEY}) ({m.JOB_STEP}_{part})"
    return jobs.of_rank(f"step_{part}:{unit}", f"{part} of all steps", jobs.placed(series))


def _sum(part: Aggregate, selector: str) -> str:
    return f"sum without (activity) ({part.record}{{{selector}}})"


ACTIVITY = jobs.of_rank(
    "activity:ratio",
    "Share of time by activity",
    jobs.placed(jobs.rank_rate(m.JOB_ACTIVITY.name, "activity"), "activity"),
    "activity",
)
HOUR = jobs.of_rank("hour:ratio", "Share of the last hour by activity", jobs.hour(), "activity")
PARTS = (
    ACTIVITY,
    HOUR,
    _rate("tokens:per_second", "Tokens per second", m.JOB_TOKENS.name),
    _rate("samples:per_second", "Samples per second", m.JOB_SAMPLES.name),
    _rate("steps:per_second", "Steps per second", m.JOB_STEPS.name),
    jobs.of_rank("mfu:ratio", "Share of the peak of the GPU that the model uses", jobs.RANK_MFU),
    jobs.of_rank("goodput:ratio", "Share of time in training steps since the job started", jobs.RANK_GOODPUT),
    _step("sum", "seconds"),
    _step("count", "steps"),
    jobs.of_rank(
        "step_bucket:steps", "Steps of the last minutes, up to each bucket of the histogram", jobs.BUCKETS, "le"
    ),
)
# For the rules that are evaluated most often.
PROMPT_PARTS = (
    jobs.of_rank("pauses:bool", "Ranks in an evaluation, a checkpoint or a compilation", jobs.RANK_PAUSES),
    jobs.of_rank("since_step:seconds", "Time since the last step", jobs.RANK_SINCE_STEP),
)
# What the level above reads in place of an expression on the series of training loops.
READS: Mapping[str, str] = {
    **{part.expression: part.record for part in (*PARTS, *PROMPT_PARTS)},
    jobs.PAUSED: _sum(ACTIVITY, jobs.IN_PAUSE),
    jobs.placed(jobs.rank_rate(jobs.IN_TRAINING)): _sum(ACTIVITY, f'activity="{TRAINING}"'),
    jobs.hour(f"{{{jobs.IN_PAUSE}}}"): f"{HOUR.record}{{{jobs.IN_PAUSE}}}",
}
