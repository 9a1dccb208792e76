"""Render docs/signals.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_exporter.alerting import (
    allocation,
    banner,
    incidents,
    remediation,
    roofline,
    rules,
    runbooks,
    serving,
    training_jobs,
)
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.catalogue import signals as catalogued_signals
from gpu_exporter.catalogue.signals import FB_PEAK, POWER_INSTANT, POWER_NOW, SIGNALS
from gpu_exporter.conditions import prose
from gpu_exporter.conditions.signal import DEVICE, IDENTITY, OWNER, RATE_WINDOW, Read
from gpu_exporter.reports.markdown import table, ticked

SIGNALS_INTRO = f"""# Signals

A signal has one name, one unit and one set of labels, whichever exporter is scraped. Conditions, dashboards and
`gpu-exporter diagnose` read only signals. Each signal is a recording rule in `alerts/recording.yaml`. It uses the first
source that exists for a GPU: time integrals of gpu-exporter, classic names (of gpu-exporter or of dcgm-exporter up to
4.8), names of dcgm-exporter from 4.9 on. If two exporters are scraped, each GPU still appears once, by its UUID.

- Counters are read as their growth in {RATE_WINDOW}, by the time between its first and last scrape. `rate()` would be
  too low where the first scrape of the window failed: by 4 % on average if one scrape in ten fails. Gauges are read as
  they are. What changes between two scrapes is read from a counter, if there is one: a gauge shows only the moment of
  each scrape. Until a counter is {RATE_WINDOW} old, and for as long after a reset, the gauge is used.
- What must be as of now has *now* or *instant* in its name: `{POWER_NOW.record}` is the mean of a second,
  `{POWER_INSTANT.record}` a single sample.
- The energy counter of a GPU is read every 15 s, because a read costs 4 ms of CPU. In between,
  `gpu_energy_joules_total` rises with the driver's mean power of each second, and each read corrects it. So its rate is
  right over any scrape interval. `DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION` is what the driver said last.
- Samples of utilisation are read every 10 s. Each counts 10 s after it was taken, so `gpu_util_seconds_total` rises
  evenly and the signal is 10 s late.
- What ends a program lies between scrapes: `{FB_PEAK.record}` is the most memory in use within a minute, of all
  collections. Predictions and panels of memory use it. With dcgm-exporter, they see only the moment of each scrape.
- SM clocks have no counter, nor has PCIe traffic without profiling counters. Read their means, not single values.
- dcgm-exporter has counters of energy only; utilisation and activity are gauges. A load whose period divides the scrape
  interval is then recorded as busy or idle all the time: of an H100 that was busy 23 % of the time, with a period of
  3 s and a scrape every 15 s, dcgm-exporter's utilisation was 0 % in eight scrapes, and gpu-exporter's gauge, scraped
  0.8 s earlier, 95 to 97 %. gpu-exporter's counter said 22 %. Power was right with both, because both count energy.
- {ticked(DEVICE)} (the GPU instance, in MIG mode) identify a device. Further labels are {ticked(IDENTITY)}, and
  {ticked(OWNER)} if the owner of the GPU is known. Signals of hardware health have no owner labels.
- `Hostname` and `hostname` become `node`; `exported_pod` and `exported_namespace` become `pod` and `namespace`.
- A GPU that several pods share has no owner, and is therefore not compared with other ranks.
- The mean of a signal over a window is a series of its own, for example `gpu:sm_active:mean5m`.
- Without profiling counters, utilisation stands in for engine activity, and `gpu:approximate:bool` is 1
  ([what remains](without-profiling.md)). If gpu-exporter reads DCGM, which does not keep the driver's samples, engine
  activity stands in for utilisation instead.
- A signal that is derived from others has a value only if all of them have one.
- Signals and hardware states are evaluated at the evaluation interval of Prometheus. Signals from histograms, and rules
  on means over five minutes, are evaluated once a minute; shares of time by cause every two minutes.

"""

SHARED_INTRO = """
## Shared conditions

Conditions that several classes and alerts read are recorded for the GPUs for which they are true.

"""

ALLOCATION_INTRO = """
## Allocation

