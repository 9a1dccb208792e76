"""The recording format: JSON Lines, plain or gzip. A header, then one line for each GPU and tick.

Header: `format`, `version`, `created`, `driver`, `interval_seconds`, `gpus` (each with `gpu`, `UUID`, `device`,
`modelName`, `pci_bus_id`). Line: `t` in unix seconds, `gpu` index, optional `phase`, `samples` from metric key to value
in the exposed unit. A profiling value is the exact mean since the previous tick of this GPU that had one.

Recordings are untrusted: types, sizes and numbers are checked.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeGuard, cast

from gpu_exporter.io.decoding import GZIP, json_as, printable
from gpu_exporter.io.file_access import open_regular
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.source_kind import SIMULATED
from gpu_exporter.sources.recording.columns import Recording, Timeline

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
            zipped = raw.peek(2)[:2] == GZIP
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


FORMAT, VERSION = "gpu-exporter-recording", 1
# At the beginning of a phase, clocks, power and one-second means are still those of the previous phase.
SETTLE_SECONDS = 2.0

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.001, 86400.0
# Beyond these, sums overflow and differences of times lose their digits.
LARGEST_TIME, LARGEST_VALUE = 1e11, 1e30
MOST_GPUS = 1024
# Names of metrics and phases, and the characters of each text.
MOST_NAMES, MOST_CHARACTERS = 2000, 200


class Tick(NamedTuple):
    """What one GPU read at unix time `at`, in a phase (empty if the recording has none)."""

    at: float
    gpu: Gpu
    phase: str
    samples: Mapping[str, float]


def load(path: Path) -> Recording:
    """Read a recording. Raises GpuExporterError naming file and line when it is unreadable or damaged."""
    reader = RecordingReader(path)
    timeline = Timeline(reader.interval, {index: {} for index in reader.gpus})
    for at, gpu, _, samples in reader.ticks():
        if not timeline.add(at, gpu.index, samples):
            reader.damaged(f"time goes backwards for GPU {gpu.index}")
    if timeline.begin is None:
        raise GpuExporterError(f"recording {path}: has a header but no ticks; record again")
    duration = timeline.now - timeline.begin
    columns = timeline.finished()
    return Recording(path, reader.interval, duration, tuple(reader.gpus.values()), columns, simulated=reader.simulated)


def ticks(path: Path) -> Iterator[Tick]:
    """Yield the ticks of a recording as they were written. Raises GpuExporterError as `load` does."""
    yield from RecordingReader(path).ticks()


def job_of(path: Path) -> str:
    """Return the name of the job of which all GPUs of a recording are ranks."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


@dataclass(slots=True)
class _GpuEntry:
    """A GPU of the header."""

    gpu: int
    UUID: str = ""
    pci_bus_id: str = ""
    modelName: str = ""
    device: str = ""


@dataclass(slots=True)
class _Header:
    """The part of the header that needs no error message of its own."""

    gpus: list[_GpuEntry]
    driver: str = ""
    source: str = ""


@dataclass(slots=True)
class _Line:
    """A line after the header."""

    t: float
    gpu: int
    samples: dict[str, float]
    phase: str = ""


