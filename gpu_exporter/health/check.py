"""The report of `gpu-exporter check`, for use before a job: lines, JSON and an exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.health import judge
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Action, Health, Problem, Unknown, Verdict

# A degraded GPU is unfit for a new job, which may run for days.
# 1 is the exit code of every command that failed: a bug or a missing driver is not a verdict on a GPU.
EXIT_CODES = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 3, Health.UNHEALTHY: 3}


def indices(text: str) -> frozenset[int]:
    """Parse `0,1,5`. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not a list of GPUs; use indices such as 0,1")
    return frozenset(map(int, parts))


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts that were requested, and the number of GPUs that are missing."""

    verdicts: tuple[Verdict, ...]
    missing: int = 0

    @property
    def health(self) -> Health:
        if self.missing:
            return Health.UNHEALTHY
        return max((verdict.health for verdict in self.verdicts), default=Health.UNKNOWN)


def report(snapshot: Snapshot, only: frozenset[int] | None = None) -> Report:
    """Return the report on all GPUs, or on the indices in `only`.

    With `only`, an index that does not exist is reported as unhealthy, other GPUs are then not counted as missing.
    """
    verdicts = snapshot.verdicts
    # An empty snapshot means that the driver library hangs, which is not a verdict.
    if only is None or not snapshot.gpus:
        return Report(verdicts, judge.missing(snapshot) if snapshot.gpus else 0)
    absent = only - {verdict.gpu.index for verdict in verdicts}
    nowhere = Problem(m.UP, 0, "this node has no such GPU", Action.NODE_REBOOT, "gone")
    return Report(
        (
            *(verdict for verdict in verdicts if verdict.gpu.index in only),
            *(Verdict(Gpu(index), (nowhere,)) for index in sorted(absent)),
        )
    )


def lines(result: Report) -> Iterable[str]:
    """Yield a line for each GPU with a problem, for each unknown, and a summary."""
    if not result.verdicts:
        yield "unknown: the NVIDIA driver library does not answer; run `gpu-exporter doctor`"
        return
    for verdict in result.verdicts:
        if verdict.problems:
            words = "; ".join(problem.words for problem in verdict.problems)
            cure = "" if verdict.action is Action.NONE else f" -> {verdict.action.value}"
            yield f"GPU {verdict.gpu.index}: {verdict.health.value}: {words}{cure}"
    if result.missing:
        yield f"missing: {result.missing} of the expected GPUs -> {Action.NODE_REBOOT.value}"
    unknown: dict[str, list[int]] = {}
    for verdict in result.verdicts:
        lead = f"health {Health.UNKNOWN.value}: " if verdict.health is Health.UNKNOWN else ""
        for gap in verdict.unknown:
            line = f"{'' if gap.harmless else lead}no value for {gap.what}: {_why(gap)}"
            unknown.setdefault(line, []).append(verdict.gpu.index)
    for what, gpus in unknown.items():
        who = "every GPU" if len(gpus) == len(result.verdicts) > 1 else f"GPU {', '.join(map(str, gpus))}"
        yield f"{who}: {what}"
    counts = Counter(verdict.health.value for verdict in result.verdicts) + Counter(missing=result.missing)
    yield "GPUs: " + ", ".join(f"{number} {what}" for what, number in counts.items())


def _why(gap: Unknown) -> str:
    return "not in the recording" if gap.why == "not_recorded" else gap.why.replace("_", " ")


def as_dict(result: Report) -> dict[str, Any]:
    """Return a report for JSON."""
    return {
        "ok": result.health is Health.HEALTHY,
        "health": result.health.value,
        "missing": result.missing,
        "gpus": [judge.as_dict(verdict) for verdict in result.verdicts],
    }
