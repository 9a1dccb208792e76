"""The report of `gpu-exporter check`, for use before a job: lines, JSON and an exit code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import silent
from gpu_exporter.health import fitness
from gpu_exporter.model.gpu import Gpu, by_device_file
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.model.verdict import Action, Health, Problem, Unknown, Verdict

# A degraded GPU is unfit for a new job, which may run for days.
# 1 is the exit code of every command that failed: a missing driver is not a verdict on a GPU.
IN_USE = 4
EXIT_CODES = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 3, Health.UNHEALTHY: 3}


_NAME = re.compile(r"\d{1,4}|nvidia\d{1,4}|GPU-[0-9a-fA-F-]{36}", re.ASCII)


def names(text: str) -> frozenset[int | str]:
    """Parse indices, device files and UUIDs: `0,1`, `nvidia0,nvidia1`, `GPU-…`. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f"{text!r} is not a list of GPUs; use indices such as 0,1, device files as nvidia0, or UUIDs")
    return frozenset(int(part) if part.isdecimal() else part for part in parts)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The verdicts that were requested, the number of GPUs that are missing, and their addresses as far as known.

    `in_use` are the GPUs, by index, of which an active check has no comparable result, with the programs that use them.
    Without any verdict, `silent` says why.
    """

    verdicts: tuple[Verdict, ...]
    missing: int = 0
    missing_gpus: tuple[str, ...] = ()
    in_use: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    silent: str = ""

    @property
    def health(self) -> Health:
        if self.missing:
            return Health.UNHEALTHY
        return max((verdict.health for verdict in self.verdicts), default=Health.UNKNOWN)

    @property
    def exit_code(self) -> int:
        """The exit code: that of the health, but IN_USE if no GPU is known to be unfit and one is in use."""
        return IN_USE if self.in_use and self.health < Health.DEGRADED else EXIT_CODES[self.health]


def report(snapshot: Snapshot, only: frozenset[int | str] | None = None) -> CheckReport:
    """Return the report on all GPUs, or on those that `only` names by index, device file or UUID.

    With `only`, an index that does not exist is reported as unhealthy, and no other GPU is counted as missing. A device
    file or UUID that does not exist may be that of a lost GPU, whose identity cannot be read: then all lost GPUs are
    reported; otherwise one is missing.
    """
    verdicts = snapshot.verdicts
    # An empty snapshot means that the driver's library or the host engine hangs, which is not a verdict.
    if not snapshot.gpus:
        return CheckReport((), silent=silent(snapshot.source, "stalled"))
    if only is None:
        return CheckReport(verdicts, fitness.missing(snapshot), fitness.missing_gpus(snapshot))
    gpus = [verdict.gpu for verdict in verdicts]
    known: dict[int | str, Gpu] = {gpu.index: gpu for gpu in gpus}
    known.update(by_device_file(gpus))
    known.update((gpu.uuid, gpu) for gpu in gpus)
    chosen = {known[name].index for name in only if name in known}
    absent = {name for name in only - set(known) if isinstance(name, int)}
    lost = {gpu.index for gpu in gpus if not gpu.uuid} - chosen
    missing = len(only - set(known) - absent)
    if missing:
        chosen |= lost
    nowhere = Problem(m.UP, 0, "this node has no such GPU", Action.NODE_REBOOT, "gone")
    return CheckReport(
        (
            *(verdict for verdict in verdicts if verdict.gpu.index in chosen),
            *(Verdict(Gpu(index), (nowhere,)) for index in sorted(absent)),
        ),
        max(0, missing - len(lost)),
    )


def lines(result: CheckReport) -> Iterable[str]:
    """Yield a line for each GPU with a problem, for each unknown, and a summary."""
    if not result.verdicts and not result.missing:
        yield f"unknown: {result.silent}"
        return
    for verdict in result.verdicts:
        if verdict.problems:
            cure = "" if verdict.action is Action.NONE else f" -> {verdict.action.value}"
            yield f"GPU {verdict.gpu.index}: {verdict.health.value}: {verdict.words}{cure}"
    for index, programs in result.in_use.items():
        yield from (f"GPU {index}: in use by {program}: no comparable result -> end it" for program in programs)
    if result.missing:
        where = f" ({'; '.join(result.missing_gpus)})" if result.missing_gpus else ""
        yield f"missing: {result.missing} of the expected GPUs{where} -> {Action.NODE_REBOOT.value}"
    yield from _unknown(result.verdicts)
    counts = Counter(verdict.health.value for verdict in result.verdicts) + Counter(missing=result.missing)
    yield "GPUs: " + ", ".join(f"{number} {what}" for what, number in counts.items())


def _unknown(verdicts: Sequence[Verdict]) -> Iterable[str]:
    """Yield a line for the unknown values that the same GPUs lack for the same reason."""
    gpus: dict[tuple[str, str, str], list[int]] = {}
    for verdict in verdicts:
        lead = f"health {Health.UNKNOWN.value}: " if verdict.health is Health.UNKNOWN else ""
        for gap in verdict.unknown:
            gpus.setdefault(("" if gap.harmless else lead, _why(gap), gap.what), []).append(verdict.gpu.index)
    lines: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for (lead, why, what), indices_of_gap in gpus.items():
        lines.setdefault((lead, why, tuple(indices_of_gap)), []).append(what)
    for (lead, why, same), whats in lines.items():
        who = "every GPU" if len(same) == len(verdicts) > 1 else f"GPU {', '.join(map(str, same))}"
        yield f"{who}: {lead}no value for {_listed(whats)}: {why}"


def _listed(whats: Sequence[str]) -> str:
    """Return what has no value; the metrics of the same thing together: row remapping (A, B)."""
    metrics: dict[str, list[str]] = {}
    for what in whats:
        thing, _, metric = what.removesuffix(")").partition(" (")
        metrics.setdefault(thing, []).extend([metric] if metric else [])
    return ", ".join(thing + (f" ({', '.join(names)})" if names else "") for thing, names in metrics.items())


def _why(gap: Unknown) -> str:
    if gap.why == "not_recorded":
        return "not in the recording"
    return gap.why.replace("_", " ") if gap.why.islower() else gap.why  # names such as CUDA_ERROR_NO_DEVICE stay


def as_dict(result: CheckReport) -> dict[str, Any]:
    """Return a report for JSON."""
    return {
        "ok": result.health is Health.HEALTHY,
        "health": result.health.value,
        "missing": result.missing,
        "missing_gpus": result.missing_gpus,
        "in_use": [{"gpu": index, "by": programs} for index, programs in result.in_use.items()],
        "gpus": [fitness.as_dict(verdict) for verdict in result.verdicts],
    }
