"""A message as Prometheus text, with the names that the exporter gives these metrics. Pure."""

from __future__ import annotations

import time
from itertools import accumulate

from gpu_exporter.model.job_message import ACTIVITIES, HISTOGRAM, KEYS, PARTS, STEP_BUCKETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

NOW = "gpu_job_activity"
START, LAST_STEP = "gpu_job_start_timestamp_seconds", "gpu_job_last_step_timestamp_seconds"
RANK = "gpu_job_rank_info"
FACTS = ("world_size", "dtype", "clock", "pod_uid")


def render(message: Mapping[str, Any], now: float | None = None) -> str:
    """Return a message as Prometheus text. `now` is the Unix time at which it was made."""
    at = time.time() if now is None else now
    labels = {"job_id": message["job_id"], "rank": str(message["rank"])}
    if "uuid" in message:
        labels["UUID"] = message["uuid"]
    return "\n".join([*_lines(message, labels, at), ""])


def _lines(message: Mapping[str, Any], labels: Mapping[str, str], now: float) -> Iterator[str]:
    for name, key in KEYS.items():
        value = message.get(name)
        if not key.metric or value is None or value == {}:
            continue
        yield from _head(key.metric, key.help, "histogram" if key.kind == HISTOGRAM else "counter")
        if key.kind == HISTOGRAM:
            yield from _buckets(key.metric, value, labels)
        elif key.kind == PARTS:
            for part, seconds in value.items():
                yield f"{key.metric}{_braces({**labels, key.label: part})} {seconds!r}"
        else:
            yield f"{key.metric}{_braces(labels)} {value!r}"
    yield from _head(NOW, "What a rank does now.", "gauge")
    for activity in ACTIVITIES:
        yield f"{NOW}{_braces({**labels, 'activity': activity})} {int(activity == message['activity'])}"
    yield from _head(RANK, "World size, data type, clock and pod of a rank.", "gauge")
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
