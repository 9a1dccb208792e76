"""A message as Prometheus text, with the names that the exporter gives these metrics. Pure."""

from __future__ import annotations

import time
from itertools import accumulate

from gpu_exporter.model.job_message import ACTIVITIES, STEP_BUCKETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# Metric, key of the message, help.
COUNTERS = (
    ("gpu_job_steps_total", "steps", "Completed training steps."),
    ("gpu_job_data_seconds_total", "data_seconds", "Time in the data loader."),
    ("gpu_job_tokens_total", "tokens", "Tokens processed."),
    ("gpu_job_samples_total", "samples", "Samples processed."),
    ("gpu_job_model_flops_total", "flops", "Floating-point operations of the model, without recomputation."),
)
HISTOGRAMS = (
    ("gpu_job_step_seconds", "step", "Step time."),
    ("gpu_job_self_seconds", "self", "Step time without waiting for other ranks."),
)
BY_NAME = (
    ("gpu_job_phase_seconds_total", "phase_seconds", "phase", "Time by phase of a step."),
    ("gpu_job_activity_seconds_total", "activity_seconds", "activity", "Time by activity."),
)
NOW = "gpu_job_activity"
START, LAST_STEP = "gpu_job_start_timestamp_seconds", "gpu_job_last_step_timestamp_seconds"
RANK = "gpu_job_rank_info"
FACTS = ("world_size", "dtype", "pod_uid")


def render(message: Mapping[str, Any], now: float | None = None) -> str:
    """Return a message as Prometheus text. `now` is the Unix time at which it was made."""
    at = time.time() if now is None else now
    labels = {"job_id": message["job_id"], "rank": str(message["rank"])}
    if "uuid" in message:
        labels["UUID"] = message["uuid"]
    return "\n".join([*_lines(message, labels, at), ""])


def _lines(message: Mapping[str, Any], labels: Mapping[str, str], now: float) -> Iterator[str]:
    for name, key, about in COUNTERS:
        if key in message:
            yield from _head(name, about, "counter")
            yield f"{name}{_braces(labels)} {message[key]!r}"
    for name, key, label, about in BY_NAME:
        if message[key]:
            yield from _head(name, about, "counter")
        for value, seconds in message[key].items():
            yield f"{name}{_braces({**labels, label: value})} {seconds!r}"
    for name, key, about in HISTOGRAMS:
        if key in message:
            yield from _head(name, about, "histogram")
            yield from _buckets(name, message[key], labels)
    yield from _head(NOW, "What a rank does now.", "gauge")
    for activity in ACTIVITIES:
        yield f"{NOW}{_braces({**labels, 'activity': activity})} {int(activity == message['activity'])}"
    yield from _head(RANK, "World size, data type and pod of a rank.", "gauge")
    yield f"{RANK}{_braces({**labels, **{fact: str(message[fact]) for fact in FACTS if fact in message}})} 1"
    yield from _head(START, "When the process of the rank started.", "gauge")
    yield f"{START}{_braces(labels)} {now - message['elapsed']!r}"
    if message["steps"]:
        yield from _head(LAST_STEP, "When the last step ended.", "gauge")
        yield f"{LAST_STEP}{_braces(labels)} {now - message['since_step']!r}"


def _buckets(name: str, histogram: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[str]:
    bounds = (*(repr(bound) for bound in STEP_BUCKETS), "+Inf")
    counts = list(accumulate(histogram["counts"]))
    for bound, count in zip(bounds, counts, strict=True):
        yield f"{name}_bucket{_braces({**labels, 'le': bound})} {count}"
    yield f"{name}_sum{_braces(labels)} {histogram['sum']!r}"
    yield f"{name}_count{_braces(labels)} {counts[-1]}"


def _head(name: str, about: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"


def _braces(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
