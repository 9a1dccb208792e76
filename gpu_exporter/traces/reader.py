"""Chooses the reader of a trace by its content, and says what to do with files that are no traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from shlex import quote

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.content import Progress, opened
from gpu_exporter.traces.model import Trace
from gpu_exporter.traces.xplane import is_xplane

# Whether a reader understands a file, by its first bytes, and the module with its `read`. The last reads the rest.
READERS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: head.startswith(b"SQLite format 3\0"), "gpu_exporter.traces.nsight_systems"),
    (is_xplane, "gpu_exporter.traces.xplane"),
    (lambda head: True, "gpu_exporter.traces.kineto"),
)
_PIPE = "`{} {{0}} | gpu-exporter trace analyze -`"
# What is no trace, by its first bytes or the end of its name, and what to do with it.
OTHERS: tuple[tuple[tuple[bytes, ...], tuple[str, ...], str], ...] = (
    (
        (),
        (".nsys-rep", ".qdrep", ".qdstrm"),
        "a report of Nsight Systems: analyse what `nsys export --type sqlite {0}` writes",
    ),
    (
        (b"NVR\0",),
        (".ncu-rep",),
        "a report of Nsight Compute: `ncu --import {0} --csv --page raw > kernels.csv`, then"
        " `gpu-exporter trace top kernels.csv`",
    ),
    (
        tuple(bytes((0x80, protocol)) for protocol in range(2, 6)),
        (".pickle", ".pkl"),
        "a pickle, such as PyTorch's snapshots of memory, which is not loaded because it can run code:"
        " `python -m torch.cuda._memory_viz trace_plot {0} -o memory.html` shows it, and traces that are recorded with"
        " profile_memory=True have memory, too",
    ),
    ((b"PK\x03\x04",), (), f"a ZIP archive: {_PIPE.format('unzip -p')}"),
    ((b"\xfd7zXZ\0",), (), f"compressed with xz: {_PIPE.format('xz -dc')}"),
    ((b"BZh",), (), f"compressed with bzip2: {_PIPE.format('bzip2 -dc')}"),
    ((b"\x04\x22\x4d\x18",), (), f"compressed with lz4: {_PIPE.format('lz4 -dc')}"),
    ((), (".csv",), "a table, such as a report of kernels: `gpu-exporter trace top {0}`"),
)


def read(source: str | Path, progress: Progress | None = None) -> Trace:
    """Return the trace in a source (see `content`). Raises GpuExporterError, with the name of the source."""
    source = str(source)
    try:
        with opened(source, progress) as content:
            _check(source, content.head)
            module = next(name for matches, name in READERS if matches(content.head))
            trace: Trace = import_module(module).read(content)
    except GpuExporterError as error:
        raise GpuExporterError(f"{source}: {error}") from error
    except OSError as error:
        raise GpuExporterError(f"{source}: {error.strerror or error}") from error
    return replace(trace, path=source)


def _check(source: str, head: bytes) -> None:
    """Raise GpuExporterError, with what to do, if this is a file of another kind."""
    for magics, endings, text in OTHERS:
        if head.startswith(magics) or source.endswith(endings):
            raise GpuExporterError(text.format(quote(source)))
