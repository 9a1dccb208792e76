"""One look at a source -> findings in plain words: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from gpu_exporter import metrics as m
from gpu_exporter.metrics import BY_KEY, selected
from gpu_exporter.model import (
    NOT_YOURS,
    EntityKind,
    Gpm,
    Gpu,
    GpuStatus,
    LinkSum,
    Metric,
    MetricSet,
    Snapshot,
    Source,
    SourceLost,
)
from gpu_exporter.serve import observe

WITH_GPM = ("Hopper", "Blackwell", "Rubin")


class Level(Enum):
    """How bad a finding is. Only FAIL means that nothing can be read."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and how to mend it."""

    level: Level
    what: str
    cure: str = ""


def examine(source: Source) -> tuple[list[Finding], bool]:
    """Look at a source for a few seconds. The second value is False if a driver call is stuck."""
    who = f"running as uid {os.geteuid()}" if hasattr(os, "geteuid") else "running as this user"
    findings = [Finding(Level.OK, who)]
    try:
        snapshot, clean = observe(source, selected(MetricSet.FULL))
    except SourceLost as error:
        message, _, cure = str(error).removeprefix("NVML: ").partition(": ")
        return [*findings, Finding(Level.FAIL, f"no GPU can be read: {message}", cure)], True
    return [*findings, *judge(snapshot)], clean


def judge(snapshot: Snapshot) -> list[Finding]:
    """What a snapshot of all metrics says. Pure."""
    findings = []
    if not snapshot.live:
        findings.append(
            Finding(Level.WARN, f"source {snapshot.source}: {NOT_YOURS[snapshot.source]}, not those of this machine")
        )
    if not snapshot.gpus:
        return [*findings, Finding(Level.FAIL, "the NVIDIA library does not answer", CURES["stalled"])]
    expected = next((int(value) for series, value in snapshot.samples if series.metric is m.EXPECTED), 0)
    up = [status for status in snapshot.gpus if status.up]
    level = Level.FAIL if not up else Level.WARN if len(up) < expected else Level.OK
    cure = "" if level is Level.OK else "see `dmesg | grep -i nvrm` for what happened to the others"
    findings.append(Finding(level, f"{len(up)} of {expected} GPUs answer", cure))
    drivers = {status.gpu.driver for status in up if status.gpu.driver}
    if drivers:
        cuda = {dict(status.gpu.info).get("cuda_version", "?") for status in up}
        findings.append(Finding(Level.OK, f"driver {', '.join(sorted(drivers))}, CUDA up to {', '.join(sorted(cuda))}"))
    said: dict[Finding, list[int]] = {}
    for status in snapshot.gpus:
        for finding in _gpu(status, snapshot):
            said.setdefault(finding, []).append(status.gpu.index)
    for finding, gpus in said.items():
        who = "GPU " + ", ".join(map(str, gpus)) if len(gpus) < len(snapshot.gpus) or len(gpus) == 1 else "every GPU"
        findings.append(Finding(finding.level, f"{who}: {finding.what}", finding.cure))
    return findings


def _gpu(status: GpuStatus, snapshot: Snapshot) -> Iterable[Finding]:
    """What is to say of one GPU, without naming it."""
    gpu = status.gpu
    if not status.up:
        yield Finding(Level.WARN, f"does not answer: {status.reason}", CURES.get(status.reason, CURES["unknown"]))
        return
    values = {series.metric: value for series, value in snapshot.samples if series.gpu == gpu}
    profiling = "profiling metrics through GPM" if snapshot.live else f"profiling metrics of source {snapshot.source}"
    yield Finding(Level.OK, f"{gpu.model}, {profiling if m.SM_ACTIVE in values else 'no profiling metrics'}")
    by_reason: dict[tuple[Level, str], list[str]] = defaultdict(list)
    for series, _ in snapshot.samples:
        if series.metric is m.SUPPORTED and series.gpu == gpu:
            labels = dict(series.labels)
            by_reason[_why(BY_KEY[labels["metric"]], labels["reason"], gpu, links=m.NVLINK_COUNT in values)].append(
                labels["metric"]
            )
    for (level, why), names in by_reason.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield Finding(level, f"no {shown}", why)
    if values.get(m.PERSISTENCE) == 0:
        yield Finding(Level.WARN, "persistence mode is off", "`nvidia-smi -pm 1`, or run nvidia-persistenced")


CURES = {
    "lost": "it fell off the bus: `dmesg | grep -i xid`, then reset or reboot",
    "reset_required": "it asks for a reset: drain the node, then `nvidia-smi --gpu-reset`",
    "stalled": "a call into the driver does not return: `dmesg | grep -i nvrm`; usually only a reboot helps",
    "no_permission": "check the modes of /dev/nvidia*, or run as a user who may open them",
    "unknown": "the driver says no more: `dmesg | grep -i nvrm`",
}


def _why(metric: Metric, outcome: str, gpu: Gpu, *, links: bool) -> tuple[Level, str]:
    """Why a metric is not there, in words; NOTE where that is as it should be."""
    architecture = dict(gpu.info).get("architecture", "")
    if outcome == "no_permission":
        return Level.WARN, "no permission: this user may not read it (try as root, or with CAP_SYS_ADMIN)"
    if outcome == "not_recorded":
        return Level.NOTE, "not in the recording"
    if outcome == "not_simulated":
        return Level.NOTE, "not simulated: no packaged recording has it"
    if not links and (
        metric.entity is EntityKind.NVLINK or isinstance(metric.nvml, LinkSum) or metric is m.NVLINK_COUNT
    ):
        return Level.NOTE, "no NVLink here: none on the board, or not passed through to this machine"
    if isinstance(metric.nvml, Gpm):
        if architecture in WITH_GPM:
            return Level.WARN, "this driver does not answer these GPM counters: a newer one may"
        return Level.WARN, f"{architecture} GPUs have no GPM; this needs Hopper or newer, or DCGM on older GPUs"
    if metric is m.FAN:
        return Level.NOTE, "the board has no fan of its own"
    if metric in (m.RETIRED_SBE, m.RETIRED_DBE, m.RETIRED_PENDING):
        return Level.NOTE, "Ampere and newer GPUs remap rows instead of retiring pages"
    if metric in m.ECC_LOCATIONS:
        return Level.NOTE, "this GPU does not count errors at this place"
    return Level.NOTE, "not supported by this GPU or driver"
