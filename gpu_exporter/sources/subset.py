"""Some of the GPUs of a source, by number or UUID."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_exporter.model.errors import GpuLost, SourceLost
from gpu_exporter.model.gpu import Gpu, Owner, Sample
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.source import Device, Sampled, Source, Staged


class SomeOf:
    """Another source, of which only these GPUs are seen. All must be there at first; later, one may be gone."""

    def __init__(self, source: Source, chosen: Sequence[int | str]) -> None:
        self.name, self.live = source.name, source.live
        self._source = source
        self._chosen = chosen
        self._places: list[int | None] = []

    @property
    def reads_until_profiled(self) -> int:
        """How often a GPU is read until its profiling values are there."""
        return self._source.reads_until_profiled if isinstance(self._source, Sampled) else 2

    def sample_every(self, seconds: float) -> None:
        """What is read most often is to be sampled so often."""
        if isinstance(self._source, Sampled):
            self._source.sample_every(seconds)

    def open(self) -> None:
        self._source.open()
        first = not self._places
        self._places = [self._place(each) for each in self._chosen]
        missing = [str(each) for each, place in zip(self._chosen, self._places, strict=True) if place is None]
        if first and missing:
            self._places = []
            raise SourceLost(
                f"--devices: there is no GPU {', '.join(missing)}; those there are: {self._there()}", "no_gpu"
            )

    def _place(self, each: int | str) -> int | None:
        count = self._source.count()
        if isinstance(each, int):
            return each if each < count else None
        return next((index for index in range(count) if self._uuid(index) == each), None)

    def _uuid(self, index: int) -> str:
        try:
            device = self._source.attach(index, ())
        except GpuLost:
            return ""
        device.close()
        return device.gpu.uuid

    def _there(self) -> str:
        return ", ".join(f"{index} ({self._uuid(index) or 'lost'})" for index in range(self._source.count()))

    def count(self) -> int:
        self._source.count()
        return len(self._places)

    def expected(self) -> int | None:
        return len(self._chosen)

    def reload_needed(self) -> bool | None:
        return self._source.reload_needed()

    def attach(self, index: int, metrics: Sequence[Metric]) -> Device:
        place = self._places[index]
        if place is None:
            raise GpuLost(f"GPU {self._chosen[index]} is there no more", "gone")
        return self._source.attach(place, metrics)

    def owners(self, gpu: Gpu) -> Sequence[Owner]:
        return self._source.owners(gpu)

    def non_gpu_samples(self) -> Sequence[Sample]:
        return self._source.non_gpu_samples()

    def reports_xids(self) -> bool:
        """Whether Xids come from it, although it is not live."""
        return isinstance(self._source, Staged) and self._source.reports_xids()

    def dead(self) -> bool:
        """Whether the exporter does not answer any more."""
        return isinstance(self._source, Staged) and self._source.dead()

    def close(self) -> None:
        self._source.close()
