"""Hourly sums by namespace: what reports on a year read, and the only series that have to be kept for so long."""

from __future__ import annotations

from gpu_exporter.alerting import aggregates
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.catalogue.time_shares import LABEL

EVERY = "1h"
# What is added up is recorded every minute. A window of a whole hour could have one sample of the next hour, too.
_WINDOW, _SAMPLES = "59m59s", 60


def _sum(name: str, help: str, of: Aggregate, unseen: Aggregate, *by: str) -> Aggregate:
    """Return what is recorded each minute, and what was added when GPUs were back that had been gone, in an hour."""
    labels = ", ".join(("cluster", "namespace", *by))
    seen = f"sum by ({labels}) (sum_over_time({of.record}[{_WINDOW}])) / {_SAMPLES}"
    added = f"sum by ({labels}) (sum_over_time({unseen.record}[{_WINDOW}]))"
    return Aggregate(f"namespace:{name}", help, f"{seen} + {added}\nor\n{seen}", ("namespace", *by))


GPU_HOURS = _sum("gpu_time:hours", "GPU-hours used in the last hour", aggregates.GPUS, aggregates.UNSEEN_GPUS)
TIME_HOURS = _sum(
    "time:hours", "GPU-hours of the last hour by where they went", aggregates.TIME, aggregates.UNSEEN_TIME, LABEL
)
COST = _sum("cost:usd", "Price of the GPUs in the last hour", aggregates.GPU_COST, aggregates.UNSEEN_COST)
WASTED = _sum(
    "wasted_cost:usd", "Price of the wasted GPU time of the last hour", aggregates.WASTED_COST, aggregates.UNSEEN_WASTED
)
ENERGY = _sum("energy:kwh", "Energy of the GPUs in the last hour", aggregates.ENERGY, aggregates.UNSEEN_ENERGY)
REPORTS = (GPU_HOURS, TIME_HOURS, COST, WASTED, ENERGY)
