"""Render the page on GPUs without profiling counters: what remains of metrics, classes, alerts, rules and panels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from content.docs import liveness
from gpu_exporter.alerting import banner, rules, runbooks
from gpu_exporter.alerting.coverage import WITHOUT_PROFILING, Detectability, detectability
from gpu_exporter.catalogue import bottlenecks, signals
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, LOW_POWER_CLASS, LOW_POWER_CLASSES
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.catalogue.signals import APPROXIMATE, SIGNALS
from gpu_exporter.conditions.prose import title
from gpu_exporter.conditions.signal import Read
from gpu_exporter.model.metric import Kind
from gpu_exporter.reports.markdown import bullets, table, ticked

INTRO = f"""# GPUs without profiling counters

The driver has profiling counters (SM, pipe and DRAM activity, and the mean traffic of PCIe and NVLink) of Hopper and
newer. Of data center GPUs from Volta to Ada, [DCGM](dcgm.md) has them. GeForce cards, vGPU guests, GPUs before Volta,
and all GPUs older than Hopper without DCGM have none. This page lists what remains on them.

gpu-exporter then uses what every driver reports, and marks what it concludes as *approximate*: `diagnose`, `top` and
the live page show the word beside the class, the [API](api.md) and `diagnose --json` have `quality`, alerts have an
annotation `quality`, and `{APPROXIMATE.record}` is 1 for the GPU.

DCGM's counters can stop, for example after an XID or when another tool takes them: until DCGM is restarted, all of them
are 0 although the GPU works, or they keep their last values. The recording rules, `--source dcgm`, and `diagnose` and
`top` of another exporter or a Prometheus leave these values out, so the GPU counts neither as idle nor as busy because
of them, and `gpu:profiling_stopped:bool` is 1 for it. [GpuMetricsMissing](runbooks/gpumetricsmissing.md) says what to
do. The counters of a GPU have stopped if

- all of them are 0 and its utilisation is at least 10 %, or was so within the last five minutes, or
- PCIe traffic in both directions and engine activity have been exactly the same for four minutes (in the rules, for up
  to five), in which power has changed at least four times. Of 20 000 recorded samples of H100s and H200s, all three
  were the same as in the sample before once; scrapes once a minute must repeat them four times.

Not detected: zeros at a utilisation that is always below 10 % when it is read, and zeros of GPUs in MIG mode, which
have no utilisation; kept values where PCIe traffic to the GPU is not exported or 0, where power is scraped less than
once a minute or does not change, or in less than four minutes, such as the 20 s of `diagnose --url` of an exporter.

## What stands in for the counters

A [signal](signals.md) uses the first of its sources that exists. Memory utilisation is an upper bound of DRAM activity:
any access counts for its moment, however few bytes it moves. NVML measures PCIe traffic for 20 ms in each direction,
which keeps a CPU busy meanwhile, so gpu-exporter asks for it only every 15 s, and only where nothing else has it. Links
count their traffic on Volta and Ampere.

"""
CLASSES = """
## What limits the GPU?

