"""Ways to read fields, behind one protocol (`model.Source`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_exporter.finding import Level
from gpu_exporter.machine import bindings
from gpu_exporter.model import Source, SourceLost


def local_gpus(*, procfs: Path = Path("/proc"), gpus: Sequence[int] | None = None) -> Source:
    """The GPUs of this machine, or some of them. Raises SourceLost if another module stands where the bindings should.

    They are imported only now, so that such a module costs one line, and whoever needs no driver nothing.
    """
    found = bindings()
    if found.level is Level.FAIL:
        raise SourceLost(f"{found.what}: {found.cure}")
    from gpu_exporter.sources.nvml import NvmlSource
    from gpu_exporter.sources.nvml.some import SomeGpus

    return NvmlSource(procfs=procfs) if gpus is None else SomeGpus(gpus, procfs=procfs)
