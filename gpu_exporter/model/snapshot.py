"""The words of the project as types: field, entity, metric, sample, snapshot, source, and the two errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels, Metric

if TYPE_CHECKING:
    from gpu_exporter.model.verdict import Verdict


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Whether a GPU answers. `read_at` is when it was last read well (monotonic seconds), `stalled` how long a driver
    call has been stuck."""

    gpu: Gpu
    up: bool
    reason: str = ""
    read_at: float | None = None
    stalled: float = 0.0


class Seen(NamedTuple):
    """A GPU with its latest samples, when they were read (monotonic seconds) if they still hold, and what it can't
    answer."""

    gpu: Gpu
    read_at: float | None
    samples: Sequence[Sample]
    unsupported: Mapping[Metric, str]


class Row(NamedTuple):
    """A sample of the exporter's own, before it has its series."""

    metric: Metric
    gpu: Gpu | None
    value: float
    labels: Labels


@dataclass(frozen=True, slots=True)
class OwnerLabels:
    """The owner's labels on the classic families: by UUID and GPU instance ("": the whole GPU), else those of nobody.

    They are written also where they are empty: Prometheus with `honor_labels` then does not put in its own.
    """

    free: Labels = ()
    taken: Mapping[tuple[str, str], Labels] = field(default_factory=dict)

    def labels(self, series: Series) -> Labels:
        """Those of a series: none if it is not of a classic family of a GPU."""
        if series.gpu is None or not series.metric.classic:
            return ()
        return self.taken.get((series.gpu.uuid, dict(series.labels).get("GPU_I_ID", "")), self.free)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples of one collection, made at unix time `at`, plus what was lost and why, and a verdict on each GPU.

    `source`, `live` and `description` are those of the source that it was read from.
    """

    at: float
    source: str
    samples: tuple[Sample, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    live: bool = True
    verdicts: tuple[Verdict, ...] = ()
    owned: OwnerLabels = OwnerLabels()
    description: str = ""

    @property
    def read_at(self) -> float | None:
        """When any GPU was last read well (monotonic seconds); None if none was yet."""
        return max((status.read_at for status in self.gpus if status.read_at is not None), default=None)
