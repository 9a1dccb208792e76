"""The activities of simulated GPUs, each with the values of a recorded phase of real GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, mode, pstdev
from typing import NamedTuple

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import BY_KEY
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.sources.recording.format import SETTLE_SECONDS, ticks


class ValueStatistics(NamedTuple):
    """The statistics of one value in a phase; `mode` is the most frequent value."""

    mean: float
    deviation: float
    low: float
    high: float
    mode: float


def statistics(path: Path) -> tuple[Gpu, Mapping[str, Mapping[str, ValueStatistics]]]:
    """Return the first GPU of a recording, and by phase the statistics of every value after the first seconds.

    Raises GpuExporterError as `load` does.
    """
    begun: dict[int, tuple[str, float]] = {}
    by_phase: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first: Gpu | None = None
    for t, gpu, phase, samples in ticks(path):
        first = first or gpu
        if begun.get(gpu.index, ("", 0.0))[0] != phase:
            begun[gpu.index] = phase, t
        if phase and t - begun[gpu.index][1] >= SETTLE_SECONDS:
            for name, value in samples.items():
                by_phase[phase][name].append(value)
    return first or Gpu(0), {
        phase: {name: _statistics_of(values) for name, values in columns.items()} for phase, columns in by_phase.items()
    }


def _statistics_of(values: Sequence[float]) -> ValueStatistics:
    return ValueStatistics(fmean(values), pstdev(values), min(values), max(values), mode(values))


IDLE, COPY, WARM_UP = "idle", "pcie_h2d_pinned", "data_loading_bound_train"
# Phases of a healthy training job. Only the first was recorded on GPUs that work together.
TOGETHER, ALONE = "ddp_balanced", ("train_big_batch", "compute_bound_bf16_gemm")
# Units of values that are constant during an activity.
HELD = m.STATE_UNITS | {"MiB"}
MEMORY = (m.FB_USED.key, m.FB_FREE.key)


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedActivity:
    """What a GPU does for some time: for each row the middle and the swing of its value, in the exposed unit.

    No swing leaves the recorded range, so no value does.
    """

    name: str
    mid: Sequence[float]
    swing: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class JobKind:
    """A kind of training job: its activities in order, and the seconds that copying its memory takes."""

    load: SimulatedActivity
    warm_up: SimulatedActivity
    train: SimulatedActivity
    save: SimulatedActivity
    hold: SimulatedActivity
    copy_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Workloads:
    """What the recordings contain: a GPU of their model, the row of each metric key, and the activities.

    `free` is idle without memory in use, which was not recorded.
    """

    gpu: Gpu
    rows: Mapping[str, int]
    whole: frozenset[str]
    idle: SimulatedActivity
    free: SimulatedActivity
    together: JobKind
    alone: Sequence[JobKind]


def workloads(paths: Iterable[Path]) -> Workloads:
    """Read the recordings. Raises GpuExporterError if one is damaged, or a phase is in none of them."""
    gpu, phases = Gpu(0), dict[str, Mapping[str, ValueStatistics]]()
    for path in paths:
        gpu, of_path = statistics(path)
        phases.update(of_path)
    missing = [name for name in (IDLE, COPY, WARM_UP, TOGETHER, *ALONE) if name not in phases]
    if missing:
        raise GpuExporterError(
            f"source simulated: no packaged recording has the phase {missing[0]}; reinstall gpu-exporter"
        )
    used = [phases[name] for name in (IDLE, COPY, WARM_UP, TOGETHER, *ALONE)]
    keys = [key for key in used[0] if key in BY_KEY and all(key in levels for levels in used)]
    return Workloads(
        gpu,
        {key: row for row, key in enumerate(keys)},
        frozenset(key for key in keys if all(_is_whole(levels[key]) for levels in used)),
        _activity(IDLE, keys, phases[IDLE]),
        _activity("free", keys, _without_memory(phases[IDLE])),
        _kind(TOGETHER, keys, phases),
        [_kind(name, keys, phases) for name in ALONE],
    )


def _without_memory(levels: Mapping[str, ValueStatistics]) -> Mapping[str, ValueStatistics]:
    used, free = (levels[key].mode for key in MEMORY)
    emptied = zip(MEMORY, (0.0, used + free), strict=True)
    return {**levels, **{key: ValueStatistics(value, 0.0, value, value, value) for key, value in emptied}}


def _kind(name: str, keys: Sequence[str], phases: Mapping[str, Mapping[str, ValueStatistics]]) -> JobKind:
    """Return a kind of job. Its memory is the same in all activities; saving is the reverse of the recorded copy."""
    held = {key: phases[name][key] for key in MEMORY}
    copy, rx, tx = phases[COPY], m.PCIE_RX.key, m.PCIE_TX.key
    return JobKind(
        load=_activity("load", keys, {**copy, **held}),
        warm_up=_activity("warm up", keys, {**phases[WARM_UP], **held}),
        train=_activity(name, keys, phases[name]),
        save=_activity("save", keys, {**copy, **held, rx: copy[tx], tx: copy[rx]}),
        hold=_activity("hold", keys, {**phases[IDLE], **held}),
        copy_seconds=held[m.FB_USED.key].mode * m.MIB / copy[rx].mean,
    )


def _activity(name: str, keys: Sequence[str], levels: Mapping[str, ValueStatistics]) -> SimulatedActivity:
    held = [BY_KEY[key].unit in HELD for key in keys]
    return SimulatedActivity(
        name,
        [levels[key].mode if still else levels[key].mean for key, still in zip(keys, held, strict=True)],
        [0.0 if still else _swing(levels[key]) for key, still in zip(keys, held, strict=True)],
    )


def _is_whole(value: ValueStatistics) -> bool:
    return all(float(value).is_integer() for value in (value.low, value.high, value.mode))


def _swing(value: ValueStatistics) -> float:
    """Return the amplitude of a sine with the spread of the recording, limited to its range."""
    return min(sqrt(2) * value.deviation, value.high - value.mean, value.mean - value.low)
