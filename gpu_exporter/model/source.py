"""The protocols of sources, their devices and attribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.snapshot import GpuSamples, OwnerLabels, Row

if TYPE_CHECKING:
    from threading import Lock


class Attribution(Protocol):
    """Looks up the owners of GPUs elsewhere than in the source."""

    def attribute(self, gpus: Sequence[GpuSamples]) -> tuple[OwnerLabels, Sequence[Row]]:
        """Return the owners of these GPUs, as far as known now. Never blocks, never raises."""


class HostEvidence(Protocol):
    """Observes what the host does for the processes on the GPUs, on its own thread."""

    def start(self) -> None:
        """Start to observe."""

    def rows(self, gpus: Sequence[GpuSamples]) -> Sequence[Row]:
        """Return the latest evidence, and note the processes for the next look. Never blocks, never raises."""

    def stop(self) -> None:
        """Request the end; does not wait for it."""


class Telemetry(Protocol):
    """Makes samples on its own thread: of what training loops send, or of profiles."""

    def start(self) -> None:
        """Start."""

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series]) -> Sequence[Sample]:
        """Return the latest samples, and note the processes and pods of each GPU. Never blocks, never raises.

        `pods` are the series of `gpu_pod_info`.
        """

    def stop(self) -> None:
        """Request the end; does not wait for it."""


class Device(Protocol):
    """One attached GPU. Used by one thread at a time."""

    gpu: Gpu

    @property
    def xids_since(self) -> float | None:
        """Since when the driver reports XIDs (unix time); None if it does not."""

    def events(self) -> Sequence[XidEvent]:
        """Return the XIDs that the driver reported since the last call. Never raises."""

    def read(self, paces: frozenset[Pace]) -> Reading:
        """Read the fields of these paces. Raises GpuLost or SourceLost."""

    def close(self) -> None:
        """Release everything that the device holds of the driver. Never raises."""


@runtime_checkable
class MeansReader(Protocol):
    """A device that can also be read between two collections, for histograms."""

    def read_means(self) -> Reading | None:
        """Read only the means that histograms are made of. None if there are none. Raises GpuLost or SourceLost."""


@runtime_checkable
class Staged(Protocol):
    """A source that simulates failures, also ones that its readings cannot show."""

    def reports_xids(self) -> bool:
        """Return whether it reports XIDs although it is not live."""

    def dead(self) -> bool:
        """Return whether it simulates an exporter that does not respond."""


@runtime_checkable
class Sampled(Protocol):
    """A source whose fields are sampled by another program at that program's rate."""

    @property
    def reads_until_profiled(self) -> int:
        """How often a GPU must be read until it has profiling values."""

    def sample_every(self, seconds: float) -> None:
        """Set how often the fastest fields are sampled. Call it before `open`."""


@runtime_checkable
class Instant(Protocol):
    """A source whose reads only compute, so that its GPUs need no threads.

    `gil_lock` is held while reading and rendering: of thousands of threads that compute, only one makes progress.
    """

    gil_lock: Lock

    def instant(self, index: int) -> bool:
        """Return whether no read of this GPU ever waits."""


@runtime_checkable
class Narrowed(Protocol):
    """A source with only some of the GPUs of a driver: their positions in it are not the driver's indices."""

    def gpu_index(self, position: int) -> int:
        """Return the driver's index of the GPU at this position. Calls no driver."""


@runtime_checkable
class OnBus(Protocol):
    """A source whose GPUs are on the PCI bus of this machine."""

    def bus(self) -> Sequence[PciGpu]:
        """Return the GPUs on the bus that should answer; none if that is not known. Calls no driver."""


class Source(Protocol):
    """A way to read GPUs. Every method may block in a driver, except `owners` and `non_gpu_samples`.

    `name`, `description` and `live` are those of its `SourceKind`.
    """

    name: str
    description: str
    live: bool

    def open(self) -> None:
        """Connect, or reconnect after SourceLost. Raises SourceLost."""

    def count(self) -> int:
        """Return the number of GPUs that have an index now. Raises SourceLost."""

    def expected(self) -> int | None:
        """Return the number of GPUs that should answer; None if that is not known without the driver."""

    def reload_needed(self) -> bool | None:
        """Return whether library and kernel driver differ in version; None if that is not known without the driver."""

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        """Identify one GPU and detect which of `metrics` it supports. Raises GpuLost or SourceLost."""

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """Return the owners of this GPU that the source itself knows. Calls no driver, never raises."""

    def non_gpu_samples(self) -> Sequence[Sample]:
        """Return the latest samples of entities without a GPU (NVSwitches, CPUs). Calls no driver, never raises."""

    def close(self) -> None:
        """Release the library. Never raises."""
