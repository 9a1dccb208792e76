"""Chooses the reader of a trace by its content."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from gpu_exporter.io.file_access import open_regular
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.chunks import Progress
from gpu_exporter.traces.model import Trace

HEAD_BYTES = 4096
# Whether a reader understands a file, by its first bytes, and the module with its `read`. The last reads the rest.
READERS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: head.startswith(b"SQLite format 3\0"), "gpu_exporter.traces.nsight_systems"),
    (lambda head: True, "gpu_exporter.traces.kineto"),
)


def read(path: Path, progress: Progress | None = None) -> Trace:
    """Return the trace in a file. Raises GpuExporterError, with the name of the file, and OSError."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise GpuExporterError(f"{path}: {error.strerror}") from error
    module = next(name for matches, name in READERS if matches(head))
    try:
        trace: Trace = import_module(module).read(path, progress)
    except GpuExporterError as error:
        raise GpuExporterError(f"{path}: {error}") from error
    return replace(trace, path=str(path))
