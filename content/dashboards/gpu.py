"""The GPU dashboard: is the GPU healthy, is it working, what limits it?"""

from __future__ import annotations

from collections.abc import Sequence

from content.dashboards import between_scrapes, queries, why
from content.dashboards import queries as q
from content.dashboards.alert_table import firing
from content.dashboards.frame import BLUE, DARK_RED, GREEN, GREY, LIVE_PAGE, RED, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, Legend, band, dashed, hues, lines, time_shares
from content.dashboards.panels import LIMITS, class_timeline, named, number, numbers, states, verdict
from content.dashboards.queries import Query
from content.dashboards.tables import SINCE, Columns, override, table
from gpu_exporter.alerting import training_jobs as t
from gpu_exporter.alerting.boards import GPU
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import WINDOW
from gpu_exporter.catalogue.causes import STACK_WORDS
from gpu_exporter.catalogue.failure_modes.health import STALE
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode
from gpu_exporter.conditions import prose
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Fn, Over

BOARD = GPU


_IDENTITY = ("gpu", "model", "UUID", "serial", "driver_version", "pci_bus_id", "link", "slot")
_HOLDER = ("namespace", "workload", "pod", "rank", "line", "cause")
# In place of the line of code of a GPU.
NO_LINE = "none known: flame graph"
# Rows of the grid of what is above the first row of graphs.
IDENTITY, HOLDER, TILES, ALERTS = 4, 4, 3, 5
# Gives the lower end of the band of power its name, by which the upper end finds it.
SWING = Over(s.POWER_INSTANT_USE, Fn.STDDEV, WINDOW)
LOWEST, HIGHEST = "swings down to", "swings up to"


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: identity and alerts, health, throughput, bottleneck; then details, which query when opened."""
    return [
        BoardRow("Is it healthy, is it working, and what limits it?", _first(modes)),
        BoardRow("Health", _health()),
        BoardRow("Throughput", _throughput()),
        BoardRow("Bottleneck", _bottleneck()),
        why.sharing_row(BOARD),
        BoardRow("Utilisation, memory, clocks and links", [*_usage(), *_traffic()], True),
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
        link=None,
    )


def _first(modes: Sequence[FailureMode]) -> list[object]:
    return [
        _identity(),
        _holder(),
        *_numbers(),
        firing(BOARD, modes, list(Domain), 24, by_gpu=True, height=ALERTS),
    ]


def _identity() -> object:
    device = "cluster, UUID"
    gpu = f"max without (namespace, workload) ({q.direct(BOARD, m.INFO)})"
    facts = ", ".join(name for name in _IDENTITY if name not in ("link", "slot"))
    # Of the past, for a GPU that no longer answers.
    limit = f"max by ({device}) (last_over_time({q.selected(BOARD, s.POWER_LIMIT)}[$__range]))"
    known = f"{gpu} * on ({device}) group_left () {limit} or 0 * {gpu}"
    link, slot = (
        f'label_join(count_values by ({device}) ("of_{name}", {q.selected(BOARD, generation)}) '
        f"* on ({device}) group_left (lanes) "
        f'count_values by ({device}) ("lanes", {q.selected(BOARD, lanes)}), "{name}", " x", "of_{name}", "lanes")'
        for name, generation, lanes in (("link", s.PCIE_GEN, s.PCIE_WIDTH), ("slot", s.PCIE_MAX_GEN, s.PCIE_MAX_WIDTH))
    )
    pcie = f"{link} * on ({device}) group_left (slot) {slot}"
    for name in ("link", "slot"):
        pcie = f'label_replace({pcie}, "{name}", "Gen$1", "{name}", "(.+)")'
    return table(
        "Which GPU is it?",
        About(
            "The GPU, its driver, its PCIe link as generation and lanes (*link*), what GPU and slot support (*slot*), "
            "and its power limit. An idle GPU lowers the generation of its link.",
            "under load, *link* is the same as *slot*.",
            "fewer lanes or a lower generation under load: see GpuPcieLinkDegraded.",
        ),
        [
            Query(f"max by ({facts}) ({known})", "", "watt", "power limit"),
            Query(f"max by (UUID, link, slot) ({pcie})", "", "short"),
        ],
        Columns(_IDENTITY, added=_IDENTITY),
        width=24,
        height=IDENTITY,
    )


def _holder() -> object:
    device = "cluster, UUID"
    holder, pod = q.devices(BOARD), f"topk by ({device}) (1, {q.direct(BOARD, m.POD_INFO)})"
    # The rank that the training loop says, or said before the GPU was lost; otherwise that of the pod.
    now = q.selected(BOARD, t.RANK)
    said = f"{now} or last_over_time({now}[$__range]) and on ({device}) {q.lost(BOARD)}"
    ranks = f"topk by ({device}) (1, group by ({device}, rank) ({said}))"
    ranks = f"{ranks} or on ({device}) group by ({device}, rank) ({pod})"
    waiting = holder
    for labels, known in (("pod", pod), ("rank", ranks), ("line, cause", why.waiting_lines(BOARD, "cause"))):
        others = f"group by ({device}) ({holder})"
        if labels == "line, cause":
            others = f'label_replace({others}, "line", "{NO_LINE}", "", "")'
        waiting = f"{waiting} * on ({device}) group_left ({labels}) ({known} or on ({device}) {others})"
    words = {cause.value: (text, "text") for cause, text in STACK_WORDS.items()}
    link = {"title": "Which line? Flame graph on the live page", "url": LIVE_PAGE, "targetBlank": True}
    panel = table(
        "Who has it, and which line of code keeps it waiting?",
        About(
            "The workload and the pod that use the GPU, its rank, and the line of code at which the main thread spends "
            f"most of its time while the GPU waits, by the latest profile{why.LINE_NEEDED}",
            f"*{NO_LINE}*: the GPU does not wait for its host.",
            "the line is what to change; it links to the flame graph on the live page, which shows what it calls.",
        ),
        [
            Query(f"max by ({', '.join(_HOLDER)}) ({waiting})", "", "short"),
        ],
        Columns(
            _HOLDER,
            added=_HOLDER,
            texts={"cause": words},
        ),
        width=24,
        height=HOLDER,
        links=[link],
    )
    panel.overrides = [*panel.overrides, override("line", {"id": "links", "value": [link]})]
    return panel


def _numbers() -> list[object]:
    lost = f" or 0 * max({q.lost(BOARD)}) - {-q.NO_ANSWER}"
    return [
        verdict(BOARD, width=6, height=TILES),
        _class(),
        numbers(
            "SM activity, memory in use",
            About(
                "Share of SMs with a resident warp, and of the device memory in use, at the peak of a minute.",
                "SMs above 60 % in training; stable memory.",
                "see what limits the SMs below. Steady growth of memory is a leak.",
            ),
            Query(f"avg({q.selected(BOARD, s.SM_ACTIVE)}){lost}", "SM", "percentunit"),
            Query(f"max({q.selected(BOARD, s.FB_PEAK_USE)}){lost}", "memory", "percentunit"),
            width=7,
            height=TILES,
        ),
        number(
            "Last read",
            About(
                "Time since the exporter last read the GPU.",
                "a few seconds.",
                "the driver hangs or the GPU is lost: see GpuLost and GpuTelemetryStale.",
            ),
            Query(f"max({q.selected(BOARD, s.READ_AGE)})", "", q.unit(s.READ_AGE)),
            alarm=ColourStep(STALE.value, RED),
            width=5,
            height=TILES,
        ),
    ]


def _class() -> object:
    about = About(
        "The bottleneck class of the selected GPU; of several, the one with the highest number. If it is throttled, "
        "the table of alerts says why: heat (GpuThermalThrottling) or the power supply (GpuPowerBrake).",
        "compute-bound; memory-bound when generating tokens.",
        "the timeline below shows all GPUs.",
    )
    query = Query(f"max({queries.limit_of(BOARD)})", "", "short")
    return named("Bottleneck now", about, query, [*LIMITS[:-1], ("lost", DARK_RED)], width=6, height=TILES)


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
    swing = f"({q.selected(BOARD, s.POWER_SWING)} or {q.selected(BOARD, SWING)} * {q.selected(BOARD, s.POWER_LIMIT)})"
    power, on = q.selected(BOARD, s.POWER), "on (cluster, UUID) group_left ()"
    queries = [
        q.query(BOARD, s.POWER, "power"),
        Query(f"{power} - {on} {swing}", LOWEST, "watt"),
        Query(f"{power} + {on} {swing}", HIGHEST, "watt"),
        q.query(BOARD, s.POWER_LIMIT, "limit"),
    ]
    return lines(
        "Power, its swings and its limit",
        About(
            "Mean power, and a band for how far it swings between two scrapes (from the histogram of `--metrics full`, "
            "otherwise from instantaneous power). The dashed line is the limit in force.",
            "near the limit at full load, with a narrow band.",
            "a wide band: the GPU alternates between work and waiting. Idle power at full utilisation: fake load or a "
            "stall.",
        ),
        queries,
        GraphStyle(Legend.LIST, overrides=[*hues(queries[:1]), *band(1, 2, LOWEST, BLUE), *dashed(queries, ["limit"])]),
    )


def _xids() -> object:
    last = f"max by (xid, kind, action) ({q.direct(BOARD, m.XID_LAST)})"
    return table(
        "XIDs",
        About(
            "Errors of the GPU that the driver reported, the latest first, with what repairs them.",
            "empty: none was reported.",
            "docs/xids.md explains each XID; hardware XIDs have alerts.",
        ),
        [Query(f"{last} * 1000", "", SINCE, "last")],
        Columns(("xid", "kind", "action")),
        width=8,
        sort="last",
        empty="none reported",
    )


def _health() -> list[object]:
    return [
        _temperature(),
        _power(),
        _xids(),
        _lines(
            "Memory errors",
            About(
                "ECC errors since the driver was loaded, remapped memory rows, and memory banks with few or no spare "
                "rows.",
                "no uncorrectable errors; a few corrected errors are normal.",
                "uncorrectable errors: drain the node and reset the GPU. No spare rows: replace the GPU.",
            ),
            s.ECC_DBE,
            s.ECC_SBE,
            s.REMAPPED,
            s.BANKS_LOW,
            s.BANKS_NONE,
            width=10,
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
            width=9,
        ),
        states(
            "GPU reachable",
            About(
                "Whether the exporter can read the GPU.",
                "always reachable.",
                "see GpuLost: drain the node and look for XID 79 or 119.",
            ),
            q.query(BOARD, s.UP),
            (("unreachable", RED), ("reachable", GREEN)),
            width=5,
        ),
    ]


def _throughput() -> list[object]:
    active = [q.query(BOARD, each, prose.title(each)) for each in (s.SM_ACTIVE, s.SM_OCCUPANCY)]
    right = {"id": "custom.axisPlacement", "value": "right"}
    return [
        lines(
            "SM activity and occupancy",
            About(
                "Left: share of SMs with a resident warp. Right: occupancy, resident warps as a share of the maximum.",
                "SM activity above 60 %. Low occupancy alone is no problem: the best matrix kernels run at 14 %.",
                "low SM activity: see the bottleneck row below.",
            ),
            active,
            GraphStyle(
                Legend.LIST,
                overrides=[*hues(active), {"matcher": {"id": "byFrameRefID", "options": "B"}, "properties": [right]}],
            ),
            width=12,
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
            width=12,
        ),
    ]


def _bottleneck() -> list[object]:
    return [
        _lines(
            "PCIe receive and memory activity",
            About(
                "PCIe traffic to the GPU as a share of the link's capacity, and the share of cycles in which device "
                "memory is read or written.",
                "memory activity above PCIe use; high when generating tokens.",
                "PCIe near its capacity while memory is idle: the GPU waits for its data.",
            ),
            s.PCIE_RX_USE,
            s.DRAM_ACTIVE,
            width=12,
        ),
        class_timeline(BOARD, 12),
        time_shares("Where does its time go?", q.shares_of(BOARD), width=10),
        why.idle_causes(BOARD, 8),
        why.kernels(BOARD, 6),
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
                "Device memory in use and free at each scrape, and the most in use within each minute.",
                "stable from step to step.",
                "steady growth is a leak that ends in an out-of-memory error; so may a peak.",
            ),
            s.FB_USED,
            s.FB_PEAK,
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


def _traffic() -> list[object]:
    return [
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


def _counters() -> list[object]:
    links = About(
        "PCIe and NVLink errors within four minutes, or since the previous point if that is longer ago.",
        "0, or a few PCIe replays: GpuPcieReplayStorm has the limit.",
        "reseat the GPU; replace it if errors continue.",
    )
    errors = (s.PCIE_REPLAYS, s.NVLINK_REPLAYS, s.NVLINK_RECOVERIES, s.NVLINK_CRC)
    grown = [q.query(BOARD, each, prose.title(each), grown=True) for each in errors]
    return [
        lines("Link errors", links, grown, GraphStyle(Legend.LIST, overrides=hues(grown)), width=12),
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
