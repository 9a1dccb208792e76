"""The GPU dashboard: is the GPU healthy, is it working, what limits it?"""

from __future__ import annotations

from collections.abc import Sequence

from content.dashboards import between_scrapes, queries
from content.dashboards import queries as q
from content.dashboards.alert_table import firing
from content.dashboards.frame import GREEN, GREY, RED, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, Legend, dashed, hues, lines, time_shares
from content.dashboards.panels import LIMITS, class_timeline, named, number, reachable, states, verdict
from content.dashboards.queries import Query
from gpu_exporter.alerting.boards import GPU
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.health import STALE
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.conditions import prose
from gpu_exporter.conditions.signal import Signal

BOARD = GPU


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: what is wrong and what limits it, then details in rows that query when opened."""
    return [
        BoardRow("Is it healthy, is it working, and what limits it?", _first(modes)),
        BoardRow("Health: errors, heat and throttling", _health(), True),
        BoardRow("Throughput: units, memory and clocks", _throughput(), True),
        BoardRow("Bottleneck: copies and links", _bottleneck(), True),
        between_scrapes.row(BOARD),
        BoardRow("Counters", _counters(), True),
    ]


def _lines(title: str, about: About, *signals: Signal, width: int = 8, limits: tuple[Signal, ...] = ()) -> object:
    queries = [q.query(BOARD, each, prose.title(each) if len(signals) > 1 else "") for each in signals]
    return lines(
        title,
        about,
        queries,
        GraphStyle(Legend.LIST, overrides=[*hues(queries), *dashed(queries, [prose.title(each) for each in limits])]),
        width=width,
    )


def _first(modes: Sequence[FailureMode]) -> list[object]:
    return [
        *_numbers(),
        firing(BOARD, modes, list(Domain), 24, by_gpu=True, height=5),
        class_timeline(BOARD, 12),
        time_shares("Where does its time go?", q.shares_of(BOARD)),
        _activity(),
        _power(),
        _temperature(),
    ]


def _numbers() -> list[object]:
    shown = (
        (
            "SM activity",
            About("Share of SMs with a resident warp.", "above 60 % in training.", "see what limits it below."),
            s.SM_ACTIVE,
            "avg",
        ),
        (
            "Memory in use",
            About("Share of the device memory in use.", "stable.", "steady growth is a leak."),
            s.FB_USE,
            "max",
        ),
        (
            "Last read",
            About(
                "Time since the exporter last read the GPU.",
                "a few seconds.",
                "the driver hangs or the GPU is lost: see GpuLost and GpuTelemetryStale.",
            ),
            s.READ_AGE,
            "max",
        ),
    )
    return [
        reachable(BOARD),
        verdict(BOARD),
        _class(),
        *(
            number(title, about, Query(f"{of}({q.selected(BOARD, each)}){lost}", "", q.unit(each)), alarm=alarm)
            for title, about, each, of in shown
            for alarm in [ColourStep(STALE.value, RED) if each is s.READ_AGE else None]
            for lost in ["" if each is s.READ_AGE else f" or 0 * max({q.lost(BOARD)}) - {-q.NO_ANSWER}"]
        ),
    ]


def _class() -> object:
    about = About(
        "The bottleneck class of the selected GPU; of several, the one with the highest number.",
        "compute-bound; memory-bound when generating tokens.",
        "the timeline below shows all GPUs.",
    )
    return named("Bottleneck now", about, Query(f"max({queries.limit_of(BOARD)})", "", "short"), LIMITS)


def _activity() -> object:
    return _lines(
        "SM, tensor core and memory activity",
        About(
            "Share of SMs with a resident warp, and of cycles in which tensor cores and device memory are active.",
            "SM activity above 60 %, tensor cores above 20 % in training.",
            "low SM activity: see where the time goes, above.",
        ),
        s.SM_ACTIVE,
        s.TENSOR_ACTIVE,
        s.DRAM_ACTIVE,
    )


def _temperature() -> object:
    return _lines(
        "Temperature",
        About(
            "Temperature of the GPU and its memory; at the dashed line, the hardware lowers the clocks. The driver "
            "begins some degrees below it.",
            "well below the dashed line.",
            "check fans, airflow and inlet temperature.",
        ),
        s.GPU_TEMP,
        s.MEMORY_TEMP,
        s.SLOWDOWN_TEMP,
        limits=(s.SLOWDOWN_TEMP,),
    )


def _power() -> object:
    return _lines(
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
    )


def _health() -> list[object]:
    return [
        states(
            "GPU reachable",
            About(
                "Whether the exporter can read the GPU.",
                "always reachable.",
                "see GpuLost: drain the node and look for XID 79 or 119.",
            ),
            q.query(BOARD, s.UP),
            (("unreachable", RED), ("reachable", GREEN)),
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
            width=12,
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


def _bottleneck() -> list[object]:
    return [
        _lines(
            "Device memory activity",
            About(
                "Share of cycles in which device memory is read or written.",
                "high when generating tokens.",
                "near 0 while PCIe traffic is high: the GPU waits for its data.",
            ),
            s.DRAM_ACTIVE,
        ),
        _lines(
            "PCIe link use",
            About(
                "PCIe traffic in each direction, as a share of the link's capacity.",
                "below 70 %, in short bursts.",
                "a saturated link: move less data, or check whether it runs with fewer lanes or a lower generation.",
            ),
            s.PCIE_RX_USE,
            s.PCIE_TX_USE,
        ),
        _lines(
            "NVLink traffic",
            About(
                "NVLink traffic in both directions.",
                "high while ranks communicate.",
                "0 in a job over several GPUs: it does not use NVLink.",
            ),
            s.NVLINK,
        ),
        states(
            "Quality of the class",
            About(
                "Where the class comes from: profiling counters (exact), or utilisation and power (approximate).",
                "exact.",
                "GPUs without profiling counters: what they lack is in docs/without-profiling.md.",
            ),
            q.query(BOARD, s.APPROXIMATE),
            (("exact", GREEN), ("approximate", GREY)),
            width=24,
            height=5,
        ),
    ]


def _counters() -> list[object]:
    memory = About(
        "ECC errors since the driver was loaded, remapped memory rows, and memory banks with few or no spare rows.",
        "no uncorrectable errors; a few corrected errors are normal.",
        "uncorrectable errors: drain the node and reset the GPU. No spare rows: replace the GPU.",
    )
    links = About(
        "PCIe and NVLink errors within four minutes, or since the previous point if that is longer ago.",
        "0, or a few PCIe replays: GpuPcieReplayStorm has the limit.",
        "reseat the GPU; replace it if errors continue.",
    )
    errors = (s.PCIE_REPLAYS, s.NVLINK_REPLAYS, s.NVLINK_RECOVERIES, s.NVLINK_CRC)
    grown = [q.query(BOARD, each, prose.title(each), grown=True) for each in errors]
    return [
        _lines("Memory errors", memory, s.ECC_DBE, s.ECC_SBE, s.REMAPPED, s.BANKS_LOW, s.BANKS_NONE, width=12),
        lines("Link errors", links, grown, GraphStyle(Legend.LIST, overrides=hues(grown)), width=12),
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
