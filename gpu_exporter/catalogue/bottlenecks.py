"""What limits a GPU: one bottleneck at a time, the first that matches. Ground truth: measurements of real H200s and H100s.

This is the only definition of a class: the recorded rule, the page, `top`, `diagnose`, the API, reports and dashboards
read it. `time_shares.py` divides the same five minutes among causes; a class and these shares do not contradict each
other, and `tests/unit/diagnosis/test_class_and_shares.py` says what that means.

`DRAM_ACTIVE` does not exceed 0.9, and a kernel that waits for memory keeps its SMs *active*: the activity of the pipes
distinguishes memory-bound from compute-bound. The best GEMM has an occupancy of 0.14, so occupancy is not used.
A rank that waits in a collective spins on a few SMs with its engine busy.

Without profiling counters, engine activity is the driver's utilisation, which is `approximate`, and power tells a GPU
that computes from one that hardly works; what neither tells has no class. These conditions were chosen on H200s and
H100s whose counters were left out: `python -m tests.without_profiling`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import nic_signals as n
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.causes import COLOURS, Cause
from gpu_exporter.conditions.evaluate import SignalWindow, classes
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Classification,
    Compare,
    Condition,
    Fn,
    Is,
    Limit,
    Mark,
    OfBoard,
    Or,
    OrIfKnown,
    Over,
    PeerShare,
    Unless,
)

WINDOW = 300.0
CLASS = "gpu:bottleneck:class"
# Only without profiling counters: it stands for several classes, which only these counters can tell apart.
LOW_POWER_CLASS = "low-power"
# The load of a GPU that only looks busy: all of its time is wasted.
FAKE_LOAD = "fake-load"
LOW_POWER_CLASSES = frozenset({"waiting", "communicating", "underfilled", FAKE_LOAD, "pcie-bound"})

# fmt: off
IDLE_ENGINE    = Limit("idleEngine", 0.02, "ratio", "engine activity below which a GPU is idle", a.TIME)
QUIET_PCIE     = Limit("quietPcie", 0.02, "ratio", "PCIe link use at or above which the GPU counts as copying data (launching kernels alone uses less)", a.PCIE)
FULL_PCIE      = Limit("fullPcie", 0.70, "ratio", "PCIe link use at or above which the link counts as saturated", a.PCIE)
BUSY_ENGINE    = Limit("busyEngine", 0.85, "ratio", "engine activity at or above which the GPU does not wait for the CPU", a.TIME)
HALF_ENGINE    = Limit("halfEngine", 0.60, "ratio", "engine activity below which the GPU waits for the CPU or for data", a.TIME)
STALLED        = Limit("stalled", 0.15, "ratio", "share of time with at most 1 % of the SMs active, at or above which the GPU waits for the CPU or for data", a.TIME)
EMPTY_SM       = Limit("emptySm", 0.05, "ratio", "SM activity below which a kernel uses only a few SMs", a.SM)
SPINNING_SM    = Limit("spinningSm", 0.35, "ratio", "SM activity below which a rank possibly does nothing but wait in a collective", a.SM)
STEADY_SM      = Limit("steadySm", 0.05, "ratio", "standard deviation below which SM activity counts as constant", a.SM)
BUSY_SM        = Limit("busySm", 0.60, "ratio", "SM activity at or above which the kernels fill the GPU", a.SM)
QUIET_DRAM     = Limit("quietDram", 0.02, "ratio", "DRAM activity below which a GPU does not work on data", a.DRAM)
BUSY_DRAM      = Limit("busyDram", 0.60, "ratio", "DRAM activity at or above which bandwidth is the limit; at most 0.9", a.DRAM)
SOME_DRAM      = Limit("someDram", 0.015, "ratio", "DRAM activity at or above which kernels with idle pipes count as waiting for scattered memory accesses", a.DRAM)
LOW_DRAM       = Limit("lowDram", 0.3, "ratio", "DRAM activity below which arithmetic without tensor cores counts as the limit", a.DRAM)
BUSY_TENSOR    = Limit("busyTensor", 0.20, "ratio", "tensor core activity at or above which matrix arithmetic is the limit", a.PIPES)
MOSTLY_TENSOR  = Limit("mostlyTensor", 0.40, "ratio", "tensor core activity at or above which memory is not the limit", a.PIPES)
IDLE_TENSOR    = Limit("idleTensor", 0.02, "ratio", "tensor core activity below which tensor cores count as unused", a.PIPES)
BUSY_FLOAT     = Limit("busyFloat", 0.25, "ratio", "sum of FP64, FP32 and FP16 activity at or above which arithmetic is the limit; integer activity at or above which SMs do not wait for memory", a.PIPES)
BUSY_INT       = Limit("busyInt", 0.60, "ratio", "integer activity at or above which integer arithmetic is the limit; other kernels need up to 0.45 for their addresses", a.PIPES)
IDLE_PIPES     = Limit("idlePipes", 0.10, "ratio", "activity below which the arithmetic pipes (tensor; FP64, FP32 and FP16 together) count as idle", a.PIPES)
IDLE_FLOAT     = Limit("idleFloat", 0.02, "ratio", "sum of FP64, FP32 and FP16 activity at or above which a kernel computes instead of spinning", a.PIPES)
IDLE_INT       = Limit("idleInt", 0.1, "ratio", "integer activity at or above which a kernel computes instead of spinning", a.PIPES)
MOVING         = Limit("movingBytes", 1e9, "bytes per second", "traffic at or above which a copy counts as active", a.TRAFFIC, any_model="a copy or a collective moves ten times as much on the slowest link, launches alone a fifth of it")
TALKING        = Limit("talkingBytes", 5e6, "bytes per second", "NVLink traffic at or above which a collective or a copy counts as active", a.TRAFFIC, any_model="without a collective, NVLink carries nothing; with the smallest messages, forty times as much")
SMALL_TRAFFIC  = Limit("smallTrafficBytes", 5e7, "bytes per second", "PCIe traffic in both directions at or above which a rank without NVLink exchanges small messages", a.TRAFFIC, any_model="the smallest messages move four times as much, a rank that waits for one a fifth of it")
TALKING_NIC    = Limit("talkingNicBytes", 5e7, "bytes per second", "network traffic in each direction at or above which a GPU exchanges data with other nodes", a.TRAFFIC, any_model="what network cards carry does not depend on the GPU")
LAUNCH_DRAM    = Limit("launchDram", 0.05, "ratio", "DRAM activity below which kernels are too short for their launches", a.DRAM)
THROTTLED_TIME = Limit("throttledTime", 0.20, "ratio", "share of time with a busy engine and a clock lowered by heat or the power supply, at or above which this is what limits a GPU", a.TIME)
ALL_RANKS      = Limit("allRanks", 0.99, "ratio", "share of the other ranks that counts as all of them", a.PEERS)
HALF_UTIL      = Limit("halfUtilisation", 0.50, "ratio", "without profiling counters: utilisation below which the GPU waits for the CPU or for data", a.TIME)
LOW_POWER      = Limit("lowPower", 0.45, "ratio", "without profiling counters: power, as a share of its limit, below which a busy GPU waits, copies data or runs kernels that are too small for it", a.POWER)
HIGH_POWER     = Limit("highPower", 0.90, "ratio", "without profiling counters: power, as a share of its limit, at or above which a busy GPU possibly computes", a.POWER)
AT_POWER_LIMIT = Limit("atPowerLimit", 0.90, "ratio", "without profiling counters: share of time in which the power limit lowers the clock, at or above which a busy GPU computes", a.TIME)
LAUNCHING      = Limit("launchingBytes", 3.5e7, "bytes per second", "PCIe traffic to the GPU at or above which the CPU launches kernels all the time", a.TRAFFIC, any_model="what launches move depends on the CPU and the driver")
# fmt: on


def mean(signal: Signal) -> Over:
    """Return a signal's mean over the window of the classes."""
    return Over(signal, Fn.MEAN, WINDOW)


