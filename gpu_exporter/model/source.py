"""The protocols of sources, their devices and attribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.snapshot import GpuSamples, OwnerLabels, Row

if TYPE_CHECKING:
    from threading import Lock


class Attribution(Protocol):
    """The owners of GPUs, from another part of the system than the source."""

    def attribute(self, gpus: Sequence[GpuSamples]) -> tuple[OwnerLabels, Sequence[Row]]:
        """The owners of these GPUs, as far as known now. Never blocks, never raises."""


class Device(Protocol):
    """One attached GPU. Used by one thread at a time."""

    gpu: Gpu

    @property
    def xids_since(self) -> float | None:
        """When the driver was asked to report XIDs (unix time); None if it does not."""

    def events(self) -> Sequence[XidEvent]:
        """XIDs that the driver reported since the last call. Never raises."""

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Read the fields of these paces. Raises GpuLost or SourceLost."""

    def close(self) -> None:
        """Release everything that the device holds. Never raises."""


@runtime_checkable
class Glancing(Protocol):
    """A device that can also be read between two ticks, for histograms."""

    def glance(self) -> Reading | None:
        """Read only the means that histograms are made of; None if there are none. Raises GpuLost or SourceLost."""


@runtime_checkable
class Staged(Protocol):
    """A source that simulates failures, some of which are not in its readings."""

    def reports_xids(self) -> bool:
        """Whether it reports Xids although it is not live."""

    def dead(self) -> bool:
        """Whether the exporter does not respond any more."""


@runtime_checkable
class Sampled(Protocol):
    """A source whose fields are sampled by another program at that program's rate."""

    @property
    def reads_until_profiled(self) -> int:
        """How often a GPU is read until its profiling values are there."""

    def sample_every(self, seconds: float) -> None:
        """Set how often the fastest fields are sampled. Call it before `open`."""


@runtime_checkable
class Instant(Protocol):
    """A source whose reads are only computation, for which a thread for each GPU has no use.

    `gil_lock` is held while reading and rendering: of thousands of threads that compute, one at a time makes progress.
    """

    gil_lock: Lock

    def instant(self, index: int) -> bool:
        """Whether no read of this GPU ever waits."""


class Source(Protocol):
    """A way to read GPUs. Every method but `close` may block in a driver.

    `name`, `description` and `live` are those of its `SourceKind`.
    """

    name: str
    description: str
    live: bool

    def open(self) -> None:
        """Connect, also again after SourceLost. Raises SourceLost."""

    def count(self) -> int:
        """The number of GPUs that have an index now. Raises SourceLost."""

    def expected(self) -> int | None:
        """The number of GPUs that should be there, if that is known without the driver."""

    def reload_needed(self) -> bool | None:
        """Whether library and kernel driver differ in version, if that is known without the driver."""

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        """Identify one GPU and detect which of `metrics` it supports. Raises GpuLost or SourceLost."""

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """The owners of this GPU that the source itself knows. Calls no driver, never raises."""

    def non_gpu_samples(self) -> Sequence[Sample]:
        """The latest samples of entities without a GPU (NVSwitches, CPUs). Calls no driver, never raises."""

    def close(self) -> None:
        """Release the library. Never raises."""
