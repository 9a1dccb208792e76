"""Several threads that observe the machine of the GPUs, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_exporter.model.snapshot import GpuSamples, Row
from gpu_exporter.model.source import HostEvidence


@dataclass(frozen=True, slots=True)
class Several:
    """The rows of several observers. Implements `HostEvidence`."""

    parts: Sequence[HostEvidence]

    def start(self) -> None:
        """Start all of them."""
        for part in self.parts:
            part.start()

    def rows(self, gpus: Sequence[GpuSamples]) -> Sequence[Row]:
        """Return the latest rows of all. Never blocks, never raises."""
        return [row for part in self.parts for row in part.rows(gpus)]

    def stop(self) -> None:
        """Request the end of all; does not wait for it."""
        for part in self.parts:
            part.stop()