| class | without profiling counters |
| --- | --- |
"""
# What takes the place of the counters, by class; the others are never given.
BASIS: Mapping[str, str] = {
    "throttled": "as with them: the driver says why it lowers the clock",
    "idle": "utilisation below 2 %",
    "pcie-bound": "samples of PCIe traffic",
    "data-loading-bound": "utilisation below 50 %, and samples of PCIe traffic",
    "host-bound": "utilisation below 50 %",
    "compute-bound": "utilisation of at least 85 %, and the power limit lowers the clock nearly all the time",
    LOW_POWER_CLASS: "utilisation of at least 85 %, and less than 45 % of the power limit; stands for "
    + ", ".join(f"`{each.name}`" for each in BOTTLENECKS if each.name in LOW_POWER_CLASSES),
}
NEVER = "unknown"
AFTER_CLASSES = """
A GPU that is busy at a power between these limits is memory-bound, compute-bound, or waits in part: its class is
unknown. A [profiler trace](traces.md), [`gpu-exporter profile`](profile.md) and the [step timer](training.md) tell;
they work on every GPU. The [time shares](diagnose.md#where-did-the-time-go) need SM activity and are unknown.

### How good is it?

Every recording of the tests was judged twice, with all counters and without the profiling counters, with twenty samples
of PCIe traffic: 404 GPUs. 71 % of the GPUs that worked have a class. *Precision* is the share of what is found without
the counters that is also found with them, *recall* the reverse; `python -m tests.without_profiling` prints both. No
class and no failure mode with a precision below 0.9 is given. **It was calibrated on H100 and H200 only**: on a board
with another ratio of power to work, other shares of the power limit may be right.

"""
MEASURED: Sequence[tuple[str, ...]] = (
    ("compute-bound", "113", "101", "0.97", "0.87"),
    ("data-loading-bound", "11", "5", "1.00", "0.45"),
    ("host-bound", "79", "64", "1.00", "0.81"),
    ("idle", "57", "59", "0.97", "1.00"),
    ("low-power", "88", "67", "0.94", "0.72"),
    ("pcie-bound", "7", "7", "1.00", "1.00"),
    ("GpuDataLoadingBound", "11", "5", "1.00", "0.45"),
    ("GpuHostBound", "79", "64", "1.00", "0.81"),
    ("GpuHostCpuStarved", "2", "2", "1.00", "1.00"),
    ("GpuHostThrottled", "2", "2", "1.00", "1.00"),
    ("GpuLaunchBound", "18", "5", "1.00", "0.28"),
    ("GpuLaunchThreadSaturated", "3", "3", "1.00", "1.00"),
    ("GpuLoaderCpuBound", "2", "2", "1.00", "1.00"),
    ("GpuLoaderStorageBound", "2", "2", "1.00", "1.00"),
    ("GpuLoaderTooFewWorkers", "1", "1", "1.00", "1.00"),
    ("GpuPcieBound", "7", "7", "1.00", "1.00"),
    ("GpuPowerOscillation", "73", "73", "1.00", "1.00"),
    ("GpuSharedMemoryFull", "2", "2", "1.00", "1.00"),
)
AFTER_MEASURED = """
- `low-power` counts as right if the class with all counters is one of those that it stands for.
- GpuLaunchBound needs memory utilisation, which most of the recordings lack: hence its recall.
- Without samples of PCIe traffic, as from dcgm-exporter, loading data counts as waiting for the host (host-bound:
  precision 0.93, recall 0.81), and copies as low-power (0.95, 0.80).
- Where the links count their traffic, GpuStragglerStarved is found, too (1.00 and 1.00, 11 ranks). The recordings are
  too short for counters that are read every 15 s, so here they were read at every tick.
- First results, before any limit was chosen: with utilisation in place of engine activity and all limits as they are
  with counters, 26 % of the GPUs that worked had a class (host-bound 0.99 and 0.91, idle 0.97 and 1.00); with the
  classes by power, at 40 % of the power limit, 67 % (low-power 0.93 and 0.57, compute-bound 0.97 and 0.87).
- Live on an H100 beside an exporter that has the counters (`python -m benchmarks.without_profiling`, 2026-11-27, driver
  580.159.04): of 15 workloads that use the GPU, 9 have a class without the counters. 8 of these are right. One is not:
  an FP32 matrix product at the power limit is compute-bound, with the counters tensor-cores-idle. The exporter takes
  0.58 % of a core, samples of PCIe traffic included, and 0.66 % with the counters.

## Failure modes

These are for a GPU whose driver has all that is listed above. *Partly*: a part of the condition cannot be evaluated, so
the failure mode may be missed, or be reported although a class that is unknown without the counters is the true one.
All others are detected as with the counters.

"""
RECORDS = """
## Recorded series that do not exist

{dead} of the {all} [recorded series](signals.md):

"""
PANELS = """
## Panels without data

"""
METRICS = """
## Metrics that do not exist

These come from profiling counters, or are computed from them; `gpu_metric_supported` is 0 for each.

"""
WORDS = {Detectability.NO: "no", Detectability.PARTLY: "partly"}


def page(boards: Mapping[str, str]) -> str:
    """Return docs/without-profiling.md. `boards` are the dashboards as JSON, by their titles."""
    groups = rules.groups({})
    missing = _missing()
    dead = list(liveness.dead_records(groups, missing))
    records = {rule["record"] for group in groups for rule in group.rules if "record" in rule}
    is_dead = (missing | set(dead)).__contains__
    return (
        banner.markdown(signals, bottlenecks)
        + INTRO
        + table(("Signal", "With profiling counters", "Without"), _sources())
        + CLASSES
        + "".join(f"| `{each.name}` | {BASIS.get(each.name, NEVER)} |\n" for each in BOTTLENECKS)
        + AFTER_CLASSES
        + table(("", "with", "without", "precision", "recall"), MEASURED)
        + AFTER_MEASURED
        + table(("Failure mode", "Detected"), _modes(is_dead))
        + RECORDS.format(dead=len(dead), all=len(records))
        + f"{ticked(dead)}\n"
        + PANELS
        + bullets(_panels(boards, is_dead))
        + METRICS
        + f"{ticked(dict.fromkeys(row.name for row in m.METRICS if row in m.PROFILING))}\n"
    )


def _missing() -> set[str]:
    """Return the names of the series that do not exist without profiling counters, of all that signals read."""
    reads = {way.series for signal in SIGNALS for way in signal.definitions if isinstance(way, Read)}
    of_drivers = {name for name in reads if name.startswith("DCGM_")} - WITHOUT_PROFILING
    parts = ("", "_bucket", "_sum", "_count")
    return of_drivers | {
        f"{row.name}{part}" for row in m.PROFILING for part in (parts if row.kind is Kind.HISTOGRAM else ("",))
    }


def _sources() -> Iterator[tuple[str, str, str]]:
    """Yield the signals that have other sources without the counters: their best source with and without them."""
    profiling = {row.name for row in m.PROFILING}
    for signal in SIGNALS:
        ways = [way.name for way in signal.definitions if isinstance(way, Read)]
        best = next((name for name in ways if name in WITHOUT_PROFILING), "")
        if ways and ways[0] in profiling and best and signal is not APPROXIMATE:
            yield f"{title(signal)} (`{signal.record}`)", f"`{ways[0]}`", f"`{best}`"


def _modes(is_dead: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    for mode in MODES:
        found = _detected(mode, is_dead)
        if found is not Detectability.YES:
            yield runbooks.link(mode.name, "runbooks/"), WORDS[found]


def _detected(mode: FailureMode, is_dead: Callable[[str], bool]) -> Detectability:
    can_fire = any(liveness.can_have_result(rule["expr"], is_dead) for rule in rules.alerts_of(mode, {}))
    return detectability(mode, WITHOUT_PROFILING) if can_fire else Detectability.NO


def _panels(boards: Mapping[str, str], is_dead: Callable[[str], bool]) -> Iterator[str]:
    for board, text in boards.items():
        panels = list(liveness.queries(json.loads(text)))
        empty = [
            name for name, queries in panels if not any(liveness.can_have_result(each, is_dead) for each in queries)
        ]
        if panels:
            yield f"**{board}**: {', '.join(dict.fromkeys(empty)) or 'none'}"
