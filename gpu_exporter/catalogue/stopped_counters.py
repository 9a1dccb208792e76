"""Profiling counters that have stopped: DCGM reports 0 for all of them although the GPU works, or their last values.

It does so after some XIDs, or when it loses the counters to another tool, until its host engine or its watches are
renewed (NVIDIA/DCGM#303, NVIDIA/dcgm-exporter#662). These are no measurements: pages that are scraped, the rules of
Prometheus and the sources that read DCGM leave them out by this definition, and the driver's utilisation counts.

Counters that count are never all exactly 0 for longer than one sample, not even those of an idle GPU, which answers
the reads themselves over PCIe: so say 20 000 samples of H100s and H200s. Where they are rounded to 0, the GPU is idle,
and its utilisation is at most 2 %; that of the slowest work that was measured is 24 %.

Nor do counters that count keep their values: of 20 151 pairs of consecutive samples, 10 a second, traffic to the GPU
was the same in 15, together with traffic from it and the activity of the engine once, on an idle GPU. An exporter that
is scraped more often than it collects repeats them, but then power stays the same, too, which varies even on an idle
GPU and is no profiling counter. Whether zeros are kept or right, only utilisation says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.conditions.signal import FAR_BEYOND, PROFILING_PREFIX, STOPPED_INFO
from gpu_exporter.model.metric import Metric

# Utilisation as a ratio, from which a GPU whose counters are all 0 works.
WORKS = 0.10
# Utilisation is that of a moment: for so many seconds after the GPU has worked, counters that are still 0 have stopped.
REMEMBERED_SECONDS = 300.0
# Counters have stopped if they are the same for so many seconds, in which power changes so many times: at each scrape
# once a minute.
KEPT_SECONDS, POWER_CHANGES = 240.0, 4
# Has samples of as many seconds, if there is one a minute.
KEPT_WINDOW = "5m"
# Where the evidence of a moment is recorded.
CONTRADICTED_INFO = "gpu:counters_contradicted:info"


def _names(metric: Metric) -> tuple[str, ...]:
    renamed = modern(metric)
    return (metric.name, renamed[0]) if renamed else (metric.name,)


# An engine that works on data uses both. Without them, zeros say little.
ENGINE, DRAM = frozenset(_names(m.GR_ENGINE_ACTIVE)), frozenset(_names(m.DRAM_ACTIVE))
# The names of utilisation, with the value of a GPU that is busy all of the time.
FULL_UTIL = dict(zip(_names(m.GPU_UTIL), (100.0, 1.0), strict=True))
# Of counters that count, one of these changes with each sample, even on an idle GPU.
RX, TX = m.PCIE_RX.name, m.PCIE_TX.name
RESTLESS = frozenset((RX, TX, *ENGINE))
POWER = _names(m.POWER)

Counters = frozenset[tuple[str, float]]


@dataclass(slots=True)
class _Kept:
    """Counters that are the same since `since`, and how often power has changed meanwhile."""

    counters: Counters
    since: float
    power: float
    changes: int = 0


class StoppedCounters:
    """Remembers when each GPU has worked while all of its counters were 0, and which values its counters keep.

    `stuck` has the values that counters keep, by GPU: that these are no measurements is known from the start.
    """

    def __init__(self, stuck: Mapping[Hashable, Counters] | None = None) -> None:
        self.stuck: dict[Hashable, Counters] = dict(stuck or {})
        self._kept: dict[Hashable, _Kept] = {}
        self._until: dict[Hashable, float] = {}

    def take(
        self, gpu: Hashable, at: float, util: float | None, power: float | None, counters: Iterable[tuple[str, float]]
    ) -> bool:
        """Return whether a GPU's counters have stopped, by values that were read together at `at` (seconds).

        `util` is a ratio, `power` is in watts; `counters` are the names and values of all profiling metrics, in any
        order: if the engine works, RESTLESS are enough.
        """
        read = list(counters)
        if self._are_stuck(gpu, at, power, frozenset(each for each in read if each[0] in RESTLESS)):
            return True
        if any(value for _, value in read):
            return False
        names = {name for name, _ in read}
        if (
            util is not None
            and WORKS <= util <= FAR_BEYOND
            and not (names.isdisjoint(ENGINE) or names.isdisjoint(DRAM))
        ):
            self._until[gpu] = at + REMEMBERED_SECONDS
        return at < self._until.get(gpu, at)

    def _are_stuck(self, gpu: Hashable, at: float, power: float | None, counters: Counters) -> bool:
        stuck, names = self.stuck.get(gpu), {name for name, value in counters if value or name != RX}
        if stuck and stuck >= counters:  # not all of them may have been read again
            if stuck == counters:
                self._until[gpu] = at + REMEMBERED_SECONDS
            return at < self._until.get(gpu, at)
        if power is None or names.isdisjoint(ENGINE) or not names.issuperset((RX, TX)):
            return False
        kept = self._kept.get(gpu)
        if kept is None or kept.counters != counters:
            self._kept[gpu] = _Kept(counters, at, power)
            return False
        kept.changes += power != kept.power
        kept.power = power
        if at - kept.since < KEPT_SECONDS or kept.changes < POWER_CHANGES:
            return False
        self.stuck[gpu], self._until[gpu] = counters, at + REMEMBERED_SECONDS
        return True


def recorded() -> tuple[tuple[str, str], ...]:
    """Return name and expression of the rules that record the GPUs whose counters have stopped, and no others."""
    gpu = "on (cluster, UUID)"
    works = " or ".join(
        f"group by (cluster, UUID) ({name} >= {full * WORKS:g} <= {full * FAR_BEYOND:g})"
        for name, full in FULL_UTIL.items()
    )
    engine, dram = (f'{{__name__=~"{"|".join(sorted(names))}"}}' for names in (ENGINE, DRAM))
    counts = f'{{__name__=~"{PROFILING_PREFIX}.+"}} != 0'
    seen = f"last_over_time({CONTRADICTED_INFO}[{REMEMBERED_SECONDS / 60:g}m])"
    return (
        (CONTRADICTED_INFO, f"({works})\nand {gpu} {engine}\nand {gpu} {dram}\nunless {gpu} ({counts})"),
        (STOPPED_INFO, f"(\n{seen}\nunless {gpu} ({counts})\n)\nor {gpu}\n{_stuck(gpu)}"),
    )


def _stuck(gpu: str) -> str:
    """Return 1 for each GPU whose counters keep their values. No series is judged before it is old enough.

    The first operand is nearly always empty, which makes the others cheap. If two exporters show a GPU, one that counts
    is enough.
    """

    def changes(names: Iterable[str], condition: str) -> str:
        return " or ".join(f"changes({name}[{KEPT_WINDOW}]) {condition}" for name in sorted(names))

    return (
        f"max by (cluster, UUID) (changes({RX}[{KEPT_WINDOW}]) + 1) == 1\n"
        f"and {gpu} ({changes([TX], '== 0')})\n"
        f"and {gpu} ({changes(ENGINE, '== 0')})\n"
        f"and {gpu} ({RX} offset {KEPT_SECONDS / 60:g}m > 0)\n"
        f"and {gpu} ({changes(POWER, f'>= {POWER_CHANGES}')})"
    )
