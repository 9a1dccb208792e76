"""The state of a timer as the message of `gpu_exporter.model.job_message`. Pure."""

from __future__ import annotations

from gpu_exporter.model.job_message import TRAINING, VERSION
from gpu_exporter.training.totals import Histogram, Totals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpu_exporter.training.launcher import Place


class State:
    """The moment of a message: times in seconds, and what the rank does since `activity_seconds`."""

    __slots__ = ("activity", "activity_seconds", "elapsed", "since_step")

    def __init__(self, elapsed: float, since_step: float, activity: str, activity_seconds: float) -> None:
        self.elapsed, self.since_step = elapsed, since_step
        self.activity, self.activity_seconds = activity, activity_seconds


def message(
    place: Place, attempt: str, state: State, totals: Totals, *, uuid: str = "", dtype: str = ""
) -> dict[str, Any]:
    """Return the message. An activity that is not over counts already; training counts when a step ends."""
    activities = dict(totals.activities)
    if state.activity != TRAINING:
        activities[state.activity] += state.activity_seconds
    optional = {
        "uuid": uuid,
        "pod_uid": place.pod_uid,
        "dtype": dtype,
        "self": _histogram(totals.own) if totals.own.count else None,
        **totals.amounts,
    }
    return {
        "version": VERSION,
        "job_id": place.job_id,
        "attempt": attempt,
        "rank": place.rank,
        "world_size": place.world_size,
        "activity": state.activity,
        "elapsed": state.elapsed,
        "since_step": state.since_step,
        "steps": totals.steps,
        "step": _histogram(totals.step),
        "data_seconds": totals.data,
        "activity_seconds": activities,
        "phase_seconds": dict(totals.phases),
        **{key: value for key, value in optional.items() if value},
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"sum": histogram.sum, "counts": list(histogram.counts)}
