"""The trace files that commands read, and NumPy, which this needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_exporter.cli.failure import CommandFailure
from gpu_exporter.cli.options import COULD_NOT_TELL
from gpu_exporter.cli.progress import Progress

if TYPE_CHECKING:
    from gpu_exporter.traces.model import Trace

MISSING = "trace needs NumPy, which is not installed: pip install numpy"


def require_numpy() -> None:
    """Raise Failure with one line if NumPy is not installed."""
    if importlib.util.find_spec("numpy") is None:
        raise CommandFailure(MISSING, COULD_NOT_TELL)


def read_all(paths: Sequence[Path]) -> list[Trace]:
    """Read traces, with progress on a terminal. Raises GpuExporterError and OSError."""
    require_numpy()
    from gpu_exporter.traces.reader import read

    traces = []
    for number, path in enumerate(paths, 1):
        share = [0.0]

        def report(done: int, total: int, share: list[float] = share) -> None:
            share[0] = done / total if total else 1.0

        of_all = f" ({number} of {len(paths)})" if len(paths) > 1 else ""
        with Progress(f"reading {path.name}{of_all}", share=lambda share=share: share[0]):  # type: ignore[misc]
            traces.append(read(path, report))
    return traces
