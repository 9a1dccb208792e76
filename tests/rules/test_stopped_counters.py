"""Profiling counters of DCGM that have stopped: the GPU is not idle. Held for hours, as dcgm-exporter shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles as p
from gpu_exporter.catalogue.stopped_counters import StoppedCounters
from gpu_exporter.conditions.signal import STOPPED_INFO
from gpu_exporter.model.metric import Metric
from tests.rules.promtool import WHAT, Case, Expect, check, check_together, firing, promtools
from tests.rules.series import Device, Generation, minutes, rank
from tests.rules.shapes import Shape

# Longer than GpuAllocatedIdle waits.
HELD = 150.0
IDLE, MISSING = "GpuAllocatedIdle", "GpuMetricsMissing"
Shapes = Mapping[Metric, Shape]


def varying(values: Shapes, *rows: Metric) -> Shapes:
    """Return values of which these vary a little with each scrape, as power does and counters that count."""
    return {
        row: jitter(value) if row in rows and isinstance(value, int | float) else value for row, value in values.items()
    }


def jitter(value: float) -> Shape:
    return tuple(value * (1 + step / 1000) for step in (0, 3, 1, -2, 2, -1, 4))


def keeping(values: Shapes, others: Shapes) -> Shapes:
    """Return the values of a GPU whose counters keep those of an earlier time."""
    return varying({**others, **{row: value for row, value in values.items() if row in m.PROFILING}}, m.POWER)


def stopped(values: Shapes) -> Shapes:
    """Return the values of a GPU whose counters are all 0."""
    return {row: 0.0 if row in m.PROFILING else value for row, value in values.items()}


# Samples of a moment: the GPU works half of the time.
TRAINS: Shapes = {**p.SLEEPY, m.GPU_UTIL: (100.0, 0.0, 97.0, 3.0, 0.0, 60.0)}
BRIEF: Shapes = {
    m.GPU_UTIL: (*(0.0,) * 9, 30.0),
    m.GR_ENGINE_ACTIVE: (*(0.0,) * 9, 0.003),
    m.DRAM_ACTIVE: (*(0.0,) * 9, 1e-4),
}
# Utilisation is that of a moment, the counters come with the next scrape.
LATE: Shapes = {m.GR_ENGINE_ACTIVE: (0.003, *(0.0,) * 9), m.DRAM_ACTIVE: (1e-4, *(0.0,) * 9)}
# The values, the class (empty if it is unknown) and the alerts.
GPUS: Mapping[str, tuple[Shapes, str, tuple[str, ...]]] = {
    "gemm": (stopped(p.GEMM), "", (MISSING,)),
    "sleepy": (stopped(p.SLEEPY), "host-bound", (MISSING, "GpuHostBound")),
    "tiny": (stopped(p.TINY_KERNELS), "host-bound", (MISSING, "GpuHostBound")),
    "trains": (stopped(TRAINS), "", (MISSING,)),
    "idle": (p.IDLE, "idle", (IDLE,)),
    "zero-idle": (stopped(p.IDLE), "idle", (IDLE,)),
    "context": ({**p.IDLE, **p.memory(20 * p.GIB)}, "idle", (IDLE,)),
    "one-thread": (p.ONE_THREAD, "fake-load", ("GpuFakeLoad",)),
    "brief": ({**p.IDLE, **BRIEF}, "idle", (IDLE,)),
    "late": ({**p.IDLE, **BRIEF, **LATE}, "idle", (IDLE,)),
    "copies": (p.HOST_COPY, "pcie-bound", ("GpuPcieBound",)),
    # It trains with the counters of an idle GPU, and is idle with those of one that works.
    "keeps-idle": (keeping(p.IDLE, p.GEMM), "", (MISSING,)),
    "keeps-thread": (keeping(p.ONE_THREAD, TRAINS), "", (MISSING,)),
    "keeps-gemm": (keeping(p.GEMM, p.IDLE), "idle", (IDLE, MISSING)),
    "keeps-waiting": (keeping(p.HANGING, p.GEMM), "", (MISSING,)),
    # Counters that count: traffic varies in one direction, or the exporter collects nothing new.
    "live-idle": (varying(p.IDLE, m.POWER, m.PCIE_RX), "idle", (IDLE,)),
    "live-thread": (varying(p.ONE_THREAD, m.POWER, m.PCIE_TX), "fake-load", ("GpuFakeLoad",)),
    "live-engine": (varying(p.ONE_THREAD, m.POWER, m.GR_ENGINE_ACTIVE), "fake-load", ("GpuFakeLoad",)),
    "slow-power": ({**p.IDLE, m.POWER: (*(121.0,) * 5, *(122.0,) * 5)}, "idle", (IDLE,)),
    "zero-jitter": (varying(stopped(p.IDLE), m.POWER), "idle", (IDLE,)),
}
WASTED = (
    *("idle", "zero-idle", "context", "one-thread", "brief", "late", "copies"),
    *("keeps-gemm", "live-idle", "live-thread", "live-engine", "slow-power", "zero-jitter"),
)
STOPPED = (
    *("gemm", "sleepy", "tiny", "trains"),
    *("keeps-idle", "keeps-thread", "keeps-gemm", "keeps-waiting"),
)


def test_stopped_is_not_idle(tmp_path: Path) -> None:
    check_together(tmp_path, map(held, (Generation.DCGM_4_8_2, Generation.DCGM_4_9)))


def held(generation: Generation) -> Case:
    """Return all GPUs as a generation of dcgm-exporter shows them, with what is expected after hours."""
    devices, classes, alerts = [], [], []
    for node, (values, bottleneck, names) in GPUS.items():
        devices.append(Device(node, 0, [minutes(HELD, {**p.BOARD, **values})], generation, rank(node)))
        classes += [({"node": node, "class": bottleneck}, 1.0)] if bottleneck else []
        alerts += firing(node, names)
    found = [
        Expect("group by (node, class) (gpu:bottleneck:class)", classes),
        Expect(f'group by ({WHAT}) (ALERTS{{alertstate="firing"}})', alerts),
        Expect(
            "group by (node) (gpu:profiling_stopped:bool == 1)",
            [({"node": node}, 1.0) for node in STOPPED],
        ),
        Expect("group by (node) (gpu:wasted:ratio > 0.9)", [({"node": node}, 1.0) for node in WASTED]),
    ]
    return Case(generation.value, devices, found)


# The rules are evaluated at the last step.
STEPS, STEP_SECONDS = 41, 30.0
STOPPED_INFO_BY_GPU = f"max by (UUID) ({STOPPED_INFO})"
ROWS = (m.GR_ENGINE_ACTIVE, m.PCIE_RX, m.PCIE_TX)
UTIL = 5.0


class Story:
    """A GPU whose counters stop at a random time, most with an oddity."""

    def __init__(self, number: int) -> None:
        rng, row = Random(number), ROWS[number % len(ROWS)]
        oddity = rng.choice(("", "", "begins", "again", "without", "zero", "moving", "power"))
        self.name, self.steps = f"story-{number}-{oddity}", range(STEPS)
        # Rules are evaluated once a minute, and judge windows of five minutes.
        self.stop = rng.choice([step for step in self.steps if STEPS - step not in range(8, 13)])
        self.begin = rng.choice((25, *range(30, 39))) if oddity == "begins" else 0
        self.again = rng.choice((36, 39)) if oddity == "again" else STEPS
        self.without, self.zero, self.moving = (
            row if oddity == each else None for each in ("without", "zero", "moving")
        )
        self.watts = 0.0 if oddity == "power" else 0.1

    def value(self, row: Metric, step: int) -> float | None:
        """Return the value of a counter at a step; None if it has none."""
        if row is self.without or step < self.begin:
            return None
        counts = step < self.stop or step >= self.again
        if row is self.zero:
            return 0.0
        return 7.0 + step if counts or row is self.moving else 7.0 + self.stop

    def power(self, step: int) -> float:
        return 300.0 + self.watts * (step % 7)

    @property
    def judged(self) -> bool:
        """Return the verdict of Python at the last step."""
        stopped, verdict = StoppedCounters(), False
        for step in self.steps:
            read = [(row.name, value) for row in ROWS if (value := self.value(row, step)) is not None]
            verdict = stopped.take("", step * STEP_SECONDS, UTIL / 100, self.power(step), read) and bool(read)
        return verdict

    @property
    def series(self) -> list[Mapping[str, str]]:
        """Return it in promtool's format."""
        labels = f'{{job="dcgm-exporter",instance="{self.name}:9400",UUID="GPU-{self.name}",gpu="0",Hostname="a"}}'
        shown: dict[str, Sequence[float | None]] = {
            row.name: [self.value(row, step) for step in self.steps] for row in ROWS
        }
        shown[m.POWER.name] = [self.power(step) for step in self.steps]
        return [
            {"series": name + labels, "values": " ".join("_" if each is None else f"{each:.12g}" for each in values)}
            for name, values in shown.items()
        ]


def test_rules_and_python_agree_on_kept_values(tmp_path: Path) -> None:
    stories = [Story(number) for number in range(200)]
    stopped = [({"UUID": f"GPU-{story.name}"}, 1.0) for story in stories if story.judged]
    assert 40 < len(stopped) < 160
    healthy = Device("any", 0, [minutes(STEPS * STEP_SECONDS / 60)], Generation.DCGM_4_8_2, rank("any"))
    more = [series for story in stories for series in story.series]
    check(tmp_path, [Case("stories", [healthy], [Expect(STOPPED_INFO_BY_GPU, stopped)], more=more)], promtools())
