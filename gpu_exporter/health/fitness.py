"""Verdicts: whether a GPU is fit for work, judged by its values; if not, why, and what repairs it.

The rules are `catalogue/faults.py`. Pure, and cheap enough for each collection. A verdict depends only on current
values, recent XIDs (`reported`), and what its links should reach (`links.py`). No rule can fire on a healthy GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from gpu_exporter.catalogue import faults
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.faults import Fault, Threshold
from gpu_exporter.health.links import Values, pcie_link
from gpu_exporter.model.gpu import Sample
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.node_answer import VerdictAnswer
from gpu_exporter.model.snapshot import SOURCE_LOST, UNREAD, GpuStatus, Snapshot
from gpu_exporter.model.verdict import Health, Problem, Unknown, Verdict

# A stalled GPU is unhealthy only after this time, because a driver call may take a second or two when a large job
# starts. `check` waits longer.
STUCK_SECONDS = 4.0
GPU_IDLE = 1

# Why a GPU has no such value at all: a simulated one has only what was recorded.
HARMLESS = frozenset({"not_supported", "not_simulated"})
# What must be known of a GPU before it is called healthy, if it supports it. One value per topic is enough: newer GPUs
# remap rows, older ones retire pages.
TOPICS: Mapping[str, tuple[Metric, ...]] = {
    "uncorrectable ECC errors": (m.ECC_DBE_VOL,),
    "row remapping or page retirement": (m.REMAP_PENDING, m.REMAP_FAILURE, m.RETIRED_PENDING),
    "recovery action": (m.RECOVERY,),
}
_MEMORY = tuple(threshold.metric for threshold in faults.MEMORY)
# The metrics that a verdict reads: cheap calls, no profiling. Temperature is included because a GPU without ECC may
# support no other one, and a GPU without any value counts as lost.
ROWS: tuple[Metric, ...] = (
    *(m.GPU_TEMP, m.TEMP_MARGIN, m.SLOWDOWN_TEMP, m.ECC_MODE, *_MEMORY, m.RECOVERY, m.INFOROM, m.CLOCK_EVENTS),
    *(m.GPU_UTIL, m.PSTATE, m.PCIE_GEN, m.PCIE_WIDTH, m.PCIE_MAX_GEN, m.PCIE_MAX_WIDTH),
    *(m.FABRIC, m.NVLINK_COUNT, m.NVLINK_UP, m.MIG_MODE),
)


def fault_of_node(
    statuses: Sequence[GpuStatus], seconds: float, *, through_hostengine: bool = False
) -> frozenset[GpuStatus]:
    """Return the GPUs whose failure is a fault of the container or the driver, and says nothing about them.

    No GPU answers, and these stopped within `seconds` of the last one for the same reason: a GPU that failed before,
    while others answered, is faulty itself. So is a single GPU whose calls hang, or that a host engine reports as lost.
    """
    if not statuses or any(status.up for status in statuses):
        return frozenset()
    latest = max((status.read_at for status in statuses if status.read_at is not None), default=None)
    together = [status for status in statuses if latest is None or (status.read_at or -inf) >= latest - seconds]
    reasons = {status.reason for status in together}
    alone = len(statuses) == 1
    of_node = {"unknown", *(() if alone else ("stalled",)), *(("lost",) if through_hostengine and not alone else ())}
    return frozenset(together) if len(reasons) == 1 and reasons <= of_node else frozenset()


def is_lost_by_log(status: GpuStatus, reported: Iterable[Problem], read_at: float) -> bool:
    """Return whether the kernel log says that a GPU is lost whose source does not answer: it had such an XID since its
    last read, at this unix time."""
    codes = {f"xid_{code}" for code in faults.DOWN["lost"].xids}
    silent = status.reason in (SOURCE_LOST, UNREAD)
    return silent and any(problem.reason in codes and problem.value >= read_at for problem in reported)


def plain(samples: Iterable[Sample]) -> dict[Metric, float]:
    """Return the values of the GPU itself, by metric."""
    return {sample.series.metric: sample.value for sample in samples if not sample.series.labels}


def judge(
    status: GpuStatus,
    values: Values,
    why: Callable[[Metric], str],
    reported: Iterable[Problem] = (),
    *,
    silent: str = "",
) -> Verdict:
    """Return the verdict on one GPU by its values, with what is expected of its links.

    `why` says why a metric has no value; `reported` are problems from elsewhere, such as XIDs. `silent` says why no
    failure to read this GPU says anything about it.
    """
    gpu = status.gpu
    if status.up:
        unknown = tuple(answer for topic, metrics in TOPICS.items() for answer in _unknown(topic, metrics, values, why))
        return Verdict(gpu, (*_problems(values), *reported), unknown)
    if silent:
        return Verdict(gpu, tuple(reported), (Unknown("any metric", silent),))
    if status.reason in faults.DOWN and not 0 < status.stalled < STUCK_SECONDS:
        fault = faults.DOWN[status.reason]
        return Verdict(gpu, (_problem(fault, m.UP, 0), *_without_meaning(reported, fault.xids)))
    words = faults.TELEMETRY.get(status.reason, f"it does not answer ({status.reason})")
    return Verdict(gpu, tuple(reported), (Unknown("any metric", words),))


def _without_meaning(reported: Iterable[Problem], codes: Sequence[int]) -> Iterator[Problem]:
    """Yield problems; those that are XIDs of a fault do not say again what its words say."""
    said = {f"xid_{code}" for code in codes}
    for problem in reported:
        yield replace(problem, words=problem.words.partition(":")[0]) if problem.reason in said else problem


def is_healthy_but_for_xids(verdict: Verdict) -> bool:
    """Return whether nothing but XIDs speaks against a GPU that has had any: its repair is done."""
    others = tuple(problem for problem in verdict.problems if problem.metric is not m.XID_LAST)
    return len(others) < len(verdict.problems) and replace(verdict, problems=others).health is Health.HEALTHY


def missing(snapshot: Snapshot) -> int:
    """Return the number of expected GPUs without a verdict; 0 while no list of GPUs answers, which says nothing."""
    # Samples of the node are the last ones.
    expected = next((int(value) for series, value in reversed(snapshot.samples) if series.metric is m.EXPECTED), 0)
    missing = faults.missing(expected, len(snapshot.gpus))
    if not missing:
        return 0
    down = (dict(series.labels) for series, value in snapshot.samples if series.metric is m.SOURCE_DOWN and value == 1)
    return 0 if any(faults.lists_nothing(labels) for labels in down) else missing


def missing_gpus(snapshot: Snapshot) -> tuple[str, ...]:
    """Return which GPUs on the PCI bus the driver does not list, as far as that is known."""
    return tuple(
        faults.missing_gpu(dict(series.labels)) for series, _ in snapshot.samples if series.metric is m.MISSING
    )


def as_dict(verdict: Verdict) -> VerdictAnswer:
    """Return a verdict for JSON."""
    return {
        "gpu": verdict.gpu.index,
        "UUID": verdict.gpu.uuid,
        "modelName": verdict.gpu.model,
        "health": verdict.health.value,
        "action": verdict.action.value,
        "problems": [
            {
                "reason": problem.reason,
                "health": problem.health.value,
                "action": problem.action.value,
                "what": problem.words,
                "metric": problem.metric.key,
                "value": problem.value,
            }
            for problem in verdict.problems
        ],
        "unknown": [{"what": part.what, "why": part.why, "harmless": part.harmless} for part in verdict.unknown],
    }


def _problem(fault: Fault, metric: Metric, value: float) -> Problem:
    return Problem(metric, value, fault.describe(value), fault.action, fault.reason, fault.health)


def _problems(values: Values) -> Iterator[Problem]:
    for threshold, fault in faults.MEMORY.items():
        yield from _crossed(threshold, fault, values)
    number = int(values.get(m.RECOVERY, 0))
    yield from _crossed(faults.RECOVERY_REQUESTED, faults.RECOVERY.get(number, faults.NEWER), values)
    yield from _crossed(faults.INFOROM_INVALID, faults.INFOROM, values)
    events = int(values.get(m.CLOCK_EVENTS, 0))
    for bit, fault in faults.CLOCK_EVENTS.items():
        if events >> bit & 1:
            yield _problem(fault, m.CLOCK_EVENTS, events)
    yield from _heat(values)
    yield from _links(values)


def _crossed(threshold: Threshold, fault: Fault, values: Values) -> Iterator[Problem]:
    """Yield the fault if its value is known and beyond the threshold."""
    value = values.get(threshold.metric)
    if value is not None and threshold.holds(value):
        yield _problem(fault, threshold.metric, value)


def _heat(values: Values) -> Iterator[Problem]:
    margin, metric = values.get(m.TEMP_MARGIN), m.TEMP_MARGIN
    if margin is None and m.SLOWDOWN_TEMP in values and m.GPU_TEMP in values:  # before Ada and Hopper
        margin, metric = values[m.SLOWDOWN_TEMP] - values[m.GPU_TEMP], m.GPU_TEMP
    if margin is not None and margin <= faults.LOW_MARGIN:
        yield _problem(faults.MARGIN, metric, margin)


def _links(values: Values) -> Iterator[Problem]:
    link, expected = pcie_link(values), values.get(m.PCIE_EXPECTED)
    if link is not None and expected is not None and link < expected and is_at_speed(values):
        narrow = values[m.PCIE_WIDTH] < values.get(m.PCIE_MAX_WIDTH, 0)
        yield _problem(faults.PCIE, m.PCIE_WIDTH if narrow else m.PCIE_GEN, link / expected)
    if m.FABRIC in values and faults.FABRIC_NOT_READY.holds(values[m.FABRIC]):
        yield _problem(faults.FABRIC, m.FABRIC, values[m.FABRIC])
    links_up = values.get(m.NVLINK_UP, 0)
    down = values.get(m.NVLINK_EXPECTED, 0) - links_up
    if down > 0 and links_up > 0:  # if all are down, they are off on purpose
        yield _problem(faults.NVLINK, m.NVLINK_UP, down)


def is_at_speed(values: Values) -> bool:
    """Return whether the GPU works so hard that its PCIe link no longer saves power."""
    idle = int(values.get(m.CLOCK_EVENTS, 0)) & GPU_IDLE
    busy = values.get(m.GPU_UTIL, 0) >= faults.BUSY
    return busy and values.get(m.PSTATE, 0) <= faults.FASTEST and not idle


def _unknown(
    what: str, metrics: tuple[Metric, ...], values: Values, why: Callable[[Metric], str]
) -> tuple[Unknown, ...]:
    """Return what is unknown about a topic: metrics that could not be read, or the topic if none is supported."""
    silent = [metric for metric in metrics if metric not in values]
    if not silent:
        return ()
    reasons = {metric: why(metric) for metric in silent}
    # Where a host engine has a value of one, a blank of another means that the driver does not support that one.
    harmless = HARMLESS | {"no_value"} if len(silent) < len(metrics) else HARMLESS
    failed = tuple(Unknown(f"{what} ({metric})", why) for metric, why in reasons.items() if why not in harmless)
    if failed or len(silent) < len(metrics):
        return failed
    off = metrics == (m.ECC_DBE_VOL,) and values.get(m.ECC_MODE) == 0
    return (Unknown(what, "ECC is off" if off else reasons[metrics[0]], harmless=True),)
