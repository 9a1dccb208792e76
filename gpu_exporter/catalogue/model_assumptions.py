"""What the limits of conditions assume about GPU models: every limit is in one group, by what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.condition_walks import comparisons, limits_of, marks_of
from gpu_exporter.catalogue.conditions import Compare, Condition, Limit
from gpu_exporter.catalogue.distributions import Within
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.formulas import parts
from gpu_exporter.catalogue.signal import Read
from gpu_exporter.catalogue.time_shares import TIME_SHARES

# The edge of the histogram that the signal `sm_idle` is computed from is fixed, too, but is no limit that users change.
IDLE_EDGE = "edge of sm_idle"


@dataclass(frozen=True, slots=True)
class Group:
    """Limits that are compared with readings of one kind: which of their assumptions are measured, which are not."""

    name: str
    limits: frozenset[str]
    measured: str
    extrapolated: str


GROUPS: tuple[Group, ...] = (
    Group(
        "shares of time",
        frozenset(
            (
                "idleEngine",
                "busyEngine",
                "halfEngine",
                "stalled",
                "linkBusy",
                "hotHardware",
                "hotDriver",
                "powerBrake",
                "starvedGap",
                "sameEngine",
                "lateGap",
            )
        ),
        "Time means the same on every model.",
        "With few SMs, a kernel of one block is more than 1 % of the SMs, so the share of time with idle SMs is lower "
        "than on large GPUs, and short stalls count as work.",
    ),
    Group(
        "SM activity",
        frozenset(("emptySm", "spinningSm", "busySm", "steadySm", "hoarderSm", "slowGap", "slowerGap")),
        "One thread reads 0.008 and a rank that waits in NCCL 0.18 on H100 and H200: 1 and 24 of 132 SMs.",
        "On other models, the same blocks on their number of SMs. How many blocks NCCL uses there is assumed. In MIG "
        "mode, activity is assumed to be a share of the SMs of the instance.",
    ),
    Group(
        "DRAM activity",
        frozenset(("quietDram", "busyDram", "someDram", "lowDram", "launchDram")),
        "HBM3 and HBM3e reach 0.89 when a kernel copies; a rank that waits reads 0.",
        "GDDR6 (L4, L40S) and HBM2e are assumed to reach as much, also for the headroom that "
        "`diagnose` shows. Matrix products load the memory by FLOP/s per byte/s "
        "of the model.",
    ),
    Group(
        "pipe activity",
        frozenset(
            ("busyTensor", "mostlyTensor", "idleTensor", "busyFloat", "idlePipes", "idleFloat", "idleInt", "busyInt")
        ),
        "Shares of the cycles of one SM, on Hopper.",
        "Other architectures have other numbers of units per SM: on Ada, half of the FP32 units also do integers, so "
        "the same kernel reads another activity of the integer pipe. "
        "DCGM does not report the FP64 pipe of L4 and L40S, so the sum of the floating-point pipes is unknown there.",
    ),
    Group(
        "time shares",
        frozenset(("waitingSm", "workingSm", "linkLimit")),
        "The SM activity of ranks that wait (0.17) and work (0.94), and the share of the link that copies use (0.92), "
        "on H100 and H200; of an H100, 0.79 while another one copied, too.",
        "On other models, waiting ranks fill another share of the SMs, so slightly more or less time counts as waiting "
        "(see below). Kernels that leave SMs empty while they work count as waiting, too.",
    ),
    Group(
        "use of the PCIe link",
        frozenset(("quietPcie", "fullPcie")),
        "Generation 5 with 16 lanes: full copies use 0.93 of the link, the fastest launches 0.003.",
        "Generation 4 and 6: the same bytes on another capacity. GB200 copies over NVLink-C2C, which is not a PCIe "
        "link: its PCIe traffic says nothing about the host. MIG instances have no PCIe traffic of their own.",
    ),
    Group(
        "traffic in bytes per second",
        frozenset(("movingBytes", "talkingBytes", "talkingNicBytes", "launchingBytes", "smallTrafficBytes")),
        "Traffic differs by orders of magnitude: NVLink carries 0 in a hang and 200 MB/s or more in collectives; "
        "launches alone move 60 to 330 MB/s over PCIe.",
        "Launch traffic depends on the driver and the CPU, not on the model, unless launches go over NVLink-C2C.",
    ),
    Group(
        "host evidence",
        frozenset(
            (
                *("cpuThrottled", "cpusFull", "launchSaturated", "launchStarved", "launchWaiting", "remoteNode"),
                *("shmFull", "storageBlocked", "swapFaults", "swappedBytes", "workerBusy"),
            )
        ),
        "What the kernel says of processes does not depend on the GPU.",
        "Nothing.",
    ),
    Group(
        "network between nodes",
        frozenset(("nicFlaps", "nicFullRate", "nicLinkErrors", "nicRetransmits", "nicSlowRail", "nicFar")),
        "States and counters of network cards do not depend on the GPU. None was measured on real network cards.",
        "Nothing.",
    ),
    Group(
        "training loops",
        frozenset(("dataShare", "pausedLoop", "stuckPause")),
        "Shares of the time of a loop do not depend on the GPU.",
        "Nothing.",
    ),
    Group(
        "comparison with peers",
        frozenset(("victims", "allRanks", "alike", "unalike", "standsOut")),
        "All ranks of a job run on the same model, so its data cancels out.",
        "Jobs on mixed models are not compared: `modelName` is part of a job's identity.",
    ),
    Group(
        "device memory",
        frozenset(("heldMemory", "hoardedMemory", "fullMemory", "emptyMemory")),
        "Shares of the memory; 1 GB as more than a CUDA context needs, and 0.2 GB as less.",
        "A context is assumed to need between 0.2 and 1 GB on every model; the smallest slice has 5 GB.",
    ),
    Group(
        "power",
        frozenset(("powerSwing", "coarsePower")),
        "Used only by GpuPowerOscillation, which is about power itself. No other condition reads power.",
        "On a board of 72 W (L4), no swing exceeds 50 W, the width of the histogram's buckets; there, the alert "
        "depends on instantaneous power.",
    ),
    Group(
        "temperature",
        frozenset(("thermalMargin",)),
        "A distance from the slowdown temperature that the driver reports for this board.",
        "GPUs that report neither a margin nor a threshold are never reported as hot.",
    ),
    Group(
        "errors and ages",
        frozenset(("xidRecent", "eccStorm", "nvlinkErrors", "nvlinkRecoveries", "stale")),
        "Counts and times do not depend on the model.",
        "More memory has more corrected errors at the same rate per bit.",
    ),
)


def conditions() -> Iterator[tuple[str, Condition]]:
    """Yield all conditions of classes, failure modes and time shares, with their names."""
    yield from ((each.name, each.condition) for each in BOTTLENECKS)
    yield from ((mode.name, mode.condition) for mode in MODES if mode.condition)
    for cause, share in TIME_SHARES.items():
        yield from ((f"time share {cause.value}", part) for part in parts(share) if isinstance(part, Condition))


def all_comparisons(condition: Condition) -> Iterator[Compare]:
    """Yield the comparisons of a condition and of the marks that it reads on other ranks."""
    for compare in comparisons(condition):
        yield compare
        for mark in marks_of(compare):
            yield from all_comparisons(mark.condition)


def limits() -> Mapping[str, Limit]:
    """Return every limit that a condition or a time share reads, by name."""
    compared = (limit for _, condition in conditions() for limit in limits_of(condition))
    computed = (part for share in TIME_SHARES.values() for part in parts(share) if isinstance(part, Limit))
    return {limit.name: limit for limit in (*compared, *computed)}


def fixed_numbers() -> Mapping[str, float]:
    """Return the values that expectations refer to: the limits, and the edge that is part of a signal."""
    (edge,) = (
        way.shape.edge for way in s.SM_IDLE.definitions if isinstance(way, Read) and isinstance(way.shape, Within)
    )
    return {IDLE_EDGE: edge, **{name: limit.value for name, limit in limits().items()}}
