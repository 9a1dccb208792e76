"""The lines of a recording file, plain or gzip. Size and number are limited, whatever the file unpacks to."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn, cast

from gpu_exporter.io.file_access import open_regular
from gpu_exporter.model.errors import GpuExporterError

# Eight GPUs recorded ten times a second reach this after about twenty minutes, a single one after almost three hours.
MOST_BYTES = 256 << 20
MOST_LINES = 1_000_000
# A line of all metrics has about 4 kB.
MOST_LINE_BYTES = 1 << 20


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each line. Raises GpuExporterError."""
    number = 0
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            unpacked = gzip.GzipFile(fileobj=raw) if zipped else raw
            for number, line in _limited(path, cast(IO[bytes], unpacked)):
                yield number, line
    except FileNotFoundError:
        raise GpuExporterError(f"recording {path}: no such file; check --recording") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        damaged(path, number + 1, f"the gzip stream is truncated or corrupt ({error})")
    except OSError as error:
        raise GpuExporterError(f"recording {path}: {error.strerror or error}") from error


def _limited(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    number = total = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        total += len(line)
        if len(line) > MOST_LINE_BYTES:
            damaged(path, number, f"longer than {MOST_LINE_BYTES >> 20} MiB; this is not a line of a recording")
        if total > MOST_BYTES or number > MOST_LINES:
            damaged(path, number, f"{beyond_limit('unpacked')}; record for a shorter time")
        yield number, line


def beyond_limit(state: str) -> str:
    """Return what is wrong with a recording that is too large."""
    return f"the recording has more than {MOST_BYTES >> 20} MiB {state} or {MOST_LINES} lines"


def damaged(path: Path, number: int, what: str) -> NoReturn:
    """Raise GpuExporterError for a line."""
    raise GpuExporterError(f"recording {path}, line {number}: {what}")
