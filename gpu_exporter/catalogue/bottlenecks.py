"""What limits a GPU: one bottleneck at a time, the first that matches. Ground truth: measurements of real H200s.

`DRAM_ACTIVE` tops out near 0.9, and a kernel that waits for memory keeps its SMs *active*: which pipes work
distinguishes memory-bound from compute-bound. The best GEMM runs at an occupancy of 0.14, so occupancy decides nothing.
A rank that waits in a collective spins on a few SMs with its engine busy.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.conditions import (
    And,
    Calc,
    Classification,
    Compare,
    Condition,
    Fn,
    Is,
    Limit,
    Or,
    OrIfKnown,
    Over,
    Unless,
)
from gpu_exporter.catalogue.evaluate import Device, Window, class_of
from gpu_exporter.catalogue.signal import Signal

WINDOW = 300.0
CLASS = "gpu:bottleneck:class"

# fmt: off
IDLE_ENGINE    = Limit("idleEngine", 0.02, "ratio", "engine activity below which a GPU does nothing")
QUIET_PCIE     = Limit("quietPcie", 0.02, "ratio", "share of the PCIe link that is more than launches need")
FULL_PCIE      = Limit("fullPcie", 0.70, "ratio", "share of the PCIe link at which it is full; gaps take the rest")
BUSY_ENGINE    = Limit("busyEngine", 0.85, "ratio", "engine activity at which the GPU does not wait for its host")
HALF_ENGINE    = Limit("halfEngine", 0.60, "ratio", "engine activity below which the GPU waits for its host")
STALLED        = Limit("stalled", 0.15, "ratio", "share of time with SMs at rest at which a GPU waits for its host")
EMPTY_SM       = Limit("emptySm", 0.05, "ratio", "SM activity of a kernel that uses a handful of SMs")
SPINNING_SM    = Limit("spinningSm", 0.35, "ratio", "most SM activity of a collective that only waits")
STEADY_SM      = Limit("steadySm", 0.05, "ratio", "standard deviation of SM activity that is constant")
BUSY_SM        = Limit("busySm", 0.60, "ratio", "SM activity at which the chip is filled")
QUIET_DRAM     = Limit("quietDram", 0.02, "ratio", "memory activity of a GPU that touches no data")
BUSY_DRAM      = Limit("busyDram", 0.60, "ratio", "memory activity that limits; 0.9 is the most that is ever reached")
SOME_DRAM      = Limit("someDram", 0.05, "ratio", "memory activity of a kernel that waits for scattered data")
BUSY_TENSOR    = Limit("busyTensor", 0.20, "ratio", "tensor pipe activity of real matrix work")
MOSTLY_TENSOR  = Limit("mostlyTensor", 0.40, "ratio", "tensor pipe activity at which memory can't be what limits")
IDLE_TENSOR    = Limit("idleTensor", 0.02, "ratio", "tensor pipe activity of work that does not use it")
BUSY_FLOAT     = Limit("busyFloat", 0.25, "ratio", "FP64, FP32 and FP16 pipe activity together of real arithmetic")
IDLE_PIPES     = Limit("idlePipes", 0.10, "ratio", "activity of each kind of pipe when all of them wait")
IDLE_POWER     = Limit("idlePower", 0.30, "ratio", "share of the power limit of a GPU that only spins or waits")
MOVING         = Limit("movingBytes", 1e9, "bytes per second", "traffic of a working collective, or of copies")
# fmt: on


def mean(signal: Signal) -> Over:
    """A signal over the window of the classes."""
    return Over(signal, Fn.MEAN, WINDOW)


GR, SM, DRAM, TENSOR = mean(s.GR_ACTIVE), mean(s.SM_ACTIVE), mean(s.DRAM_ACTIVE), mean(s.TENSOR_ACTIVE)
RX, TX, NVLINK, POWER = mean(s.PCIE_RX_USE), mean(s.PCIE_TX_USE), mean(s.NVLINK), mean(s.POWER_USE)
FLOAT = Calc(Calc(mean(s.FP64_ACTIVE), "+", mean(s.FP32_ACTIVE)), "+", mean(s.FP16_ACTIVE))
INT = mean(s.INT_ACTIVE)

COPYING = Or(Compare(RX, ">=", QUIET_PCIE), Compare(TX, ">=", QUIET_PCIE))
# Without NVLink, a collective goes over PCIe, in both directions at once.
TRAFFIC = Or(
    Compare(NVLINK, ">=", MOVING),
    And(Compare(RX, ">=", QUIET_PCIE), Compare(TX, ">=", QUIET_PCIE)),
    name="traffic",
)
# Anything that moves data to or from this GPU. dcgm-exporter's own list lacks the generation and lanes of the link.
MOVES = Or(
    COPYING,
    Compare(NVLINK, ">=", MOVING),
    Compare(mean(s.PCIE_RX), ">=", MOVING),
    Compare(mean(s.PCIE_TX), ">=", MOVING),
    name="moves",
)
BUSY = Compare(GR, ">=", BUSY_ENGINE)
FILLED = Compare(SM, ">=", BUSY_SM)
PARTLY_FILLED = Compare(SM, "<", BUSY_SM)
# A mean near that of small gaps between launches may hide stalls in which nothing runs at all.
WAITS_FOR_HOST = OrIfKnown(
    Compare(GR, "<", HALF_ENGINE),
    And(Compare(GR, "<", BUSY_ENGINE), Compare(Over(s.SM_IDLE), ">=", STALLED)),
)
SPINNING = Unless(
    And(
        BUSY,
        Compare(SM, ">=", EMPTY_SM),
        Compare(SM, "<", SPINNING_SM),
        Compare(Over(s.SM_ACTIVE, Fn.STDDEV, WINDOW), "<", STEADY_SM),
        Compare(DRAM, "<", QUIET_DRAM),
        Compare(TENSOR, "<", IDLE_TENSOR),
        Compare(POWER, "<", IDLE_POWER),
    ),
    TRAFFIC,
    name="spinning",
)
IDLES = Unless(Compare(GR, "<", IDLE_ENGINE), MOVES, name="idles")


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One answer to "what limits this GPU?". `number` is the value that is recorded, `colour` how it is drawn."""

    name: str
    condition: Condition
    means: str
    colour: str


