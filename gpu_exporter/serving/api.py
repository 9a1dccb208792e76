"""The answers of `/api/v1`: composed at most once per collection, and of bounded size."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.health import fitness
from gpu_exporter.model.snapshot import Snapshot

OWNERS = frozenset({m.POD_INFO, m.JOB_INFO, m.CONTAINER_INFO})
MOST_GPUS_BYTES = 8 << 20
MOST_EVENTS_BYTES = 1 << 20
# Events come at any time, also while no snapshot is made.
EVENTS_SECONDS = 1.0


class Answer(NamedTuple):
    """The JSON to send, or why there is none."""

    body: bytes
    problem: str = ""


class Composed:
    """An answer that is composed at its first request after a new snapshot, or when it is older than `seconds`."""

    def __init__(self, seconds: float = inf) -> None:
        self._seconds = seconds
        self._snapshot: Snapshot | None = None
        self._answer: Answer | None = None
        self._at = -inf

    def get(self, snapshot: Snapshot | None, compose: Callable[[], Answer]) -> Answer:
        """Return the answer that belongs to this snapshot."""
        now = time.monotonic()
        if self._answer is None or snapshot is not self._snapshot or now - self._at > self._seconds:
            self._snapshot, self._answer, self._at = snapshot, compose(), now
        return self._answer


def gpus(snapshot: Snapshot) -> Answer:
    """Return the identity, state, verdict and owners of each GPU, and how many expected GPUs are missing.

    There are owners only if attribution is configured.
    """
    owners: dict[str, list[dict[str, str]]] = defaultdict(list)
    for series, _ in snapshot.samples:
        if series.metric in OWNERS and series.gpu is not None:
            owners[series.gpu.uuid].append(dict(series.labels))
    entries = [
        {
            **fitness.as_dict(verdict),
            "up": status.up,
            "reason": status.reason,
            "owners": owners[status.gpu.uuid],
            "info": {"pci_bus_id": status.gpu.pci_bus_id, "device": status.gpu.device, **dict(status.gpu.info)},
        }
        for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True)
    ]
    about = {"at": snapshot.at, "source": snapshot.source, "live": snapshot.live, "missing": fitness.missing(snapshot)}
    return shown(lambda: {**about, "gpus": entries})


def shown(content: Callable[[], Mapping[str, Any]]) -> Answer:
    """Return content about GPUs as JSON, or why it is too large."""
    body = json.dumps(content()).encode()
    if len(body) > MOST_GPUS_BYTES:
        size, most = len(body) >> 20, MOST_GPUS_BYTES >> 20
        return Answer(b"", f"the answer would have {size} MiB, more than {most} MiB; the GPUs have too many owners")
    return Answer(body)


def events(recent: Iterable[Mapping[str, Any]]) -> Answer:
    """Return the events, newest first; the oldest ones are left out if the answer would be too large."""
    entries, size = [], 0
    for event in recent:
        entry = json.dumps(event)
        size += len(entry) + 2
        if size > MOST_EVENTS_BYTES:
            break
        entries.append(entry)
    return Answer(f'{{"events": [{", ".join(entries)}]}}'.encode())
