"""What remains of a trace after its analysis: small, and made of values that another process can send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_exporter.traces.collectives import CallsByGroup
from gpu_exporter.traces.model import Distributed, TraceRecorder
from gpu_exporter.traces.rank_files import RankFile
from gpu_exporter.traces.result import Advice, RankResult, RankTimeline
from gpu_exporter.traces.waiting import Communication


@dataclass(frozen=True)
class GpuSummary:
    """One GPU of one trace. `result` and `advice` have nothing yet that depends on other ranks."""

    result: RankResult
    advice: tuple[Advice, ...]
    span: tuple[int, int]  # ns
    communication: Communication
    timeline: RankTimeline | None  # None without details
    gpu_stacks: Mapping[str, float]  # GPU seconds by folded stack; empty without details


@dataclass(frozen=True)
class RankSummary:
    """One trace: what its GPUs did, and what the comparison with other ranks needs."""

    file: str
    distributed: Distributed | None
    gpus: tuple[GpuSummary, ...]
    calls: CallsByGroup
    idle_stacks: Mapping[str, float]  # seconds by folded stack; empty without details, which are most of the size
    dropped: Mapping[str, int]
    repaired: int
    launches: int = 0  # of kernels, by the host; 0 if there are GPUs
    recorder: TraceRecorder = TraceRecorder.PYTORCH

    @property
    def rank_file(self) -> RankFile:
        """What tells its rank."""
        return RankFile(self.file, self.distributed, [gpu.span[0] for gpu in self.gpus])