GR, SM, DRAM, TENSOR = mean(s.GR_ACTIVE), mean(s.SM_ACTIVE), mean(s.DRAM_ACTIVE), mean(s.TENSOR_ACTIVE)
RX, TX, NVLINK = mean(s.PCIE_RX_USE), mean(s.PCIE_TX_USE), mean(s.NVLINK)
FLOAT = Calc(Calc(mean(s.FP64_ACTIVE), "+", mean(s.FP32_ACTIVE)), "+", mean(s.FP16_ACTIVE))
INT = mean(s.INT_ACTIVE)

COPYING = Or(Compare(RX, ">=", QUIET_PCIE), Compare(TX, ">=", QUIET_PCIE))
# Reading from storage over the network is traffic in one direction.
SENDS = And(Compare(mean(n.TX), ">=", TALKING_NIC), Compare(mean(n.RX), ">=", TALKING_NIC))
# Without NVLink, a collective goes over PCIe, in both directions at once; between nodes, over the network.
TRAFFIC = Or(
    Compare(NVLINK, ">=", TALKING),
    OrIfKnown(And(Compare(RX, ">=", QUIET_PCIE), Compare(TX, ">=", QUIET_PCIE)), SENDS),
    name="traffic",
)
# Anything that moves data to or from this GPU. dcgm-exporter's own list lacks the generation and lanes of the link.
MOVES = Or(
    COPYING,
    Compare(NVLINK, ">=", TALKING),
    Compare(mean(s.PCIE_RX), ">=", MOVING),
    Compare(mean(s.PCIE_TX), ">=", MOVING),
    name="moves",
)
# Ranks that communicate move data over PCIe as well, in launch-bound jobs twice as much as over NVLink, and load nothing.
COLLECTIVES_COPY = Compare(NVLINK, ">=", TALKING)
BUSY = Compare(GR, ">=", BUSY_ENGINE)
FILLED = Compare(SM, ">=", BUSY_SM)
PARTLY_FILLED = Compare(SM, "<", BUSY_SM)
FILLS = And(BUSY, FILLED)
APPROXIMATE = Compare(Over(s.APPROXIMATE), "==", 1.0)
# Small gaps between launches and long stalls can have the same mean.
WAITS_FOR_HOST = OrIfKnown(
    Compare(GR, "<", HALF_ENGINE),
    And(Compare(GR, "<", BUSY_ENGINE), Compare(Over(s.SM_IDLE), ">=", STALLED)),
)
# Utilisation counts copies, too, and without its counter it is that of a moment.
_CLEARLY_WAITS = Unless(WAITS_FOR_HOST, And(Compare(GR, ">=", HALF_UTIL), APPROXIMATE))
_READS_MEMORY = Compare(DRAM, ">=", BUSY_DRAM)
_POWER = mean(s.POWER_USE)
# Any work that reaches the power limit makes the GPU lower its clock; on a board with a low limit, copies may do so.
COMPUTES_AT_LIMIT = Unless(
    And(
        Compare(OfBoard((mean(s.POWER_CAP),)), ">=", AT_POWER_LIMIT),
        Compare(_POWER, ">=", HIGH_POWER),
        And(BUSY, APPROXIMATE),
    ),
    _READS_MEMORY,
    name="computes_at_limit",
)
DRAWS_LITTLE = Unless(And(Compare(_POWER, "<", LOW_POWER), And(BUSY, APPROXIMATE)), _READS_MEMORY, name="draws_little")
_WORKS = Or(
    TRAFFIC,
    And(Compare(mean(s.PCIE_RX), ">=", SMALL_TRAFFIC), Compare(mean(s.PCIE_TX), ">=", SMALL_TRAFFIC)),
    Compare(FLOAT, ">=", IDLE_FLOAT),
    Compare(INT, ">=", IDLE_INT),
)
# Power does not distinguish it: a waiting rank draws from 0.18 to 0.31 of its limit, by model and protocol. Depending on
# the size of the message, it uses from 1 to 24 SMs.
SPINNING = Unless(
    And(
        Compare(Over(s.SM_ACTIVE, Fn.STDDEV, WINDOW), "<", STEADY_SM),
        Compare(DRAM, "<", QUIET_DRAM),
        Compare(TENSOR, "<", IDLE_TENSOR),
        And(BUSY, Compare(SM, "<", SPINNING_SM)),
    ),
    _WORKS,
    name="spinning",
)
# Without SM activity, as with the default fields of dcgm-exporter, a rank that computes in caches looks the same. All
# ranks of a job at once hardly do.
MAY_SPIN = Unless(
    Unless(And(Compare(DRAM, "<", QUIET_DRAM), And(BUSY, Compare(TENSOR, "<", IDLE_TENSOR))), Compare(SM, ">=", 0.0)),
    _WORKS,
    name="may_spin",
)
# Launches alone move data over PCIe: more than 1 kB each.
LAUNCHES = Unless(
    And(
        Compare(GR, ">=", IDLE_ENGINE),
        Compare(DRAM, "<", LAUNCH_DRAM),
        And(Or(Compare(SM, "<", SPINNING_SM), APPROXIMATE), Compare(mean(s.PCIE_RX), ">=", LAUNCHING)),
    ),
    Unless(COPYING, COLLECTIVES_COPY),
    name="launches",
)
IDLES = Unless(Compare(GR, "<", IDLE_ENGINE), MOVES, name="idles")
SPINS = Mark("spins", Or(SPINNING, MAY_SPIN))
NO_PROGRESS = Mark("stalled", Or(SPINNING, MAY_SPIN, IDLES))
HANGS = And(
    NO_PROGRESS.condition,
    Compare(PeerShare(NO_PROGRESS), ">=", ALL_RANKS),
    Or(SPINNING, MAY_SPIN, Compare(PeerShare(SPINS), ">", 0.0)),
    name="hangs",
)
# Without traffic, a rank waits for its first message, if it has peers at all.
WAITING = And(Compare(PeerShare(SPINS), ">=", 0.0), SPINNING, name="waiting")
THROTTLING = OfBoard((mean(s.HW_THERMAL), mean(s.SW_THERMAL), mean(s.POWER_BRAKE)))


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One answer to "what limits this GPU?". `colour` is how it is drawn, `cause` what it blames.

    `cause` is None if the class blames nothing: what takes most of the GPU's time then says whether it works. No colour
    is green, because part of the time is lost in most classes. Orange is for GPUs that wait for others, and grey,
    elsewhere, for what is unknown. They differ for people with each kind of colour blindness, too.
    """

    name: str
    condition: Condition
    means: str
    colour: str
    cause: Cause | None


BOTTLENECKS: tuple[Bottleneck, ...] = (
    Bottleneck(
        "throttled",
        Unless(And(Compare(THROTTLING, ">=", THROTTLED_TIME), Compare(GR, ">=", THROTTLED_TIME)), HANGS),
        "heat or the power supply lowers the clocks while the GPU works",
        COLOURS[Cause.THROTTLED],
        Cause.THROTTLED,
    ),
    Bottleneck(
        "idle",
        IDLES,
        "no kernel runs and no data is copied",
        COLOURS[Cause.NO_PROCESS],
        Cause.HOST,
    ),
    Bottleneck(
        "waiting",
        WAITING,
        "the GPU waits for other ranks of its job in a collective, and no data moves",
        COLOURS[Cause.PEERS],
        Cause.PEERS,
    ),
    Bottleneck(
        "pcie-bound",
        Or(Compare(RX, ">=", FULL_PCIE), Compare(TX, ">=", FULL_PCIE)),
        "the PCIe link is saturated in one direction",
        COLOURS[Cause.COPIES],
        Cause.COPIES,
    ),
    Bottleneck(
        FAKE_LOAD,
        Unless(
            And(Compare(DRAM, "<", QUIET_DRAM), And(BUSY, Compare(SM, "<", EMPTY_SM))),
            Or(MOVES, TRAFFIC),
        ),
        "the GPU is 100 % utilised according to nvidia-smi, but the SMs are nearly idle and no data moves",
        "#ce1638",
        Cause.UNDERFILLED,
    ),
    Bottleneck(
        "communicating",
        And(BUSY, PARTLY_FILLED, Or(TRAFFIC, SPINNING)),
        "the GPU exchanges data with other GPUs in a collective, or waits for them",
        "#fcb98b",
        Cause.PEERS,
    ),
    Bottleneck(
        "underfilled",
        And(BUSY, PARTLY_FILLED, Compare(DRAM, "<", BUSY_DRAM)),
        "kernels run without gaps, but each is too small to fill the SMs",
        COLOURS[Cause.UNDERFILLED],
        Cause.UNDERFILLED,
    ),
    Bottleneck(
        "data-loading-bound",
        Unless(And(_CLEARLY_WAITS, Compare(RX, ">=", QUIET_PCIE)), COLLECTIVES_COPY),
        "the GPU is often idle, waiting for data that comes over PCIe",
        "#5898fb",
        Cause.HOST,
    ),
    Bottleneck(
        "host-bound",
        And(Compare(GR, ">=", IDLE_ENGINE), _CLEARLY_WAITS),
        "the GPU is often idle, waiting for the CPU (launch-bound kernels, Python, preprocessing, small batches, "
        "checkpoints)",
        COLOURS[Cause.HOST],
        Cause.HOST,
    ),
    Bottleneck(
        "tensor-cores-idle",
        And(
            Compare(FLOAT, ">=", BUSY_FLOAT),
            Compare(DRAM, "<", LOW_DRAM),
            And(FILLED, Compare(TENSOR, "<", IDLE_TENSOR)),
        ),
        "the SMs compute, but not on the tensor cores",
        "#c0ab51",
        Cause.USEFUL,
    ),
    Bottleneck(
        "memory-bound",
        Or(
            And(BUSY, Compare(DRAM, ">=", BUSY_DRAM), Compare(TENSOR, "<", MOSTLY_TENSOR)),
            Unless(
                And(
                    Compare(DRAM, ">=", SOME_DRAM),
                    Compare(FLOAT, "<", IDLE_PIPES),
                    And(FILLED, Compare(TENSOR, "<", IDLE_PIPES)),
                ),
                Compare(INT, ">=", BUSY_FLOAT),
            ),
        ),
        "memory bandwidth is the limit, or the SMs wait for scattered data",
        "#005d6b",
        Cause.USEFUL,
    ),
    Bottleneck(
        "compute-bound",
        Or(
            And(
                FILLED,
                Or(Compare(TENSOR, ">=", BUSY_TENSOR), Compare(FLOAT, ">=", BUSY_FLOAT), Compare(INT, ">=", BUSY_INT)),
            ),
            # Tensor cores are never busier than their SMs, whose activity dcgm-exporter's own list lacks.
            Compare(TENSOR, ">=", BUSY_SM),
            COMPUTES_AT_LIMIT,
        ),
        "the SMs are busy with arithmetic",
        "#67cad3",
        Cause.USEFUL,
    ),
    Bottleneck(
        LOW_POWER_CLASS,
        DRAWS_LITTLE,
        "kernels or copies run all the time, but the GPU draws little power: it waits for other ranks, copies data, or "
        "runs kernels that are too small for it",
        "#7800ff",
        Cause.UNDERFILLED,
    ),
    Bottleneck(
        "mixed",
        Compare(SM, ">=", 0.0),
        "several things limit the GPU in turn, or none of the known limits is reached",
        "#7a279f",
        None,
    ),
)
BY_NAME = {bottleneck.name: bottleneck for bottleneck in BOTTLENECKS}
# The classes of ranks that wait for others.
WAITING_CLASSES = tuple(bottleneck.name for bottleneck in BOTTLENECKS if bottleneck.cause is Cause.PEERS)
LOST = Compare(Over(s.UP), "==", 0.0)
CLASSIFICATION = Classification(CLASS, {bottleneck.name: bottleneck.condition for bottleneck in BOTTLENECKS}, LOST)


def bottleneck_is(name: str) -> Is:
    """Return the condition that a GPU has this bottleneck."""
    return Is(CLASSIFICATION, BY_NAME[name].name)


def classified(window: SignalWindow) -> list[Bottleneck | None]:
    """Return the first bottleneck that is known to match each device, in the order of the devices.

    None if none is, or if the GPU does not answer.
    """
    return [BY_NAME[name] if name else None for name in classes(CLASSIFICATION, window)]
