"""The protocols of sources and devices, and of what else the loop is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gpu_exporter.model.gpu import Gpu, Owner, Reading, Sample, XidEvent
from gpu_exporter.model.metric import Metric, Pace
from gpu_exporter.model.snapshot import GpuSamples, OwnerLabels, Row

if TYPE_CHECKING:
    from threading import Lock


# What a source that shows no GPUs of this machine says of itself, wherever people look.
NOT_YOURS = {"replay": "a recording of real GPUs, played over", "simulated": "simulated GPUs that exist nowhere"}


class Attribution(Protocol):
    """The owners of the GPUs, which the source itself does not know."""

    def attribute(self, gpus: Sequence[GpuSamples]) -> tuple[OwnerLabels, Sequence[Row]]:
        """The owners of these GPUs. Asks nobody, never raises."""


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
        """Give back what the device holds. Never raises."""


@runtime_checkable
class Glancing(Protocol):
    """What a device is, too, that can be read between two ticks for what is shorter than one."""

    def glance(self) -> Reading | None:
        """Alone what histograms are made of means of; None if there is nothing. Raises GpuLost or SourceLost."""


@runtime_checkable
class Staged(Protocol):
    """What a source is, too, that plays what can go wrong: some of that is not in its readings."""

    def reports_xids(self) -> bool:
        """Whether Xids come from it, although it is not live."""

    def dead(self) -> bool:
        """Whether the exporter does not answer any more."""


@runtime_checkable
class Sampled(Protocol):
    """What a source is, too, whose fields somebody else samples in his own time."""

    @property
    def reads_until_profiled(self) -> int:
        """How often a GPU is read until its profiling values are there."""

    def sample_every(self, seconds: float) -> None:
        """What is read most often is to be sampled so often. Before `open`."""


@runtime_checkable
class Instant(Protocol):
    """What a source is, too, whose reads are arithmetic: a thread for each GPU would only be in the way.

    `gil_lock` is held by whoever reads and renders: of thousands of threads that compute, one at a time gets on.
    """

    gil_lock: Lock

    def instant(self, index: int) -> bool:
        """Whether no read of this GPU ever waits."""


class Source(Protocol):
    """A way to read fields: nvml, dcgm, replay, simulated. Every method but `close` may block in a driver."""

    name: str
    live: bool

    def open(self) -> None:
        """Connect, also again after SourceLost. Raises SourceLost."""

    def count(self) -> int:
        """The number of GPUs that answer to an index now. Raises SourceLost."""

    def expected(self) -> int | None:
        """The number of GPUs that ought to be there, if that can be known without the driver."""

    def reload_needed(self) -> bool | None:
        """Whether library and kernel driver differ in version, if that can be known without the driver."""

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        """Identify one GPU and probe which of `metrics` it answers. Raises GpuLost or SourceLost."""

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        """Who has this GPU, as far as the source itself knows. Asks no driver, never raises."""

    def non_gpu_samples(self) -> Sequence[Sample]:
        """The latest samples of what is no GPU (NVSwitches, CPUs). Asks no driver, never raises."""

    def close(self) -> None:
        """Give the library back. Never raises."""