BOTTLENECKS: tuple[Bottleneck, ...] = (
    Bottleneck(
        "idle",
        IDLES,
        "nothing runs and nothing is copied",
        "#8e8e8e",
    ),
    Bottleneck(
        "pcie-bound",
        Or(Compare(RX, ">=", FULL_PCIE), Compare(TX, ">=", FULL_PCIE)),
        "the PCIe link is full in one direction",
        "#b877d9",
    ),
    Bottleneck(
        "fake-load",
        Unless(
            And(BUSY, Compare(SM, "<", EMPTY_SM), Compare(DRAM, "<", QUIET_DRAM)),
            MOVES,
        ),
        'the engine is busy, hence "100 % utilisation", but the SMs are empty and no data moves',
        "#e02f44",
    ),
    Bottleneck(
        "communicating",
        And(BUSY, PARTLY_FILLED, Or(TRAFFIC, SPINNING)),
        "the engine is busy, the SMs are partly filled: a collective that moves data, or waits to",
        "#fade2a",
    ),
    Bottleneck(
        "underfilled",
        And(
            BUSY,
            PARTLY_FILLED,
            Compare(DRAM, "<", BUSY_DRAM),
            Or(Compare(DRAM, ">=", QUIET_DRAM), Compare(POWER, ">=", IDLE_POWER)),
        ),
        "kernels follow one another without a gap, each too small to fill the chip",
        "#ff9830",
    ),
    Bottleneck(
        "data-loading-bound",
        And(WAITS_FOR_HOST, Compare(RX, ">=", QUIET_PCIE)),
        "the engine often waits while data comes over PCIe",
        "#5794f2",
    ),
    Bottleneck(
        "host-bound",
        And(Compare(GR, ">=", IDLE_ENGINE), WAITS_FOR_HOST),
        "the engine often waits while nothing comes: launches, Python, preprocessing, small batches, checkpoints",
        "#3274d9",
    ),
    Bottleneck(
        "tensor-cores-idle",
        And(FILLED, Compare(FLOAT, ">=", BUSY_FLOAT), Compare(TENSOR, "<", IDLE_TENSOR), Compare(DRAM, "<", BUSY_DRAM)),
        "the SMs compute, but not on their tensor cores",
        "#ffb357",
    ),
    Bottleneck(
        "memory-bound",
        Or(
            And(BUSY, Compare(DRAM, ">=", BUSY_DRAM), Compare(TENSOR, "<", MOSTLY_TENSOR)),
            Unless(
                And(
                    FILLED,
                    Compare(DRAM, ">=", SOME_DRAM),
                    Compare(TENSOR, "<", IDLE_PIPES),
                    Compare(FLOAT, "<", IDLE_PIPES),
                ),
                Compare(INT, ">=", BUSY_FLOAT),
            ),
        ),
        "memory bandwidth is used up, or every pipe waits for scattered data",
        "#37872d",
    ),
    Bottleneck(
        "compute-bound",
        And(FILLED, Or(Compare(TENSOR, ">=", BUSY_TENSOR), Compare(FLOAT, ">=", BUSY_FLOAT))),
        "the SMs are full of arithmetic: this is what a GPU is bought for",
        "#73bf69",
    ),
    Bottleneck("mixed", Compare(SM, ">=", 0.0), "none of the others", "#a352cc"),
)
BY_NAME = {bottleneck.name: bottleneck for bottleneck in BOTTLENECKS}
CLASSIFICATION = Classification(CLASS, {bottleneck.name: bottleneck.condition for bottleneck in BOTTLENECKS})


def bottleneck_is(name: str) -> Is:
    """The condition that a GPU has this bottleneck."""
    return Is(CLASSIFICATION, BY_NAME[name].name)


def classify(window: Window, device: Device) -> Bottleneck | None:
    """The first bottleneck that is known to match; None if none is."""
    name = class_of(CLASSIFICATION, window, device)
    return BY_NAME[name] if name else None
