"""Render docs/failure-modes.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from gpu_exporter.alerting import banner, rules, runbooks
from gpu_exporter.alerting.limits import all_limits
from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue import failure_modes as catalogued_modes
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS, WINDOW, Bottleneck
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.cost import PRICES
from gpu_exporter.catalogue.failure_modes.mode import FailureMode
from gpu_exporter.conditions import prose
from gpu_exporter.conditions.tree import Is, Limits
from gpu_exporter.reports.markdown import code, table
from gpu_exporter.reports.numbers import exact_duration

INTRO = """# Failure modes

What can go wrong with a GPU or a job, how gpu-exporter detects it, and what to do. Each failure mode is one entry of
`gpu_exporter/catalogue/failure_modes/`, from which its alert, its [runbook](runbooks/README.md) and the output of
`gpu-exporter diagnose` are generated. Conditions read [signals](signals.md), which are the same for every exporter.

A condition is true, false or unknown. It is unknown if the exporter does not expose the data; then the alert does not
fire.
"""

CLASSES_INTRO = """
## What limits a GPU

Each GPU has one bottleneck class at a time: the first in the list below whose condition matches. Conditions use
means over {window}. They are the same for the live page, `top`, `diagnose`, the API, reports, rules and dashboards, and
the class agrees with the [shares of time](diagnose.md#where-did-the-time-go) of the GPU. It is recorded as
`gpu:bottleneck:class`; the value is the number of the class, the label `class` its name. A GPU that does not answer has
no class.

- *Engine activity* is the share of time in which any kernel runs on the GPU. *SM activity* is the share of the SMs that
  have work, averaged over time.
- Memory-bound does not mean that the SMs are idle. Warps that wait for memory are resident, so a copy kernel has an SM
  activity of 100 % and a DRAM activity of 89 %, which is about the maximum. The activity of the pipes distinguishes
  memory from arithmetic.
- Low occupancy alone means nothing: the best matrix products run at 14 %.
- A rank that waits in a collective looks busy: engine activity 98 %, SM activity about 20 % to 50 %. Check for
  [stragglers](#stragglers) before you look at its class. In the conditions, a rank *waits* if its engine is busy, its
  SM activity is below 60 % and data moves: it spends part of each step in a collective. It *spins* if its engine is
  busy, its SM activity is constant and below 35 %, and no data moves: the collective makes no progress. Where SM
  activity is not known, a rank *may spin* if its engine is busy, memory and tensor cores are idle, and no data moves.
- If a signal is missing, the classes that need it never match, and a later class is reported instead.
"""

# A class without an alert has no runbook to give advice.
ADVICE = {"mixed": "\nUse a profiler to find out where the time goes: Nsight Systems or the PyTorch profiler.\n"}

# Classes on which no alert fires, but which alerts on more than the class are about.
WITHOUT_ALERT = {
    "throttled": "No alert on this class alone. [GpuThermalThrottling](runbooks/gputhermalthrottling.md) and "
    "[GpuPowerBrake](runbooks/gpupowerbrake.md) have limits for each cause.",
    "waiting": "No alert on this class alone. [GpuCollectiveStall](runbooks/gpucollectivestall.md) fires if no rank of "
    "the job makes progress.",
    "idle": "No alert on this class alone. [GpuAllocatedIdle](runbooks/gpuallocatedidle.md) fires if a pod, job "
    "or program has the GPU meanwhile.",
    "communicating": "No alert on this class alone. [Stragglers](#stragglers) lists the alerts on ranks that wait for "
    "others.",
}

STRAGGLERS = """
## Stragglers

In a synchronous job all ranks end each step together. A slow rank therefore shows not in its own speed, but in the
waiting of the others. A rank is compared with the other ranks of its job at the same time, never with its own past.

- There must be *victims*: at least the share `victims` of the other ranks have a busy engine, partly filled SMs and
  traffic. That is what waiting in a collective looks like.
- The straggler is the rank that does not wait but has similar traffic. If its engine is less active than that of its
  victims, its host starves it ([GpuStragglerStarved](runbooks/gpustragglerstarved.md)). If its SMs are more active, it
  spends more time computing ([GpuStragglerSlow](runbooks/gpustragglerslow.md)), because it has more work or the GPU is
  defective.
- Two ranks can be reported at once: each is compared with the median of those that wait.
- If no data moves, it is a [stall](runbooks/gpucollectivestall.md). If all ranks wait and data moves, the job is
  [communication-bound](runbooks/gpucommunicationbound.md).

The ranks of one job have the same `cluster`, `namespace`, `workload` and GPU model. The workload comes from labels of
the job (Kubernetes, Slurm), otherwise from the name of the pod without role and random suffix.

Stragglers are not detected, and no false alert fires, if

- the workload is unknown, as for processes outside of Kubernetes and Slurm, or for GPUs that several pods share;
- the ranks have different GPU models: each model is compared with itself;
- the job has a single rank, or more than about 40 % of its ranks are slow (limit `victims`);
- all ranks wait alike, each for its own data: that is [data loading](runbooks/gpudataloadingbound.md) or
  [the host](runbooks/gpuhostbound.md);
- traffic differs by more than the factor `alike`, between directions or from the victims: pipeline stages and replicas
  of a service are not ranks of one collective;
- the victims wait so little that their SMs stay filled, or the traffic of the job stays below `movingBytes`;
- the exporter does not expose the data: without SM activity, which the default fields of dcgm-exporter lack, slow ranks
  are not detected. Starved ranks and stalls are, and [GpuMetricsMissing](runbooks/gpumetricsmissing.md) opens a ticket.
"""

TERMS_INTRO = """
### Terms in these conditions
"""

TREE_INTRO = """
### Decision tree

Generated from the conditions. Every number is a mean over {window}. "unless" counts only if the value is known.

"""

MODES_INTRO = """
## All failure modes

The most urgent come first. *Hold* is how long a condition must be true before the alert fires; `gpu-exporter diagnose`
does not wait. *Partly* means that a required part of the condition cannot be evaluated: the failure mode may be missed,
or it may be reported although another class is the true one.
"""

LIMITS_INTRO = """
## Limits

Each threshold in a condition has a name. With the [chart](../helm/gpu-exporter/README.md#rules), set it by
this name in `prometheusRule.limits`. Without the chart, change its default in the catalogue and run
`make generate`.
"""

COST_INTRO = """
## Cost

Costs are computed from signals and two prices in `alerts/recording.yaml`. Set the prices to your own; in the chart they
have these names in `prometheusRule.limits`.

"""

COST_WORDS = """
- **Electricity**: watts / 1000 is kilowatts; multiplied by the price of a kilowatt-hour, this *is* dollars per hour. Do
  not divide by 3600. For a day, query `avg_over_time(workload:electricity:usd_per_hour[1d]) * 24`.
- **GPU-hours**: a GPU costs its price whether it works or not. The price includes electricity, so do not add the two.
- **Waste** is the [time that is lost](diagnose.md#where-did-the-time-go), except for SMs that are empty while a kernel
  runs, and all the time of a fake load. Without SM activity, it is the time in which the engine is idle. A GPU that is
  occupied but idle uses almost no electricity: look at the price of the GPU.
- **Without a label**: GPUs without a workload are in the series without a workload label: idle capacity. So are GPUs
  that several pods share by time-slicing or MPS, because none of them is the owner, and a lost GPU in MIG mode, whose
  instances are not listed any more. A MIG instance counts as its share of the GPU: by compute slices, or in equal
  parts if these are unknown.
- **A lost GPU** costs its price as before, and all of it is waste, as long as its exporter answers. It has no shares of
  its time and no energy.
- **A new price** holds from then on: what was recorded before keeps the old one, in hourly sums, too. Only *GPU hours
  in the time range* on *GPU / Cost* computes the whole range with the present price. There is one price for all GPUs.
- **A failed scrape** leaves no gap in hourly sums, see [scale.md](scale.md#how-do-i-report-a-year-by-team). Rates
  (`…_per_hour`) are those of GPUs that are scraped now.
- Time in which a rank waits for others is waste of that rank. Alerts (GpuStragglerStarved, GpuStragglerSlow,
  GpuCollectiveStall) name the straggler.

"""


def failure_modes(modes: Sequence[FailureMode] = MODES, limits: Limits | None = None) -> str:
    """Return docs/failure-modes.md."""
    window, changed = exact_duration(WINDOW), limits or {}
    return (
        banner.markdown(catalogued_modes, bottlenecks)
        + INTRO
        + CLASSES_INTRO.format(window=window)
        + "".join(_class(number, each, modes, changed) for number, each in enumerate(BOTTLENECKS))
        + TERMS_INTRO
        + "".join(runbooks.definitions([each.condition for each in BOTTLENECKS], changed))
        + TREE_INTRO.format(window=window)
        + code("mermaid", "\n".join(flowchart(changed)))
        + MODES_INTRO
        + "\n"
        + _modes(modes)
        + STRAGGLERS.format(window=window)
        + LIMITS_INTRO
        + "\n"
        + runbooks.limits_table(all_limits(modes))
        + COST_INTRO
        + runbooks.limits_table(PRICES)
        + COST_WORDS
        + table(("Recorded series", "Expression"), _cost())
    )


def _class(number: int, each: Bottleneck, modes: Sequence[FailureMode], limits: Limits) -> str:
    head = f"\n### {number}. {each.name}\n\n{each.means[0].upper()}{each.means[1:]}.\n\n"
    of_class = (mode for mode in modes if isinstance(mode.condition, Is) and mode.condition.name == each.name)
    alerts = [runbooks.link(mode.name, "runbooks/") for mode in of_class]
    alert = f"Alert: {', '.join(alerts)}." if alerts else WITHOUT_ALERT.get(each.name, "No alert.")
    return f"{head}{alert}\n\n" + runbooks.condition(each.condition, limits) + ADVICE.get(each.name, "")


def flowchart(limits: Limits) -> Iterator[str]:
    """Yield the classes as a decision tree in Mermaid: one question each, yes to its class, no to the next question."""
    yield "flowchart TD"
    for number, each in enumerate(BOTTLENECKS):
        yield f'  c{number}(["{each.name}"])'
        yield f"  style c{number} fill:{each.colour}"
        if number == len(BOTTLENECKS) - 1:
            break
        yield f'  q{number}{{{{"{_escaped(prose.sentence(each.condition, limits))}"}}}}'
        yield f"  q{number} -- yes --> c{number}"
        yield f"  q{number} -- no --> {_next(number + 1)}"


def _next(number: int) -> str:
    return f"q{number}" if number < len(BOTTLENECKS) - 1 else f"c{number}"


def _escaped(text: str) -> str:
    """Return the text escaped for a Mermaid label, with a line for each part of a long condition."""
    safe = text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
    for word in (" and ", " or ", ", unless "):
        safe = safe.replace(word, f"<br/>{word.strip(', ')} ")
    return safe


def _modes(modes: Sequence[FailureMode]) -> str:
    head = ("Failure mode", "Severity", "Hold", "Domain", "Signals", *(each.title for each in runbooks.EXPORTERS))
    return table(head, (_mode(mode) for mode in modes))


def _mode(mode: FailureMode) -> tuple[str, ...]:
    return (
        runbooks.link(mode.name, "runbooks/"),
        mode.severity.value,
        exact_duration(mode.hold) if mode.hold else "-",
        mode.domain.value,
        ", ".join(prose.title(signal) for signal in mode.needs) or mode.requires or "-",
        *runbooks.works(mode),
    )


def _cost() -> Iterator[tuple[str, str]]:
    groups = yaml.safe_load(rules.recording())["groups"]
    (found,) = (group["rules"] for group in groups if group["name"] == "gpu-accounting")
    for rule in found:
        yield f"`{rule['record']}`", f"`{' '.join(rule['expr'].split())}`"
