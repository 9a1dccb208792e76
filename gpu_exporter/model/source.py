"""Sources of GPUs and their devices, and what else a collection reads: owners, the host, training loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, Series, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.pci import PciGpu
from gpu_exporter.model.snapshot import GpuSamples, OwnerLabels, Row

if TYPE_CHECKING:
    from gpu_exporter.model.finding import Finding


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


class Device(ABC):
    """One attached GPU. Used by one thread at a time. The defaults are those of a GPU that only has readings.

    `xids_since` is since when the driver reports XIDs (unix time); None if it does not. With `reads_means`, what
    `read` returns are means since the previous read, and `read_means` can read those of histograms alone. Without
    `substitutes`, rows that stand in for others (`Metric.instead_of`) are not read: another source has the others.
    `pcie_port` is the capacity of the best link that the PCIe port above it allows, in bytes/s; None if it is unknown.
    """

    gpu: Gpu
    xids_since: float | None = None
    reads_means: bool = False
    substitutes: bool = True
    pcie_port: float | None = None

    @property
    def in_driver(self) -> bool:
        """Whether a read in progress is in a call into the driver; if that never returns, the GPU is at fault."""
        return True

    @abstractmethod
    def read(self, paces: frozenset[Pace]) -> Reading:
        """Read the fields of these paces. Raises GpuLost, SourceLost, or GpuNotSampled if there is nothing new yet."""

    def read_means(self) -> Reading | None:
        """Read only the means that histograms are made of. None if there are none. Raises GpuLost or SourceLost."""
        return None

    def events(self) -> Sequence[XidEvent]:
        """Return the XIDs that the driver reported since the last call. Never raises."""
        return ()

    def close(self) -> None:  # noqa: B027 - most devices hold nothing
        """Release everything that the device holds of the driver. Never raises."""


class Source(ABC):
    """A way to read GPUs. It overrides what it can do; the defaults are those of a source that only has readings.

    Every method may block in a driver, unless it says that it calls none. `name`, `description` and `live` are those
    of its `SourceKind`. `gil_lock` is held while reading and rendering: of thousands of threads that only compute, one
    makes progress.
    """

    name: str
    description: str
    live: bool
    gil_lock: AbstractContextManager[object] = nullcontext()

    # --- its GPUs -------------------------------------------------------------------------------------------------

    def open(self) -> None:  # noqa: B027 - a source without a driver has nothing to open
        """Connect, or reconnect after SourceLost. Raises SourceLost."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of GPUs that have an index now. Raises SourceLost."""

    @abstractmethod
    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        """Identify one GPU and detect which of `metrics` it supports. Raises GpuLost or SourceLost."""

    def identities(self) -> Mapping[int, tuple[str, str]]:
        """Return the UUID and the PCI address of each GPU that another source may have, too, by index; only those that
        can be read now. Raises SourceLost."""
        return {}

    def close(self) -> None:  # noqa: B027 - a source without a driver has nothing to release
        """Release the library. Never raises."""

    # --- how they are read ----------------------------------------------------------------------------------------

    def sample_every(self, seconds: float) -> None:  # noqa: B027 - most sources are sampled by being read
        """Set how often another program samples the fastest fields, if one does. Call it before `open`."""

    def read_rarely(self, metrics: frozenset[Metric]) -> None:  # noqa: B027 - most sources are as fast with all metrics
        """Set which metrics are not exposed, but only derived from or shown elsewhere: they may be read less often."""

    @property
    def through_hostengine(self) -> bool:
        """Whether the GPUs are read through another program, whose silence says nothing about them.

        Each call of such a source ends by itself: it raises SourceLost if that program makes no progress.
        """
        return False

    @property
    def reads_until_profiled(self) -> int:
        """How often a GPU must be read until it has profiling values: a mean needs two reads."""
        return 2

    def instant(self, index: int) -> bool:
        """Return whether no read of this GPU ever waits, because it only computes: then it needs no thread."""
        return False

    # --- what is known without the driver: these methods call none ------------------------------------------------

    def bus(self) -> Sequence[PciGpu]:
        """Return the GPUs on the PCI bus of this machine that should answer; none if that is not known."""
        return ()

    def expected(self) -> int | None:
        """Return the number of GPUs that should answer where `bus` returns none; None if that is not known, either."""
        return None

    def gpu_index(self, position: int) -> int:
        """Return the driver's index of the GPU at this position: another one if the source has only some GPUs."""
        return position

    def reload_needed(self) -> bool | None:
        """Return whether library and kernel driver differ in version; None if that is not known."""
        return None

    def reports_xids(self) -> bool:
        """Return whether its GPUs may have XIDs: real ones may."""
        return self.live

    def dead(self) -> bool:
        """Return whether it simulates an exporter that does not respond."""
        return False

    # --- what was read last: these methods call no driver and never raise -----------------------------------------

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """Return the owners of this GPU that the source itself knows."""
        return ()

    def non_gpu_samples(self) -> Sequence[Sample]:
        """Return the latest samples of entities without a GPU (NVSwitches, CPUs)."""
        return ()

    def findings(self) -> Sequence[Finding]:
        """Return findings on the library or service that the source uses."""
        return ()