The GPUs that Kubernetes has allocated come from [kube-state-metrics](https://github.com/kubernetes/kube-state-metrics),
which must be scraped, with or without `honorLabels`. Without it, these series do not exist, and
[GpuAllocationFragmented](runbooks/gpuallocationfragmented.md) never fires.

- `resource` distinguishes GPUs (`nvidia_com_gpu`), shares of a GPU (`nvidia_com_gpu_shared`) and kinds of MIG
  instances.
- *free* is what a pod could get now; nodes that are cordoned, not ready, or tainted with `NoSchedule` or `NoExecute`
  have none, except for taints that pods with GPUs usually tolerate ({taints}). *pending* pods have no node
  yet, so these series have only a namespace and a cluster. *starved* pods have been pending for half an hour or longer.
- A pool is the value of the first of these node labels that kube-state-metrics exposes
  (`--metric-labels-allowlist=nodes=[…]`): {pools}.
  Without any of them, all nodes are one pool without a name. Racks come from {racks} in the same way.
- GPUs that pods have through resource claims (DRA) are not included.

"""

RECORDED_HEAD = ("Recorded series", "Meaning", "Labels")
INCIDENTS_INTRO = """
## Incidents

An incident is an alert that no other one explains, on one node or in the job that it slows down. What explains what is
in each [runbook](runbooks/README.md) (*Related alerts*). The label `place` is the node or the job; `cause` and `xid`
name the fault that [many nodes](runbooks/gpufleetfault.md) have.

"""
JOBS_INTRO = """
## Training jobs

What [training loops](jobs.md) say is recorded for each rank and for each job, whose ranks may be on many nodes. Means
are over five minutes. A job is identified by its namespace, its workload and its `job_id`, because programs of two
teams may have the same name. Without training loops, these series do not exist.

"""
ROOFLINE_INTRO = """
## Achieved rates

How close each GPU is to what it can reach: see [platforms](platforms.md#what-does-each-model-reach).

"""
SERVING_INTRO = """
## Inference servers

These come from the metrics of vLLM, TGI or Triton, if Prometheus scrapes them with the labels `namespace` and `pod`:
see [batch size of inference servers](diagnose.md#which-batch-size-suits-an-inference-server).

"""
REMEDIATION_INTRO = """
## Remediation

These come from the [remediation controller](remediation.md#how-do-i-know-what-it-did), if it runs and is scraped.

"""


def signals() -> str:
    """Return docs/signals.md: one row per signal, in the order of the catalogue."""
    rows = [(signal, runbooks.signal_row(signal, _made)) for signal in SIGNALS]
    head = ("Signal", "Unit", *runbooks.SIGNAL_HEAD[1:])
    lines = ((name, signal.unit.replace("_", " "), *cells) for signal, (name, *cells) in rows)
    text = banner.markdown(catalogued_signals) + SIGNALS_INTRO + table(head, lines)
    named = ((f"`{name}`", prose.sentence(each, {})) for name, each in rules.shared_conditions().items())
    text += SHARED_INTRO + table(("Recorded series", "Condition"), named)
    pools, racks = (ticked(reversed(each)) for each in (allocation.POOL_LABELS, allocation.RACK_LABELS))
    jobs = (*training_jobs.JOBS, *training_jobs.PROMPT, training_jobs.TOKEN_COST)
    return (
        text
        + ALLOCATION_INTRO.format(pools=pools, racks=racks, taints=ticked(allocation.TOLERATED_TAINTS))
        + table(RECORDED_HEAD, _recorded(allocation.ALLOCATION))
        + ROOFLINE_INTRO
        + table(RECORDED_HEAD, _recorded(roofline.ROOFLINE))
        + SERVING_INTRO
        + table(RECORDED_HEAD, _recorded(serving.SERVING))
        + JOBS_INTRO
        + table(RECORDED_HEAD, _recorded(jobs))
        + INCIDENTS_INTRO
        + table(RECORDED_HEAD, _recorded((*incidents.ALERTS, *incidents.INCIDENTS, *incidents.COSTS)))
        + REMEDIATION_INTRO
        + table(RECORDED_HEAD, _recorded(remediation.REMEDIATION))
    )


def _recorded(series: Iterable[Aggregate]) -> Iterator[tuple[str, ...]]:
    return ((f"`{each.record}`", each.help, ticked(("cluster", *each.by))) for each in series)


def _made(way: Read) -> str:
    return f"{way.name} == {' or '.join(map(str, way.codes))}" if way.codes else way.promql()
