"""The GPU dashboard: is the GPU healthy, is it working, what limits it?"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.catalogue.signal import Signal
from gpu_exporter.render import prose
from gpu_exporter.render.boards import GPU
from gpu_exporter.render.dashboards import between_scrapes
from gpu_exporter.render.dashboards import queries as q
from gpu_exporter.render.dashboards.frame import GREEN, RED, About, BoardRow
from gpu_exporter.render.dashboards.panels import class_timeline, dashed, lines, states, time_shares, watched
from gpu_exporter.render.dashboards.tables import firing

BOARD = GPU


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: the three questions, then activity between scrapes, then counters."""
    return [
        BoardRow("Health: is anything wrong?", _health(modes)),
        BoardRow("Throughput: is it working?", _throughput()),
        BoardRow("Bottleneck: what limits it?", _bottleneck(modes)),
        between_scrapes.row(BOARD),
        BoardRow("Counters", _counters(), True),
    ]


def _lines(title: str, about: About, *signals: Signal, width: int = 8, limits: tuple[Signal, ...] = ()) -> object:
    named = [q.query(BOARD, each, prose.title(each) if len(signals) > 1 else "") for each in signals]
    return lines(title, about, named, width=width, overrides=dashed(named, [prose.title(each) for each in limits]))


def _health(modes: Sequence[FailureMode]) -> list[object]:
    return [
        watched(BOARD),
        firing(BOARD, modes, [Domain.HEALTH], 20),
        states(
            "GPU reachable",
            About(
                "Whether the exporter can read the GPU.",
                "always reachable.",
                "see GpuLost: drain the node and look for XID 79 or 119.",
            ),
            q.query(BOARD, s.UP),
            (("unreachable", RED), ("reachable", GREEN)),
            width=8,
        ),
        _lines(
            "Temperature",
            About(
                "Temperature of the GPU and its memory; the dashed line is the temperature at which the GPU throttles.",
                "well below the dashed line.",
                "check fans, airflow and inlet temperature.",
            ),
            s.GPU_TEMP,
            s.MEMORY_TEMP,
            s.SLOWDOWN_TEMP,
            limits=(s.SLOWDOWN_TEMP,),
        ),
        _lines(
            "Throttled",
            About(
                "Share of time with reduced clocks, by cause. The power cap is normal at full load.",
                "0, except for the power cap.",
                "thermal slowdown: check the cooling. Power brake: check the power supplies and the rack's feed.",
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
                "SM activity: share of SMs with a resident warp. Occupancy: resident warps as a share of the maximum.",
                "SM activity above 60 %. Low occupancy alone is no problem: the best matrix kernels run at 14 %.",
                "low SM activity: see the bottleneck row below.",
            ),
            s.SM_ACTIVE,
            s.SM_OCCUPANCY,
        ),
        _lines(
            "Tensor cores and arithmetic pipes",
            About(
                "Share of cycles in which the tensor cores and the FP64, FP32, FP16 and integer pipes are active.",
                "tensor cores above 20 % in training.",
                "SMs busy but tensor cores at 0: allow TF32, or use BF16 or FP8.",
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
                "Power draw (mean and instantaneous); the dashed line is the limit in force.",
                "near the limit at full load.",
                "idle power at full utilisation: fake load or a stall. Large swings: the GPU alternates "
                "between work and waiting.",
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
            "Utilisation and engine activity",
            About(
                "Both count a kernel with a single thread as busy. Utilisation (nvidia-smi) also counts copies. Engine "
                "activity is the share of time in which the graphics or compute engine was busy.",
                "both high, and SM activity is high too.",
                "utilisation at 100 % with SM activity near 0: fake load.",
            ),
            s.UTIL,
            s.GR_ACTIVE,
        ),
        _lines(
            "Memory",
            About(
                "Device memory in use and free.",
                "stable from step to step.",
                "steady growth is a leak that ends in an out-of-memory error.",
            ),
            s.FB_USED,
            s.FB_FREE,
        ),
        _lines(
            "SM clock",
            About(
                "Clock of the SMs.",
                "near the maximum.",
                "low at full power: power cap. Low and hot: thermal throttling.",
            ),
            s.SM_CLOCK,
        ),
    ]


def _bottleneck(modes: Sequence[FailureMode]) -> list[object]:
    return [
        class_timeline(BOARD, 16),
        firing(BOARD, modes, [Domain.BOTTLENECK], 8),
        time_shares("Where does its time go?", q.shares_of(BOARD), width=24),
        _lines(
            "PCIe traffic to the GPU and memory activity",
            About(
                "Device memory activity (left axis) and PCIe traffic to the GPU (right axis).",
                "short bursts of traffic between long phases of memory activity.",
                "traffic while memory is idle is data loading: use more workers, pinned memory and prefetching.",
            ),
            s.DRAM_ACTIVE,
            s.PCIE_RX,
            width=12,
        ),
        _lines(
            "PCIe link use and NVLink traffic",
            About(
                "PCIe traffic as a share of the link's capacity (left axis), and NVLink traffic (right axis).",
                "PCIe below 70 %.",
                "a saturated link: move less data, or check whether it runs with fewer lanes or a lower generation.",
            ),
            s.PCIE_RX_USE,
            s.PCIE_TX_USE,
            s.NVLINK,
            width=12,
        ),
    ]


def _counters() -> list[object]:
    memory = About(
        "ECC errors since the driver was loaded, remapped memory rows, and memory banks with few or no spare rows.",
        "no uncorrectable errors; a few corrected errors are normal.",
        "uncorrectable errors: drain the node and reset the GPU. No spare rows: replace the GPU.",
    )
    links = About(
        "PCIe and NVLink errors since the previous point.",
        "0, or a few PCIe replays: GpuPcieReplayStorm has the limit.",
        "reseat the GPU; replace it if errors continue.",
    )
    errors = (s.PCIE_REPLAYS, s.NVLINK_REPLAYS, s.NVLINK_RECOVERIES, s.NVLINK_CRC)
    return [
        _lines("Memory errors", memory, s.ECC_DBE, s.ECC_SBE, s.REMAPPED, s.BANKS_LOW, s.BANKS_NONE, width=12),
        lines("Link errors", links, [q.query(BOARD, each, prose.title(each), grown=True) for each in errors], width=12),
        *_links(),
        _lines(
            "Pending repairs",
            About(
                "Memory rows and pages that wait for a repair, failed remaps, the SRAM error threshold, and the "
                "recovery action that the driver asks for (1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 "
                "recover the IMEX domain, 6 bus reset, 7 power cycle or reboot).",
                "0.",
                "let running jobs finish, then do what the driver asks for.",
            ),
            s.REMAP_PENDING,
            s.REMAP_FAILED,
            s.RETIRED_PENDING,
            s.SRAM_EXCEEDED,
            s.RECOVERY,
        ),
    ]


def _links() -> list[object]:
    return [
        _lines(
            "PCIe link",
            About(
                "PCIe generation and lanes: current, and the maximum that GPU and slot support.",
                "current equals maximum under load.",
                "reseat the GPU.",
            ),
            s.PCIE_GEN,
            s.PCIE_MAX_GEN,
            s.PCIE_WIDTH,
            s.PCIE_MAX_WIDTH,
        ),
        _lines(
            "NVLinks",
            About(
                "NVLinks of the GPU, and how many of them are active.",
                "all are active.",
                "reset the GPU and check the fabric manager.",
            ),
            s.NVLINK_LINKS,
            s.NVLINK_UP,
        ),
    ]
