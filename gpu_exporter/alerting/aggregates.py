"""Series recorded per node, workload and cluster: dashboards of a fleet read these instead of every GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import bottlenecks
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import LEAST_LOSS, OWN_CAUSES, SHARES, Cause
from gpu_exporter.catalogue.time_shares import LABEL, RECORD
from gpu_exporter.conditions.signal import DEVICE, DEVICE_INFO, DEVICE_KEY, IDENTITY_INFO, OWNER, Signal

_OWNER, _OWNED = "cluster, namespace, workload", ", ".join((*DEVICE, *OWNER))
# For how long a failed scrape, or a restart of Prometheus, leaves no gap in what is added up: Prometheus regards a
# sample as the present value for as long. Means over five minutes and rates, which are known again some minutes after
# a gap, are kept for longer.
BRIDGED, KEPT = "5m", "10m"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A recorded series. `{price}` in the expression is replaced by the price; `by` are labels besides `cluster`."""

    record: str
    help: str
    expression: str
    by: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.record.rpartition(":")[2]


def _of_workload(name: str, help: str, expression: str) -> Aggregate:
    return Aggregate(f"workload:{name}", help, expression, ("namespace", "workload"))


def _mean(level: str, by: tuple[str, ...], signal: Signal) -> Aggregate:
    labels = ", ".join(("cluster", *by))
    help = f"{signal.help}, mean over GPUs"
    return Aggregate(f"{level}:{signal.name}:{signal.unit}", help, f"avg by ({labels}) ({signal.record})", by)


def _number(level: str, by: tuple[str, ...], signal: Signal, help: str) -> Aggregate:
    labels = ", ".join(("cluster", *by))
    return Aggregate(f"{level}:{signal.name}:gpus", help, f"sum by ({labels}) ({signal.record})", by)


_INSTANCES = f'{DEVICE_INFO}{{GPU_I_ID!=""}}'
_SLICES = f"max by ({DEVICE_KEY}) ({m.INSTANCE_SLICES})"
# A MIG instance counts as a share of its GPU, by compute slices if they are known. The same share applies to its power
# and its price.
SHARE = Aggregate(
    "gpu:share:ratio",
    "Share of a GPU; below 1 for MIG instances",
    f"""{DEVICE_INFO} unless on (cluster, UUID) {_INSTANCES}
or
{_INSTANCES} * on ({DEVICE_KEY}) group_left () (
  {_SLICES} / on (cluster, UUID) group_left () sum by (cluster, UUID) ({_SLICES})
)
or
{_INSTANCES} / on (cluster, UUID) group_left () count by (cluster, UUID) ({_INSTANCES})""",
    ("node", "gpu", "namespace", "workload"),
)
# What is added up must not depend on whether the last scrape of a GPU failed. A GPU that is gone for a few minutes and
# then has the same owner as before had it in the meantime, too: that is only known when it is back. A GPU that stays
# away, or is back with another owner, has no owner meanwhile.
_LAST_SEEN = Aggregate(
    "gpu:last_seen:timestamp",
    "When a GPU was seen last, in the minute in which it is gone",
    f"timestamp({SHARE.record} offset 1m) unless on ({DEVICE_KEY}) {SHARE.record}",
    ("node", "gpu", "namespace", "workload"),
)
_LAST = f"(timestamp({SHARE.record} offset 1m) or on ({DEVICE_KEY}) last_over_time({_LAST_SEEN.record}[{BRIDGED}30s]))"
_UNSEEN = Aggregate(
    "gpu:unseen:hours",
    "Time for which a GPU that is back was gone, if it has the same owner as before: at most five minutes",
    f"{SHARE.record} * (timestamp({SHARE.record}) - {_LAST} - 60 > 30) / 3600",
    ("node", "gpu", "namespace", "workload"),
)
# GPUs that do not answer, unless that says nothing about them.
LOST = f"({s.UP.record} == 0 unless on (cluster, UUID) {s.UNOBSERVED.record} == 1)"


def _kept(series: str) -> str:
    """Return series of GPUs and owners, also for a while after they ended, while the GPU has this owner."""
    return f"last_over_time({series}[{KEPT}]) and on ({_OWNED}) {SHARE.record}"


