"""A source narrowed to chosen GPUs, by index or UUID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.gpu import Gpu, Owner, Sample
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.source import Device, Source

if TYPE_CHECKING:
    from gpu_exporter.model.finding import Finding


class Subset(Source):
    """Another source, narrowed to these GPUs by index, UUID or its beginning. All must exist at first; later, one may
    be gone.

    `setting` is the beginning of the message about a missing GPU.
    """

    def __init__(self, source: Source, chosen: Sequence[int | str], *, setting: str = "--devices") -> None:
        self.name, self.description, self.live = source.name, source.description, source.live
        self._source = source
        self._chosen = chosen
        self._setting = setting
        self._indices: list[int | None] = []

    @property
    def through_hostengine(self) -> bool:
        return self._source.through_hostengine

    @property
    def reads_until_profiled(self) -> int:
        return self._source.reads_until_profiled

    def sample_every(self, seconds: float) -> None:
        self._source.sample_every(seconds)

    def read_rarely(self, metrics: frozenset[Metric]) -> None:
        self._source.read_rarely(metrics)

    def open(self) -> None:
        self._source.open()
        first = not self._indices
        self._indices = [self._index_of(gpu) for gpu in self._chosen]
        missing = [str(gpu) for gpu, index in zip(self._chosen, self._indices, strict=True) if index is None]
        if first and missing:
            self._indices = []
            message = f"{self._setting}: there is no GPU {', '.join(missing)}"
            raise SourceLost(message, "no_gpu", fix=f"choose from {self._choices()}")

    def _index_of(self, gpu: int | str) -> int | None:
        count = self._source.count()
        if isinstance(gpu, int):
            return gpu if gpu < count else None
        return next((index for index in range(count) if self._uuid(index).startswith(gpu)), None)

    def _uuid(self, index: int) -> str:
        try:
            device = self._source.attach(index, ())
        except GpuLost:
            return ""
        device.close()
        return device.gpu.uuid

    def _choices(self) -> str:
        return ", ".join(f"{index} ({self._uuid(index) or 'lost'})" for index in range(self._source.count()))

    def count(self) -> int:
        self._source.count()
        return len(self._indices)

    def expected(self) -> int | None:
        return len(self._chosen)

    def reload_needed(self) -> bool | None:
        return self._source.reload_needed()

    def gpu_index(self, position: int) -> int:
        """Return the index of a chosen GPU, even if it is lost; its position if its UUID was not found."""
        chosen, index = self._chosen[position], self._indices[position]
        if isinstance(chosen, int):
            return chosen
        return position if index is None else index

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        chosen, its_index = self._chosen[index], self._indices[index]
        if its_index is not None:
            device = self._source.attach(its_index, metrics)
            if chosen == its_index or (isinstance(chosen, str) and device.gpu.uuid.startswith(chosen)):
                return device
            device.close()
        its_index = self._indices[index] = self._index_of(chosen)  # it may have another index by now
        if its_index is None:
            raise GpuLost(f"GPU {chosen}: the driver no longer lists it", "gone")
        return self._source.attach(its_index, metrics)

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return self._source.owners(gpu)

    def non_gpu_samples(self) -> Sequence[Sample]:
        return self._source.non_gpu_samples()

    def reports_xids(self) -> bool:
        return self._source.reports_xids()

    def dead(self) -> bool:
        return self._source.dead()

    def findings(self) -> Sequence[Finding]:
        return self._source.findings()

    def close(self) -> None:
        self._source.close()
