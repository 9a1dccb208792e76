"""Profiling counters that have stopped: DCGM reports 0 for all of them although the GPU works.

It does so after some XIDs, or when it loses the counters to another tool, until its host engine or its watches are
renewed (NVIDIA/DCGM#303, NVIDIA/dcgm-exporter#662). Such zeros are no measurements: pages that are scraped, the rules
of Prometheus and the sources that read DCGM leave them out by this definition, and the driver's utilisation counts.

Counters that count are never all exactly 0 for longer than one sample, not even those of an idle GPU, which answers
the reads themselves over PCIe: so say 20 000 samples of H100s and H200s. Where they are rounded to 0, the GPU is idle,
and its utilisation is at most 2 %; that of the slowest work that was measured is 24 %.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.dcgm_exporter.names import modern
from gpu_exporter.conditions.signal import FAR_BEYOND, PROFILING_PREFIX, STOPPED_INFO
from gpu_exporter.model.metric import Metric

# Utilisation as a ratio, from which a GPU whose counters are all 0 works.
WORKS = 0.10
# Utilisation is that of a moment: for so many seconds after the GPU has worked, counters that are still 0 have stopped.
REMEMBERED_SECONDS = 300.0
# Where the evidence of a moment is recorded.
CONTRADICTED_INFO = "gpu:counters_contradicted:info"


def _names(metric: Metric) -> tuple[str, ...]:
    renamed = modern(metric)
    return (metric.name, renamed[0]) if renamed else (metric.name,)


# An engine that works on data uses both. Without them, zeros say little.
ENGINE, DRAM = frozenset(_names(m.GR_ENGINE_ACTIVE)), frozenset(_names(m.DRAM_ACTIVE))
# The names of utilisation, with the value of a GPU that is busy all of the time.
FULL_UTIL = dict(zip(_names(m.GPU_UTIL), (100.0, 1.0), strict=True))


class StoppedCounters:
    """Remembers when each GPU has worked while all of its counters were 0."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def remembers(self, at: float) -> bool:
        """Return whether any GPU is remembered at `at` (seconds)."""
        return any(at < until for until in self._until.values())

    def take(self, gpu: Hashable, at: float, util: float | None, counters: Iterable[tuple[str, float]]) -> bool:
        """Return whether a GPU's counters have stopped, by values that were read together at `at` (seconds).

        `util` is a ratio; `counters` are the names and values of all profiling metrics.
        """
        names = set()
        for name, value in counters:
            if value:
                return False
            names.add(name)
        if (
            util is not None
            and WORKS <= util <= FAR_BEYOND
            and not (names.isdisjoint(ENGINE) or names.isdisjoint(DRAM))
        ):
            self._until[gpu] = at + REMEMBERED_SECONDS
        return at < self._until.get(gpu, at)


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
        (STOPPED_INFO, f"{seen}\nunless {gpu} ({counts})"),
    )
