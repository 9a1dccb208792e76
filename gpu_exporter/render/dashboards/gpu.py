"""GPU: is it on fire, is it working, why is it slow?"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.render.boards import GPU
from gpu_exporter.render.dashboards import between_scrapes
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import GREEN, RED, About, BoardRow
from gpu_exporter.render.dashboards.panels import class_timeline, dashed, lines, states, watched
from gpu_exporter.render.dashboards.tables import firing

BOARD = GPU


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """The three questions, then what means hide, then counters."""
    return [
        BoardRow("Health: is it on fire?", _health(modes)),
        BoardRow("Throughput: is it working?", _throughput()),
        BoardRow("Bottleneck: why is it slow?", _bottleneck(modes)),
        between_scrapes.row(BOARD),
        BoardRow("Counters", _counters(), True),
    ]


def _lines(title: str, about: About, *signals: Signal, width: int = 8, limits: tuple[Signal, ...] = ()) -> object:
    named = [q.query(BOARD, each, each.name if len(signals) > 1 else "") for each in signals]
    return lines(title, about, named, width=width, overrides=dashed(named, [each.name for each in limits]))


def _health(modes: Sequence[FailureMode]) -> list[object]:
    return [
        watched(BOARD),
        firing(BOARD, modes, [Domain.HEALTH], 20),
        states(
            "Answers",
            About("Whether the GPU answers the driver.", "always.", "GpuLost: drain the node, look for Xid 79 or 119."),
            q.query(BOARD, s.UP),
            (("lost", RED), ("answers", GREEN)),
            width=8,
        ),
        _lines(
            "Temperature",
            About(
                "Chip and memory, and the temperature at which the GPU slows down.",
                "well below the dashed line.",
                "see to fans, air flow and inlet temperature.",
            ),
            s.GPU_TEMP,
            s.MEMORY_TEMP,
            s.SLOWDOWN_TEMP,
            limits=(s.SLOWDOWN_TEMP,),
        ),
        _lines(
            "Slowed down",
            About(
                "Share of time at a lower clock, by cause. At the power limit is normal at full load.",
                "0, but for the power cap.",
                "heat: cooling; power brake: supplies and the rack's feed.",
            ),
            s.HW_THERMAL,
            s.SW_THERMAL,
            s.POWER_BRAKE,
            s.POWER_CAP,
        ),
    ]


def _throughput() -> list[object]:
    return [
        _lines(
            "SM activity and occupancy",
            About(
                "Share of SMs that hold a warp, and how many warps of those they could hold.",
                "SM activity above 60 %. Low occupancy alone means nothing: the best matrix products run at 14 %.",
                "low SM activity: see the bottleneck row.",
            ),
            s.SM_ACTIVE,
            s.SM_OCCUPANCY,
        ),
        _lines(
            "Pipes",
            About(
                "Share of cycles in which tensor cores and arithmetic pipes work.",
                "training works on tensor cores, above 20 %.",
                "SMs busy and tensor at 0: allow TF32, use bf16 or fp8.",
            ),
            s.TENSOR_ACTIVE,
            s.FP64_ACTIVE,
            s.FP32_ACTIVE,
            s.FP16_ACTIVE,
            s.INT_ACTIVE,
        ),
        _lines(
            "Power and its limit",
            About(
                "Board power, of the moment too, and the limit in force.",
                "near the limit at full load.",
                "an idle level at full utilisation is fake load or a stall; swings are waiting in step.",
            ),
            s.POWER,
            s.POWER_INSTANT,
            s.POWER_LIMIT,
            limits=(s.POWER_LIMIT,),
        ),
        *_usage(),
    ]


def _usage() -> list[object]:
    return [
        _lines(
            "Busy, or only looks busy",
            About(
                "Utilisation as nvidia-smi shows it counts copies and a single thread, too; engine activity does not.",
                "both high, with SM activity.",
                "utilisation at 100 % and SM activity near 0 is fake load.",
            ),
            s.UTIL,
            s.GR_ACTIVE,
        ),
        _lines(
            "Memory",
            About(
                "Device memory that programs have.", "stable over steps.", "what grows without end will end the job."
            ),
            s.FB_USED,
            s.FB_FREE,
        ),
        _lines(
            "SM clock",
            About("Clock of the SMs.", "near the highest.", "low at full power is the cap; low and hot is throttling."),
            s.SM_CLOCK,
        ),
    ]


def _bottleneck(modes: Sequence[FailureMode]) -> list[object]:
    return [
        class_timeline(BOARD, 16),
        firing(BOARD, modes, [Domain.BOTTLENECK], 8),
        _lines(
            "PCIe traffic to the GPU over memory activity",
            About(
                "Data that comes in, and how busy device memory is (left axis).",
                "traffic in bursts that are short against the work between them.",
                "traffic while memory rests is data loading: more workers, pinned memory, prefetch.",
            ),
            s.DRAM_ACTIVE,
            s.PCIE_RX,
            width=12,
        ),
        _lines(
            "Links: share of PCIe in use, and NVLink",
            About(
                "Traffic over what the PCIe link carries, each direction, and NVLink traffic (right axis).",
                "PCIe below 70 %.",
                "a full link: move less, or look whether the link fell back to fewer lanes.",
            ),
            s.PCIE_RX_USE,
            s.PCIE_TX_USE,
            s.NVLINK,
            width=12,
        ),
    ]


def _counters() -> list[object]:
    memory = About(
        "Errors since the driver was loaded, and rows that were replaced.",
        "no uncorrectable ones; a few corrected ones are normal.",
        "uncorrectable: drain and reset; no spare rows: replace the board.",
    )
    links = About("Errors of the links since the point before.", "0.", "reseat the board; replace what errs again.")
    errors = (s.PCIE_REPLAYS, s.NVLINK_REPLAYS, s.NVLINK_RECOVERIES, s.NVLINK_CRC)
    return [
        _lines("Memory errors", memory, s.ECC_DBE, s.ECC_SBE, s.REMAPPED, s.BANKS_LOW, s.BANKS_NONE, width=12),
        lines("Link errors", links, [q.query(BOARD, each, each.name, grown=True) for each in errors], width=12),
        _lines(
            "PCIe link",
            About(
                "Generation and lanes now, and the most that GPU and slot can do.", "alike under load.", "reseat it."
            ),
            s.PCIE_GEN,
            s.PCIE_MAX_GEN,
            s.PCIE_WIDTH,
            s.PCIE_MAX_WIDTH,
        ),
        _lines(
            "NVLinks",
            About("Links that the GPU has, and those that are up.", "all are up.", "reset it; look at fabric manager."),
            s.NVLINK_LINKS,
            s.NVLINK_UP,
        ),
        _lines(
            "Waiting for repair",
            About(
                "Rows and pages to be replaced, and what the driver asks for (1 reset, 2 reboot, 3 drain, 4 both).",
                "0.",
                "let what runs end, then do it.",
            ),
            s.REMAP_PENDING,
            s.REMAP_FAILED,
            s.RETIRED_PENDING,
            s.SRAM_EXCEEDED,
            s.RECOVERY,
        ),
    ]
