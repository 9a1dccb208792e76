"""Examines a source and the machine: what works, what does not, and what to do about it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import DOWN, TELEMETRY, pcie_capacity, silent
from gpu_exporter.catalogue.metrics import BY_KEY, selected
from gpu_exporter.catalogue.profiling_support import INSTEAD, PERMISSION, WITH_DCGM, WITH_GPM, why_never_profiled
from gpu_exporter.doctor import machine
from gpu_exporter.health import fitness as health
from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.finding import Finding, FindingLevel
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import EntityKind, Gpm, LinkSum, Metric, MetricSet
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.model.verdict import Action, Verdict
from gpu_exporter.pipeline.monitor import observe
from gpu_exporter.reports.numbers import first_of, ranges

# The time for all checks of the machine, which run while the GPUs are read.
CHECK_SECONDS = 5.0


class Check(threading.Thread):
    """A check of the machine, on a thread of its own because a file system or a resolver may hang."""

    def __init__(self, check: Callable[[], list[Finding]]) -> None:
        super().__init__(daemon=True)
        self._check = check
        self._findings: list[Finding] | None = None
        self.start()

    def run(self) -> None:
        try:
            self._findings = self._check()
        except Exception as error:  # noqa: BLE001 - one check must not end doctor
            what = f"a check of this machine failed: {printable(f'{type(error).__name__}: {error}', 200)}"
            self._findings = [Finding("machine", FindingLevel.WARN, what, "report it as a bug of gpu-exporter")]

    def until(self, end: float) -> list[Finding]:
        """Return the findings, waiting for them until `end` (monotonic seconds)."""
        self.join(max(0.0, end - time.monotonic()))
        cure = "look for a file system or a DNS server that hangs"
        late = Finding("machine", FindingLevel.WARN, "a check of this machine does not finish", cure)
        return [late] if self._findings is None else self._findings


def examine(
    source_of: Callable[[], Source], checks: Sequence[Callable[[], list[Finding]]]
) -> tuple[list[Finding], bool]:
    """Return the findings on the source and the machine, and False if a driver call is stuck. Takes a few seconds."""
    end = time.monotonic() + CHECK_SECONDS
    running = [Check(check) for check in checks]
    findings, clean, mig = machine.software(), True, False
    try:
        source = source_of()
        try:
            snapshot, clean = observe(source, selected(MetricSet.FULL))
        finally:
            findings += source.findings()
        findings += judge(snapshot)
        mig = any(series.metric is m.MIG_MODE and value == 1 for series, value in snapshot.samples)
    except SourceLost as error:
        what = error.message.removeprefix("NVML: ").removeprefix("DCGM: ")
        findings.append(
            Finding(
                "driver", FindingLevel.FAIL, f"no GPU can be read: {what}", error.fix or "run `nvidia-smi` to see why"
            )
        )
    findings += machine.container(mig=mig)
    return [*findings, *(finding for check in running for finding in check.until(end))], clean


def judge(snapshot: Snapshot) -> list[Finding]:
    """Return the findings of a snapshot of all metrics. Pure."""
    findings = []
    if not snapshot.live:
        findings.append(
            Finding(
                "driver",
                FindingLevel.WARN,
                f"source {snapshot.source}: {snapshot.description}; these are not the GPUs of this machine",
            )
        )
    if not snapshot.gpus:
        what, _, cure = silent(snapshot.source, "stalled").partition(": ")
        return [*findings, Finding("driver", FindingLevel.FAIL, what, cure)]
    expected = next((int(value) for series, value in snapshot.samples if series.metric is m.EXPECTED), 0)
    up = [status for status in snapshot.gpus if status.up]
    level = FindingLevel.FAIL if not up else FindingLevel.WARN if len(up) < expected else FindingLevel.OK
    of_driver = level is not FindingLevel.OK and not all(s.up or s.reason in TELEMETRY for s in snapshot.gpus)
    cure = "read `dmesg | grep -i nvrm`: it says what happened to the others" if of_driver else ""
    missing = "".join(f"; missing: {gpu}" for gpu in health.missing_gpus(snapshot))
    findings.append(Finding("driver", level, f"GPUs that answer: {len(up)} of {expected}{missing}", cure))
    drivers = {status.gpu.driver for status in up if status.gpu.driver}
    if drivers:
        versions = {dict(status.gpu.info).get("cuda_version", "") for status in up} - {""}
        cuda = f", CUDA up to {', '.join(sorted(versions))}" if versions else ""
        findings.append(Finding("driver", FindingLevel.OK, f"driver {', '.join(sorted(drivers))}{cuda}"))
    by_finding: dict[Finding, list[int]] = {}
    for status, verdict in zip(snapshot.gpus, snapshot.verdicts, strict=True):
        for finding in (*_gpu(status, snapshot), *_health(status, verdict)):
            by_finding.setdefault(finding, []).append(status.gpu.index)
    for finding, gpus in by_finding.items():
        one, all_of_them = len(gpus) == 1, len(gpus) == len(snapshot.gpus)
        who = f"GPU {gpus[0]}" if one else "every GPU" if all_of_them else f"GPUs {ranges(gpus)}"
        findings.append(Finding(finding.topic, finding.level, f"{who}: {finding.what}", finding.cure))
    return findings


def _gpu(status: GpuStatus, snapshot: Snapshot) -> Iterable[Finding]:
    """Yield the findings on one GPU, without its name."""
    gpu = status.gpu
    if not status.up:
        reason = status.reason if status.reason in {**TELEMETRY, **DOWN} else "unknown"
        what = f"not read: {TELEMETRY[reason]}" if reason in TELEMETRY else f"does not answer: {DOWN[reason].words}"
        if reason == "unknown":
            what = DOWN[reason].words.removeprefix("it ")
        yield Finding("gpu", FindingLevel.WARN, what, CURES.get(reason, ""))
        return
    values = {series.metric: value for series, value in snapshot.samples if series.gpu == gpu}
    choice = next((dict(s.labels) for s, _ in snapshot.samples if s.metric is m.SOURCE_INFO and s.gpu == gpu), {})
    source = choice.get("source", snapshot.source)
    profiling = f"profiling metrics {THROUGH.get(source, f'from source {source}')}"
    yield Finding(
        "gpu",
        FindingLevel.OK,
        f"{printable(gpu.model, 80)}, {profiling if m.SM_ACTIVE in values else 'no profiling metrics'}",
    )
    yield from _choice(choice.get("reason", ""), why_never_profiled(gpu))
    yield from link_notes(values)
    by_reason: dict[tuple[FindingLevel, str, str], list[str]] = defaultdict(list)
    for series, _ in snapshot.samples:
        if series.metric is m.SUPPORTED and series.gpu == gpu:
            labels = dict(series.labels)
            by_reason[_why(BY_KEY[labels["metric"]], labels["reason"], gpu, values)].append(labels["metric"])
    for (level, why, cure), names in by_reason.items():
        yield Finding("gpu", level, f"no {first_of(names, 3)}: {why}", cure)
    if values.get(m.PERSISTENCE) == 0:
        yield Finding(
            "gpu", FindingLevel.WARN, "persistence mode is off", "`nvidia-smi -pm 1`, or run nvidia-persistenced"
        )
    instances = {dict(series.labels).get("GPU_I_ID") for series, _ in snapshot.samples if series.gpu == gpu}
    yield from _mig(values, len(instances - {None}))


def link_notes(values: Mapping[Metric, float]) -> Iterable[Finding]:
    """Yield a note on a PCIe link with fewer lanes than the GPU, for which nothing says that it is a fault."""
    lanes, most = values.get(m.PCIE_WIDTH, 0.0), values.get(m.PCIE_MAX_WIDTH, 0.0)
    at_full_speed = pcie_capacity(values.get(m.PCIE_MAX_GEN, 0.0), lanes)
    if 0 < lanes < most and values.get(m.PCIE_EXPECTED, 0.0) <= at_full_speed:
        what = f"its PCIe link has {lanes:.0f} of {most:.0f} lanes: that is what its slot or the virtual machine offers"
        yield Finding("gpu", FindingLevel.NOTE, what)


THROUGH = {"nvml": "through GPM", "nvml+dcgm": "through DCGM", "dcgm": "through DCGM"}


def _choice(reason: str, never: str) -> Iterable[Finding]:
    """Yield the finding on the choice of `--source auto` for a GPU. `never` is why no source can profile it."""
    if never:
        yield Finding("source", FindingLevel.NOTE, f"read through NVML: {never}", INSTEAD)
    elif reason == "gpm":
        yield Finding("source", FindingLevel.OK, "read through NVML, which has its profiling counters (GPM)")
    elif reason == "no_gpm":
        yield Finding(
            "source", FindingLevel.OK, "read through NVML, and its profiling counters through DCGM: it has no GPM"
        )
    elif reason == "no_gpm_and_no_dcgm":
        cure = f"{WITH_DCGM}; or name a host engine with --dcgm-hostengine"
        yield Finding(
            "source", FindingLevel.WARN, "read through NVML only: it has no GPM, and DCGM is not installed", cure
        )
    elif reason:
        why = reason.removeprefix("no_gpm_and_dcgm_").replace("_", " ")
        cure = "run `gpu-exporter doctor --source dcgm` to see why"
        yield Finding(
            "source",
            FindingLevel.WARN,
            f"read through NVML only: it has no GPM, and DCGM is not available ({why})",
            cure,
        )


def _health(status: GpuStatus, verdict: Verdict) -> Iterable[Finding]:
    """Yield the finding on the verdict, unless it is healthy or the GPU does not answer, which is another finding."""
    if status.up and verdict.problems:
        yield Finding("health", FindingLevel.WARN, f"{verdict.health.value}: {verdict.words}", REPAIRS[verdict.action])


def _mig(values: Mapping[Metric, float], instances: int) -> Iterable[Finding]:
    """Yield the findings on MIG, if it is on or will be."""
    mode, pending = values.get(m.MIG_MODE), values.get(m.MIG_PENDING)
    if mode == 1:
        cure = "" if instances else "create one, as no program can run without; `nvidia-smi mig -lgi` lists them"
        what = f"MIG mode is on, {instances or 'no'} instances seen"
        yield Finding("gpu", FindingLevel.OK if instances else FindingLevel.NOTE, what, cure)
    if None not in (mode, pending) and mode != pending:
        what = f"MIG mode is {_on(mode)}, and {_on(pending)} after the next reset of the GPU"
        yield Finding("gpu", FindingLevel.WARN, what, "stop the programs that use it, then `nvidia-smi --gpu-reset`")


def _on(value: float | None) -> str:
    return "on" if value else "off"


REPAIRS = {
    Action.NONE: "",
    Action.RESTART_APP: "restart the program that used it",
    Action.GPU_RESET: "drain the node, then `nvidia-smi --gpu-reset`",
    Action.NODE_REBOOT: "drain the node, then reboot it",
    Action.DRAIN: "drain it, then read `dmesg | grep -i nvrm`",
    Action.REPLACE: "drain it, and have the GPU replaced (RMA)",
}
CURES = {
    "lost": "read `dmesg | grep -i xid`, then reset the GPU or reboot the node",
    "gone": "read `dmesg | grep -i xid`, then reboot the node",
    "reset_required": "drain the node, then `nvidia-smi --gpu-reset`",
    "stalled": "read `dmesg | grep -i nvrm`; usually only a reboot helps",
    "no_permission": "check the permissions of /dev/nvidia*, or run as a user who may open them",
    "source_lost": "read the log of the host engine or of gpu-exporter; restart a host engine that hangs",
    "unread": "wait, and try again; a host engine at 100 % of a core (`top`) is overloaded",
    "unknown": "read `dmesg | grep -i nvrm`; restart a container in which no GPU answers",
}

# Why a value is missing, for reasons other than an error of NVML, and the fix.
OF_ANSWERS = {
    "no_field": (FindingLevel.NOTE, "DCGM has no field for it", ""),
    "interval_too_long": (
        FindingLevel.NOTE,
        "the driver does not keep its samples for as long as --interval is",
        "use an --interval of at most 10s, for energy 2s",
    ),
    "no_module": (FindingLevel.NOTE, "the host engine lacks the module for it", "see `dcgmi modules -l`"),
    "no_value": (
        FindingLevel.NOTE,
        "the driver has no value for it, or only an impossible 0: not supported by this GPU or driver",
        "",
    ),
    "unknown_field": (FindingLevel.NOTE, "the host engine does not know the field", "try a newer DCGM"),
    "hostengine_overloaded": (
        FindingLevel.WARN,
        "the host engine falls behind, so it is asked for less",
        "wait: it is asked for everything again later",
    ),
    "no_room": (FindingLevel.WARN, "the host engine cannot hold more groups", "see `dcgmi fieldgroup -l`"),
    "paused": (
        FindingLevel.WARN,
        "another tool uses the GPU's counters (Nsight, CUPTI, another DCGM)",
        "wait until that tool has ended",
    ),
    "no_profiling_module": (
        FindingLevel.WARN,
        "the host engine lacks the profiling module, which GPUs older than Hopper need",
        f"install datacenter-gpu-manager-4-proprietary; {PERMISSION}",
    ),
    "profiling_not_supported": (FindingLevel.NOTE, "DCGM cannot profile this GPU", ""),
    "profiling_library_error": (FindingLevel.WARN, "DCGM's profiling library fails", "see the log of nv-hostengine"),
    "too_many_profiling_fields": (
        FindingLevel.WARN,
        "the GPU cannot count all of these at once",
        "see `dcgmi profile -l`",
    ),
    "driver_too_old": (FindingLevel.WARN, "the driver is too old for DCGM's profiling", "install a newer driver"),
    "requires_root": (FindingLevel.WARN, "nv-hostengine may not profile", PERMISSION),
}


def _why(metric: Metric, outcome: str, gpu: Gpu, values: Mapping[Metric, float]) -> tuple[FindingLevel, str, str]:
    """Return why a metric is missing, and the fix; the level is NOTE if it is expected to be missing."""
    if metric.sum_of:
        return _why(metric.sum_of[0], outcome, gpu, values)
    architecture = dict(gpu.info).get("architecture", "")
    never = why_never_profiled(gpu) if isinstance(metric.nvml, Gpm) else ""
    if never:
        return FindingLevel.NOTE, never, ""
    if outcome in OF_ANSWERS:
        return OF_ANSWERS[outcome]
    if outcome == "no_permission":
        return FindingLevel.WARN, "no permission", "run as root, or with CAP_SYS_ADMIN"
    if outcome == "not_recorded":
        return FindingLevel.NOTE, "not in the recording", ""
    if outcome == "not_simulated":
        return FindingLevel.NOTE, "not simulated, because no packaged recording has it", ""
    if m.NVLINK_COUNT not in values and (
        metric.entity is EntityKind.NVLINK or isinstance(metric.nvml, LinkSum) or metric is m.NVLINK_COUNT
    ):
        return FindingLevel.NOTE, "the GPU has no NVLink, or it is not passed through to this machine", ""
    if isinstance(metric.nvml, Gpm):
        if values.get(m.MIG_MODE) == 1:
            return FindingLevel.NOTE, "in MIG mode the counters belong to the instances, not to the GPU", ""
        if architecture in WITH_GPM:
            return FindingLevel.WARN, "this driver does not support these GPM counters", "try a newer driver"
        if m.SM_ACTIVE in values:
            return FindingLevel.NOTE, f"{architecture} GPUs have no GPM, and DCGM has no field for it", ""
        return FindingLevel.WARN, f"{architecture} GPUs have no GPM, but DCGM can profile them", WITH_DCGM
    if metric is m.FAN:
        return FindingLevel.NOTE, "the GPU has no fan of its own", ""
    if metric in (m.RETIRED_SBE, m.RETIRED_DBE, m.RETIRED_PENDING):
        return FindingLevel.NOTE, "Ampere and newer GPUs remap rows instead of retiring pages", ""
    if metric in m.ECC_LOCATIONS:
        return FindingLevel.NOTE, "this GPU does not count errors at this location", ""
    return FindingLevel.NOTE, "not supported by this GPU or driver", ""
