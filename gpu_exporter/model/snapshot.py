"""Snapshots: all samples of one collection, with the status and the verdict of each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Labels, Metric

if TYPE_CHECKING:
    from gpu_exporter.model.verdict import Verdict


# Why a GPU does not answer that was not read yet, and one whose source does not answer.
UNREAD, SOURCE_LOST = "unread", "source_lost"


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """Whether a GPU answers. `read_at` is the time of the last successful read (monotonic seconds), `stalled` for how
    many seconds a driver call has been stuck."""

    gpu: Gpu
    up: bool
    reason: str = ""
    read_at: float | None = None
    stalled: float = 0.0


class GpuSamples(NamedTuple):
    """A GPU with its latest samples, the time of the read (monotonic seconds; None if they are too old), and the
    metrics that it does not support, with the reason."""

    gpu: Gpu
    read_at: float | None
    samples: Sequence[Sample]
    unsupported: Mapping[Metric, str]


class Row(NamedTuple):
    """A sample that the exporter makes itself, before it has a series."""

    metric: Metric
    gpu: Gpu | None
    value: float
    labels: Labels


@dataclass(frozen=True, slots=True)
class OwnerLabels:
    """The owner labels of classic families, by UUID and GPU instance ("": the whole GPU); `default` for all others.

    Empty ones are written, too, so that Prometheus with `honor_labels` does not add its own.
    """

    default: Labels = ()
    by_device: Mapping[tuple[str, str], Labels] = field(default_factory=dict)

    def labels(self, series: Series) -> Labels:
        """Return the owner labels of a series; none unless it belongs to a classic family and a GPU."""
        if series.gpu is None or not series.metric.classic:
            return ()
        return self.by_device.get((series.gpu.uuid, dict(series.labels).get("GPU_I_ID", "")), self.default)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All samples of one collection, made at unix time `at`, with the status and the verdict of each GPU.

    `source`, `live` and `description` are those of the source that was read.
    """

    at: float
    source: str
    samples: tuple[Sample, ...] = ()
    gpus: tuple[GpuStatus, ...] = ()
    live: bool = True
    verdicts: tuple[Verdict, ...] = ()
    owner_labels: OwnerLabels = OwnerLabels()
    description: str = ""

    @property
    def banner(self) -> str:
        """That these are not GPUs of now, but a recording or a simulation; empty if they are."""
        return "" if self.live else f"These are not your GPUs: {self.description or self.source}"

    @property
    def read_at(self) -> float | None:
        """The time of the last successful read of any GPU (monotonic seconds); None if there was none."""
        return max((status.read_at for status in self.gpus if status.read_at is not None), default=None)