_WORKING = f"max by ({_OWNED}) ({SHARE.record} unless on (cluster, UUID) {LOST})"
GPUS = _of_workload("gpus:count", "GPUs that it uses", f"sum by ({_OWNER}) ({SHARE.record})")
# From the energy counter of the GPU; from power if the counter is not collected.
_POWER = " or ".join(f"max by (cluster, UUID) (last_over_time({each.record}[{KEPT}]))" for each in (s.ENERGY, s.POWER))
ENERGY = _of_workload(
    "energy:kwh_per_hour",
    "Energy that its GPUs use in an hour",
    f"sum by ({_OWNER}) ({_WORKING} * on (cluster, UUID) group_left () ({_POWER})) / 1000",
)
ELECTRICITY = _of_workload("electricity:usd_per_hour", "Price of the energy", f"{ENERGY.record} * {{usdPerKwh}}")
GPU_COST = _of_workload("cost:usd_per_hour", "Price of its GPUs", f"{GPUS.record} * {{usdPerGpuHour}}")
TIME = Aggregate(
    "workload:time:gpus",
    "GPUs by where their time goes: added up over an hour, GPU-hours by cause",
    f"sum by ({_OWNER}, {LABEL}) (last_over_time({RECORD}[{KEPT}]) * on ({_OWNED}) group_left () {_WORKING})",
    ("namespace", "workload", LABEL),
)
TIME_COST = Aggregate(
    "workload:time_cost:usd_per_hour",
    "Price of the GPU time by where it goes",
    f"{TIME.record} * {{usdPerGpuHour}}",
    ("namespace", "workload", LABEL),
)
CLUSTER_TIME = Aggregate(
    "cluster:time:gpus", "GPUs by where their time goes", f"sum by (cluster, {LABEL}) ({TIME.record})", (LABEL,)
)
# Dashboards read it, because few GPUs are lost: the state of all GPUs of a large fleet would take long.
LOST_GPUS = Aggregate(
    "gpu:lost:info",
    "GPUs that do not answer",
    f"{DEVICE_INFO} and on (cluster, UUID) {s.UP.record} == 0",
    ("node", "gpu", "UUID", "namespace", "workload"),
)
# Waste is lost time, except for SMs that are empty while a kernel runs, and all the time of a fake load and of a lost
# GPU. Where SM activity is unknown, idle time counts.
_WASTED = "|".join(cause.value for cause in SHARES if cause.is_waste)
_FAKE = f'{bottlenecks.CLASS}{{class="{bottlenecks.FAKE_LOAD}"}}'
_NO_FAKE = _FAKE.replace("=", "!=")
WASTED = Aggregate(
    "gpu:wasted:ratio",
    "Share of time that is wasted",
    f"""{SHARE.record} * 0 + 1 and on (cluster, UUID) {LOST}
or on ({DEVICE_KEY})
max without (class) ({_kept(_FAKE)} unless on ({DEVICE_KEY}) {_NO_FAKE}) * 0 + 1
or on ({DEVICE_KEY})
sum without ({LABEL}) ({_kept(f'{RECORD}{{{LABEL}=~"{_WASTED}"}}')})
or on ({DEVICE_KEY})
1 - ({_kept(bottlenecks.GR.record)} or {bottlenecks.GR.record} unless on ({DEVICE_KEY}) {SHARE.record})""",
    ("node", "gpu", "namespace", "workload"),
)
WASTED_COST = _of_workload(
    "wasted_cost:usd_per_hour",
    "Price of the wasted GPU time",
    f"sum by ({_OWNER}) "
    f"({WASTED.record} * on ({DEVICE_KEY}) group_left () max by ({DEVICE_KEY}) ({SHARE.record})) * {{usdPerGpuHour}}",
)
# What hourly sums add once GPUs are back: as much as their workload uses now.
_UNSEEN_HOURS = _of_workload(
    "unseen:hours",
    "For how long its GPUs were gone that are back, mean over all of its GPUs",
    f"sum by ({_OWNER}) ({_UNSEEN.record}) / on ({_OWNER}) {GPUS.record}",
)


def _unseen(name: str, help: str, of: Aggregate) -> Aggregate:
    expression = f"{of.record} * on ({_OWNER}) group_left () {_UNSEEN_HOURS.record}"
    return Aggregate(f"workload:unseen_{name}", help, expression, of.by)


