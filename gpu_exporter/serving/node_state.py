"""The answer of `/api/v1/node`: what a controller needs in order to decide about a node. See docs/api.md."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpu_exporter.active_checks.history import Run
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.health import fitness
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Verdict
from gpu_exporter.serving.api import Answer, shown
from gpu_exporter.version import __version__

# The version of the answer. A change that is not an addition gets a new number.
VERSION = 1
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
) -> Answer:
    """Return the state of a node as JSON. `boot` is the id of its boot, `problem` why it is not ready, and `last_check`
    returns the last active check of a GPU by its UUID."""
    values = {series.metric: value for series, value in snapshot.samples if series.gpu is None and not series.labels}
    xids: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        of_gpu = xids[event["uuid"]]
        if len(of_gpu) < MOST_XIDS:
            of_gpu.append({key: event[key] for key in ("at", "xid", "name", "kind", "action")})
    return shown(
        lambda: {
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
    )


def _gpu(
    status: GpuStatus, verdict: Verdict, since: Since, xids: list[dict[str, Any]], last_check: Run | None
) -> dict[str, Any]:
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


def _active_check(run: Run | None) -> dict[str, Any] | None:
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