class RecordingReader:
    """Reads the header of a recording, then its ticks. Raises GpuExporterError as `load` does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = lines(path)
        self._names: set[str] = set()
        self._last: dict[int, float] = {}
        self._number, line = next(self._lines, (1, b""))
        content = self._object(line) if line.strip() else {}
        if content.get("format") != FORMAT:
            self.damaged(
                f'not the header of a recording (no "format": "{FORMAT}"); make one with `gpu-exporter record`'
            )
        if content.get("version") != VERSION:
            version = printable(str(content.get("version")), 20)
            self.damaged(f"format version {version}; this gpu-exporter reads version {VERSION}")
        interval = content.get("interval_seconds")
        if not (_is_number(interval) and interval > 0):
            self.damaged("the header has no positive interval_seconds")
        if not SHORTEST_INTERVAL <= interval <= LONGEST_INTERVAL:
            self.damaged(f"interval_seconds must be from {SHORTEST_INTERVAL:g} to {LONGEST_INTERVAL:g}")
        self.interval = float(interval)
        self.gpus: Mapping[int, Gpu] = self._gpus(line)

    def damaged(self, what: str) -> NoReturn:
        """Raise GpuExporterError for the line that was read last."""
        damaged(self._path, self._number, what)

    def ticks(self) -> Iterator[Tick]:
        """Yield all ticks. Those of a GPU come in order of time."""
        for number, line in self._lines:
            self._number = number
            if line.strip():
                tick = self._tick(line)
                if tick.at <= self._last.get(tick.gpu.index, -math.inf):
                    self.damaged(f"time goes backwards for GPU {tick.gpu.index}")
                self._last[tick.gpu.index] = tick.at
                yield tick

    def _tick(self, content: bytes) -> Tick:
        try:
            line = json_as(_Line, content)
        except ValueError as error:
            self._malformed(content, error)
        if line.gpu not in self.gpus:
            self.damaged(f"GPU {printable(str(line.gpu), 20)} is not in the header")
        if not abs(line.t) < LARGEST_TIME:
            self.damaged(f"t is {line.t:g}, which is no unix time")
        values = line.samples.values()
        if values and not -LARGEST_VALUE < min(values) <= max(values) < LARGEST_VALUE:
            self.damaged(f"a value is beyond ±{LARGEST_VALUE:g}")
        if not line.samples.keys() <= self._names or line.phase not in self._names:
            self._learn((*line.samples, line.phase))
        return Tick(line.t, self.gpus[line.gpu], line.phase, line.samples)

    def _learn(self, names: Collection[str]) -> None:
        """Check names that are new: a hostile file must not fill memory and terminals with them."""
        self._names.update(names)
        if len(self._names) > MOST_NAMES:
            self.damaged(f"more than {MOST_NAMES} names of metrics and phases so far")
        for name in names:
            self._check_text("a name", name)

    def _check_text(self, what: str, text: str) -> None:
        if text != printable(text, MOST_CHARACTERS):
            shown = printable(text, 20)
            self.damaged(f"{what} ({shown}) has control characters or more than {MOST_CHARACTERS} characters")

    def _malformed(self, line: bytes, error: ValueError) -> NoReturn:
        """Raise GpuExporterError for a line that is no tick, with the name of the value where there is one."""
        content = self._object(line)
        index, samples = content.get("gpu"), content.get("samples")
        if not _is_number(content.get("t")) or not isinstance(samples, dict):
            self.damaged("not a tick (needs t, gpu, samples)")
        if type(index) is not int:
            self.damaged(f"GPU {printable(str(index), 20)} is not in the header")
        for name, value in samples.items():
            if not _is_number(value):
                self.damaged(f"{printable(name, 60)} has no number but {printable(repr(value), 40)}")
        self.damaged(str(error))

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            content: object = json_as(object, line)
        except ValueError as error:
            try:
                line.decode()
            except UnicodeDecodeError:
                self.damaged("not UTF-8 text")
            if infinite := re.search(rb":\s*-?(NaN|Infinity)\b", line):  # what Python's own encoder writes
                self.damaged(f"{infinite[1].decode()} is not a value")
            self.damaged(str(error))
        if not isinstance(content, dict):
            self.damaged("not a JSON object")
        return content

    def _gpus(self, line: bytes) -> Mapping[int, Gpu]:
        try:
            header = json_as(_Header, line)
        except ValueError as error:
            self.damaged(f"the header lists no gpus that can be read (each needs an integer `gpu`): {error}")
        if not 0 < len(header.gpus) <= MOST_GPUS:
            many = f"more than {MOST_GPUS}" if header.gpus else "no"
            self.damaged(f"the header lists {many} gpus (each needs an integer `gpu`)")
        self._check_text("driver", header.driver)
        self.simulated = header.source == SIMULATED.name
        gpus = {}
        for entry in header.gpus:
            if not 0 <= entry.gpu < 1 << 16:
                self.damaged(f"the header has a GPU whose index is not from 0 to {(1 << 16) - 1}")
            if entry.gpu in gpus:
                self.damaged("the header lists a GPU twice")
            gpus[entry.gpu] = self._gpu(entry, header.driver)
        return gpus

    def _gpu(self, entry: _GpuEntry, driver: str) -> Gpu:
        identity = (entry.UUID, entry.pci_bus_id, entry.modelName, entry.device)
        for text in identity:
            self._check_text(f"a text of GPU {entry.gpu}", text)
        return Gpu(entry.gpu, *identity, driver, (("driver_version", driver),) if driver else ())


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number, which may be too long for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)