UNSEEN_GPUS = _unseen("gpus:hours", "GPU-hours while its GPUs were gone", GPUS)
UNSEEN_TIME = _unseen("time:hours", "GPU-hours while its GPUs were gone, by where they went", TIME)
UNSEEN_COST = _unseen("cost:usd", "Price of its GPUs while they were gone", GPU_COST)
UNSEEN_WASTED = _unseen("wasted_cost:usd", "Price of the GPU time wasted while its GPUs were gone", WASTED_COST)
UNSEEN_ENERGY = _unseen("energy:kwh", "Energy of its GPUs while they were gone", ENERGY)
# Ranks that are seen to wait: it costs them most of their time, or is their class. A job that computes communicates as
# well, and its ranks spend some of their time waiting.
_PEERS = f'{RECORD}{{{LABEL}="{Cause.PEERS.value}"}}'
WAITING_CLASS = f'{bottlenecks.CLASS}{{class=~"{"|".join(bottlenecks.WAITING_CLASSES)}"}}'
# All time of a fake load is its own waste.
WAITS = (
    f"{_PEERS} >= {LEAST_LOSS} and on ({DEVICE_KEY}) "
    f"({WAITING_CLASS} or on ({DEVICE_KEY}) {_PEERS} >= on ({DEVICE_KEY}) max by ({DEVICE_KEY}) ({RECORD})) "
    f"unless on ({DEVICE_KEY}) {_FAKE}"
)
_ON_NODE = "cluster, node, namespace, workload"
WAITING = Aggregate(
    "node:waiting:gpus",
    "GPUs that wait for other ranks",
    f"count by ({_ON_NODE}) ({WAITS})",
    ("node", "namespace", "workload"),
)
WAITING_TIME = Aggregate(
    "node:waiting_time:gpus",
    "GPUs by the time in which they wait for other ranks",
    f"sum by ({_ON_NODE}) (({WAITS}) * on ({DEVICE_KEY}) group_left () max by ({DEVICE_KEY}) ({SHARE.record}))",
    ("node", "namespace", "workload"),
)
# What a GPU wastes by itself: without waiting for others, and all of its time if it is lost.
OWN_WASTE = f"""(
  group by ({DEVICE_KEY}) {LOST}
  or on ({DEVICE_KEY})
  (
    group by ({DEVICE_KEY}) ({_FAKE})
    or
    sum by ({DEVICE_KEY}) ({RECORD}{{{LABEL}=~"{"|".join(cause.value for cause in OWN_CAUSES)}"}})
  ) * on ({DEVICE_KEY}) group_left () max by ({DEVICE_KEY}) ({SHARE.record})
)"""
NAMESPACE_WASTED = Aggregate(
    "namespace:wasted_cost:usd_per_hour",
    "Price of the wasted GPU time",
    f"sum by (cluster, namespace) ({WASTED_COST.record})",
    ("namespace",),
)
NODE_POWER = Aggregate("node:power:watts", "Power", f"sum by (cluster, node) ({s.POWER.record})", ("node",))
NODE_GPUS = Aggregate("node:gpus:count", "GPUs", f"count by (cluster, node) ({IDENTITY_INFO})", ("node",))
CLASSES = Aggregate(
    "cluster:classes:count", "GPUs by what limits them", f"count by (cluster, class) ({bottlenecks.CLASS})", ("class",)
)
COSTS = (
    SHARE,
    _LAST_SEEN,
    _UNSEEN,
    GPUS,
    ENERGY,
    ELECTRICITY,
    GPU_COST,
    TIME,
    TIME_COST,
    CLUSTER_TIME,
    WASTED,
    WASTED_COST,
    _UNSEEN_HOURS,
    UNSEEN_GPUS,
    UNSEEN_TIME,
    UNSEEN_COST,
    UNSEEN_WASTED,
    UNSEEN_ENERGY,
    WAITING,
    WAITING_TIME,
    NAMESPACE_WASTED,
    NODE_POWER,
    NODE_GPUS,
    CLASSES,
)

# A node whose GPUs have different models has several series.
NODE_HARDWARE = Aggregate(
    "node:hardware:info",
    "Nodes with the model of their GPUs and the version of their driver",
    f"""group by (cluster, node, model, driver_version) ({m.INFO}{{node!=""}})
or on (cluster, node)
group by (cluster, node, model) (label_replace({IDENTITY_INFO}, "model", "$1", "modelName", "(.+)"))""",
    ("node", "model", "driver_version"),
)
CLUSTER_NODES = Aggregate("cluster:nodes:count", "Nodes with GPUs", f"count by (cluster) ({NODE_GPUS.record})")
CLUSTER_GPUS = Aggregate("cluster:gpus:count", "GPUs", f"sum by (cluster) ({NODE_GPUS.record})")
CLUSTER_POWER = Aggregate("cluster:power:watts", "Power of all GPUs", f"sum by (cluster) ({NODE_POWER.record})")
CLUSTER_UP = _number("cluster", (), s.UP, "GPUs that can be read")
CLUSTER_UNHEALTHY = _number("cluster", (), s.UNHEALTHY, "GPUs that are unhealthy")
NODE_UNHEALTHY = _number("node", ("node",), s.UNHEALTHY, "GPUs that are unhealthy")
NODE_DEGRADED = _number("node", ("node",), s.DEGRADED, "GPUs that are degraded")
NODE_TEMP = Aggregate(
    "node:temp_max:celsius",
    "Temperature of the hottest GPU",
    f"max by (cluster, node) ({s.GPU_TEMP.record})",
    ("node",),
)
_SHOWN = (s.GR_ACTIVE, s.SM_ACTIVE, s.TENSOR_ACTIVE, s.DRAM_ACTIVE, s.UTIL)
NODE_SM = _mean("node", ("node",), s.SM_ACTIVE)
CLUSTER_GR, CLUSTER_SM, CLUSTER_TENSOR, CLUSTER_DRAM, CLUSTER_UTIL = (_mean("cluster", (), each) for each in _SHOWN)
WORKLOAD_GR, WORKLOAD_SM = (_mean("workload", ("namespace", "workload"), each) for each in (s.GR_ACTIVE, s.SM_ACTIVE))
# Read by the fleet dashboard: few series, no matter how many GPUs there are.
FLEET = (
    NODE_HARDWARE,
    CLUSTER_NODES,
    CLUSTER_GPUS,
    CLUSTER_POWER,
    CLUSTER_UP,
    CLUSTER_UNHEALTHY,
    NODE_UNHEALTHY,
    NODE_DEGRADED,
    NODE_TEMP,
    NODE_SM,
    CLUSTER_GR,
    CLUSTER_SM,
    CLUSTER_TENSOR,
    CLUSTER_DRAM,
    CLUSTER_UTIL,
    WORKLOAD_GR,
    WORKLOAD_SM,
)
