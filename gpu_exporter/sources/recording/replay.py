"""Replays a recording, as if its GPUs were in this machine now. Every series is labelled as replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpu_exporter.catalogue.metrics import GAUGES_OF_SAMPLES, METRICS, NON_GPU_ENTITIES, STATE_UNITS
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Owner, Reading, Series
from gpu_exporter.model.metric import EntityKind, Kind, Metric, Pace
from gpu_exporter.model.source import Device, Source
from gpu_exporter.model.source_kind import OF_SIMULATED, REPLAY
from gpu_exporter.sources.integrals import integrate
from gpu_exporter.sources.recording.columns import Column, Recording, mean
from gpu_exporter.sources.recording.format import job_of

# A recorded gauge of the driver's last sample has every sample if it was recorded at least this often.
SAMPLE_SECONDS = 0.2
# A GPU without metrics of these entities does not lack them.
OTHER_ENTITIES = NON_GPU_ENTITIES | {EntityKind.INSTANCE}


class ReplaySource(Source):
    """Plays a recording at `speed` times its own pace, repeatedly if `loop`."""

    name, description, live = REPLAY

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1.0,
        loop: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recording = recording
        if recording.simulated:
            self.description = OF_SIMULATED
        self._speed = speed
        self._loop = loop
        self._clock = clock
        self._begin = clock()

    def count(self) -> int:
        return len(self._recording.gpus)

    def expected(self) -> int | None:
        return len(self._recording.gpus)

    def attach(self, index: int, metrics: Sequence[Metric]) -> ReplayDevice:
        gpu = self._recording.gpus[index]
        return ReplayDevice(self, gpu, self._recording.columns[gpu.index], metrics)

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """Return the recording as one job."""
        return (Owner(workload=job_of(self._recording.path)),)

    def position(self) -> float:
        """Return the seconds of recording played so far, over all loops. It starts at the first tick."""
        return self._recording.interval + (self._clock() - self._begin) * self._speed

    @property
    def ended(self) -> bool:
        return not self._loop and self.position() > self._recording.duration

    @property
    def duration(self) -> float:
        """Seconds of recording in one loop."""
        return self._recording.duration

    @property
    def interval(self) -> float:
        """Seconds of recording between two ticks."""
        return self._recording.interval

    @property
    def speed(self) -> float:
        """Seconds of recording played in one second."""
        return self._speed


class ReplayDevice(Device):
    """One recorded GPU. A read is the time-weighted mean of the values since the last read."""

    reads_means = True

    def __init__(
        self, source: ReplaySource, gpu: Gpu, columns: Mapping[str, Column], metrics: Sequence[Metric]
    ) -> None:
        self.gpu = gpu
        self._source = source
        self._last: float | None = None
        self._totals: dict[Series, float] = {}
        self._columns: list[tuple[Series, Column, float]] = []
        self._unsupported: dict[Metric, str] = {}
        self._buffered: list[tuple[Series, Column]] = []
        fields = (row for row in METRICS if row.nvml and row.bit is None)
        by_field: dict[object, Metric] = {row.nvml: row for row in fields if row.key in columns}
        for metric in metrics:
            gauge = GAUGES_OF_SAMPLES.get(metric)
            if metric.kind is Kind.HISTOGRAM and gauge is not None and gauge.key in columns:
                self._buffered.append((Series(metric, gpu), columns[gauge.key]))
                continue
            recorded = metric if metric.key in columns else by_field.get(metric.nvml)
            if metric.integrates_samples and gauge is not None and source.interval <= SAMPLE_SECONDS:
                recorded = gauge if gauge.key in columns else None
            if recorded is None and metric.entity in OTHER_ENTITIES:
                continue
            if recorded is None:
                self._unsupported[metric] = "not_recorded"
            else:
                scale = metric.scale / recorded.scale
                # 1 / 1e-9 is 999999999.9999999
                exact = float(round(scale)) if scale > 1 else scale
                self._columns.append((Series(metric, gpu), columns[recorded.key], exact))

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Return all recorded values, whatever the paces: they cost nothing."""
        source = self._source
        if source.ended:
            raise GpuLost(f"GPU {self.gpu.index}: the recording has ended; use --loop to repeat it", "ended")
        now = source.position()
        before = now - source.interval if self._last is None else self._last
        self._last = now
        values: dict[Series, float] = {}
        for series, column, scale in self._columns:
            value = self._value(series.metric, column, before, now)
            if value is not None:
                values[series] = value * scale
        if not values and self._columns:
            raise GpuLost(f"GPU {self.gpu.index}: the recording has no values of this GPU at this time", "lost")
        missing = {series: "not_recorded" for series, *_ in self._columns if series not in values}
        taken = {series: self._samples(column, before, now) for series, column in self._buffered}
        span = (now - before) / source.speed
        integrate(values, self._totals, span)
        return Reading(time.monotonic(), values, span, missing, self._unsupported, buffered=taken)

    def read_means(self) -> Reading:
        """Return all values, as `read` does."""
        return self.read(frozenset())

    def _samples(self, column: Column, before: float, now: float) -> list[tuple[float, float]]:
        """Return the values after `before` until `now`, one for each tick: the driver's buffer has more samples."""
        return [
            (begun + at, value)
            for begun, after, until in self._parts(before, now)
            for at, value in column.ticks(after, until)
        ]

    def _parts(self, before: float, now: float) -> Iterator[tuple[float, float, float]]:
        """Yield each loop between two positions: where it began, and the part of the recording that it plays."""
        duration = self._source.duration
        (first, begin), (last, end) = divmod(before, duration), divmod(now, duration)
        for loop in range(int(first), int(last) + 1):
            yield loop * duration, begin if loop == first else 0.0, end if loop == last else duration

    def _value(self, metric: Metric, column: Column, before: float, now: float) -> float | None:
        loops, t = divmod(now, self._source.duration)
        if metric.kind is Kind.COUNTER and not metric.integrates_samples:
            grown = (column.values[-1] - column.values[0]) * loops if loops else 0.0
            return column.value_at(t) + grown
        held = mean([part for _, after, until in self._parts(before, now) for part in column.held_values(after, until)])
        if held is None:
            return None
        if metric.bit is not None:
            return float((int(column.value_at(t)) >> metric.bit) & 1)
        return column.value_at(t) if metric.unit in STATE_UNITS else held
