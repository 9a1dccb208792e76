"""The answers of `/api/v1`: composed at most once per collection, and of bounded size.

That of `/api/v1/node` is what a controller needs in order to decide about a node. See docs/api.md.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, NamedTuple

from gpu_exporter.active_checks.history import Run
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.health import fitness
from gpu_exporter.model.node_answer import VERSION, ActiveCheckAnswer, GpuAnswer, NodeAnswer, XidAnswer
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.reports.masking import Names
from gpu_exporter.version import __version__

MOST_GPUS_BYTES = 8 << 20
MOST_EVENTS_BYTES = 1 << 20
# Events come at any time, also while no snapshot is made.
EVENTS_SECONDS = 1.0


class ApiAnswer(NamedTuple):
    """The JSON to send, or why there is none."""

    body: bytes
    problem: str = ""


class Composed:
    """An answer that is composed at its first request after a new snapshot, or when it is older than `seconds`."""

    def __init__(self, seconds: float = inf) -> None:
        self._seconds = seconds
        self._snapshot: Snapshot | None = None
        self._answer: ApiAnswer | None = None
        self._at = -inf

    def get(self, snapshot: Snapshot | None, compose: Callable[[], ApiAnswer]) -> ApiAnswer:
        """Return the answer that belongs to this snapshot."""
        now = time.monotonic()
        if self._answer is None or snapshot is not self._snapshot or now - self._at > self._seconds:
            self._snapshot, self._answer, self._at = snapshot, compose(), now
        return self._answer


def gpus(snapshot: Snapshot, names: Names) -> ApiAnswer:
    """Return the identity, state, verdict and owners of each GPU, and how many expected GPUs are missing.

    There are owners only if attribution is configured; `names` replaces theirs.
    """
    owners: dict[str, list[dict[str, str]]] = defaultdict(list)
    for series, _ in snapshot.samples:
        if series.metric in m.OWNERS and series.gpu is not None:
            owners[series.gpu.uuid].append(names.labels(dict(series.labels)))
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


def shown(content: Callable[[], Mapping[str, Any]]) -> ApiAnswer:
    """Return content about GPUs as JSON, or why it is too large."""
    body = json.dumps(content()).encode()
    if len(body) > MOST_GPUS_BYTES:
        size, most = len(body) >> 20, MOST_GPUS_BYTES >> 20
        return ApiAnswer(b"", f"the answer would have {size} MiB, more than {most} MiB; the GPUs have too many owners")
    return ApiAnswer(body)


def events(recent: Iterable[Mapping[str, Any]], names: Names) -> ApiAnswer:
    """Return the events, newest first; the oldest ones are left out if the answer would be too large.

    `names` replaces those of processes, also in the kernel's messages.
    """
    entries, size = [], 0
    for event in recent:
        entry = json.dumps(names.event(event))
        size += len(entry) + 2
        if size > MOST_EVENTS_BYTES:
            break
        entries.append(entry)
    return ApiAnswer(f'{{"events": [{", ".join(entries)}]}}'.encode())


# The last XIDs of a GPU that the answer has.
MOST_XIDS = 20
MISSING = ("", "missing")


class Since:
    """Since when each GPU has its verdict, and each of its problems. The thread that makes snapshots calls `take`.

    Times are unix seconds of the first snapshot that shows the state, so they begin anew when the exporter starts.
    """

    def __init__(self) -> None:
        self.times: Mapping[tuple[str, str], float] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot. The mapping is replaced, never changed: other threads read it."""
        before, keys = self.times, [key for verdict in snapshot.verdicts for key in _keys(verdict)]
        if fitness.missing(snapshot):
            keys.append(MISSING)
        self.times = {key: before.get(key, snapshot.at) for key in keys}

    def verdict(self, verdict: Verdict) -> float | None:
        """Return since when a GPU has this verdict; None if no snapshot shows it yet."""
        return self.times.get((_name(verdict), f"={verdict.health.value}"))

    def problem(self, verdict: Verdict, reason: str) -> float | None:
        """Return since when a GPU has this problem; None if no snapshot shows it yet."""
        return self.times.get((_name(verdict), reason))


def _name(verdict: Verdict) -> str:
    return verdict.gpu.uuid or f"gpu{verdict.gpu.index}"


def _keys(verdict: Verdict) -> Iterable[tuple[str, str]]:
    name = _name(verdict)
    yield name, f"={verdict.health.value}"
    for problem in verdict.problems:
        yield name, problem.reason


def node(
    name: str,
    boot: str,
    snapshot: Snapshot,
    since: Since,
    events: Iterable[Mapping[str, Any]],
    problem: str,
    last_check: Callable[[str], Run | None],
) -> ApiAnswer:
    """Return the state of a node as JSON. `boot` is the id of its boot, `problem` why it is not ready, and `last_check`
    returns the last active check of a GPU by its UUID."""
    values = {series.metric: value for series, value in snapshot.samples if series.gpu is None and not series.labels}
    xids: dict[str, list[XidAnswer]] = defaultdict(list)
    for event in events:
        of_gpu = xids[event["uuid"]]
        if len(of_gpu) < MOST_XIDS:
            of_gpu.append(
                {
                    "at": event["at"],
                    "xid": event["xid"],
                    "name": event["name"],
                    "kind": event["kind"],
                    "action": event["action"],
                }
            )
    answer: NodeAnswer = {
        "apiVersion": VERSION,
        "version": __version__,
        "node": name,
        "boot_id": boot,
        "at": snapshot.at,
        "age": round(max(0.0, time.time() - snapshot.at), 3),
        "source": snapshot.source,
        "live": snapshot.live,
        "ready": not problem,
        "problem": problem,
        "expected": int(values.get(m.EXPECTED, 0)),
        "missing": fitness.missing(snapshot),
        "missing_since": since.times.get(MISSING),
        "released_until": values.get(m.RELEASED_UNTIL),
        "gpus": [
            _gpu(status, verdict, since, xids[verdict.gpu.uuid], last_check(verdict.gpu.uuid))
            for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True)
        ],
    }
    return shown(lambda: answer)


def _gpu(status: GpuStatus, verdict: Verdict, since: Since, xids: list[XidAnswer], last_check: Run | None) -> GpuAnswer:
    entry = fitness.as_dict(verdict)
    for problem in entry["problems"]:
        problem["since"] = since.problem(verdict, problem["reason"])
    return {
        **entry,
        "up": status.up,
        "reason": status.reason,
        "since": since.verdict(verdict),
        "serial": dict(status.gpu.info).get("serial", ""),
        "pci_bus_id": status.gpu.pci_bus_id,
        "xids": xids,
        "active_check": _active_check(last_check),
    }


def _active_check(run: Run | None) -> ActiveCheckAnswer | None:
    if run is None:
        return None
    return {
        "at": run.at,
        "level": run.level,
        "health": run.health.value,
        "boot_id": run.boot_id,
        "rates": run.values,
        "problems": [
            {"reason": found.reason, "health": found.health.value, "action": found.action.value, "what": found.what}
            for found in run.problems
        ],
    }
