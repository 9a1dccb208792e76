"""Some GPUs of the machine, such as those of one process of a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_exporter.model.metric import Metric
from gpu_exporter.sources.nvml.device import NvmlDevice
from gpu_exporter.sources.nvml.source import NvmlSource


class SomeGpus(NvmlSource):
    """Counts and attaches only these, by the driver's index."""

    def __init__(self, gpus: Sequence[int], *, procfs: Path) -> None:
        super().__init__(procfs=procfs)
        self._gpus = gpus

    def count(self) -> int:
        super().count()
        return len(self._gpus)

    def expected(self) -> int | None:
        return len(self._gpus)

    def attach(self, index: int, metrics: Sequence[Metric]) -> NvmlDevice:
        return super().attach(self._gpus[index], metrics)
