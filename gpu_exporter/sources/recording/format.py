"""The recording format: JSON Lines, plain or gzip. A header, then one line a GPU and tick.

Header: `format`, `version`, `created`, `driver`, `interval_seconds`, `gpus` (each with `gpu`, `UUID`, `device`,
`modelName`, `pci_bus_id`). Line: `t` unix seconds, `gpu` index, optional `phase`, `samples` from metric key to value
in the exposed unit. Profiling values are the exact mean since the tick of this GPU that had one before.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import fmean, mode, pstdev
from typing import IO, Any, NamedTuple, NoReturn, TypeGuard, cast

from gpu_exporter.catalogue.metrics import BY_KEY
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Kind

FORMAT, VERSION = "gpu-exporter-recording", 1
# A value covers the time since the previous tick; a longer pause is a hole, in which no value is known.
HOLE_INTERVALS = 10
# At the beginning of a phase, clocks, power and one-second means are still those of the phase before.
SETTLE_SECONDS = 2.0


@dataclass(slots=True)
class Column:
    """One value over time. Between two `times` the integral grows linearly, and so do the `covered` seconds."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    integral: list[float] = field(default_factory=list)
    covered: list[float] = field(default_factory=list)

    def append(self, t: float, value: float, interval: float) -> None:
        since = self.times[-1] if self.times else -math.inf
        start = since if t - since <= HOLE_INTERVALS * interval else t - interval
        total, covered = (self.integral[-1], self.covered[-1]) if self.times else (0.0, 0.0)
        if start != since:
            self._point(start, value, total, covered)
        self._point(t, value, total + value * (t - start), covered + t - start)

    def _point(self, t: float, value: float, integral: float, covered: float) -> None:
        self.times.append(t)
        self.values.append(value)
        self.integral.append(integral)
        self.covered.append(covered)

    def at(self, t: float) -> float:
        """The value at time t; before and after the recording, the first or last one."""
        return self.values[min(bisect_left(self.times, t), len(self.times) - 1)]

    def ticks(self, after: float, until: float) -> Iterator[tuple[float, float]]:
        """The ticks in this time with their values; the beginning of a value's time is no tick."""
        for n in range(bisect_right(self.times, after), bisect_right(self.times, until)):
            if self.covered[n] > (self.covered[n - 1] if n else 0.0):
                yield self.times[n], self.values[n]

    def until(self, t: float) -> tuple[float, float]:
        """The integral and the covered seconds from the beginning to time t."""
        right = bisect_right(self.times, t)
        if right == 0:
            return 0.0, 0.0
        if right == len(self.times):
            return self.integral[-1], self.covered[-1]
        share = (t - self.times[right - 1]) / (self.times[right] - self.times[right - 1])
        return (
            self.integral[right - 1] + share * (self.integral[right] - self.integral[right - 1]),
            self.covered[right - 1] + share * (self.covered[right] - self.covered[right - 1]),
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording in memory. Times are seconds from its beginning, one interval before the first tick."""

    path: Path
    interval: float
    duration: float
    gpus: tuple[Gpu, ...]
    columns: Mapping[int, Mapping[str, Column]]


def load(path: Path) -> Recording:
    """Read a recording. Raises GpuExporterError naming file and line when it is unreadable or damaged."""
    lines = _lines(path)
    header = _header(path, next(lines, (1, ""))[1])
    interval = float(header["interval_seconds"])
    gpus = tuple(_gpu(gpu, str(header.get("driver", ""))) for gpu in header["gpus"])
    timeline = _Timeline(interval, {gpu.index: {} for gpu in gpus})
    for number, line in lines:
        if line.strip():
            t, index, _, samples = _tick(path, number, line, timeline.columns)
            if not timeline.add(t, index, samples):
                _damaged(path, number, f"time goes backwards for GPU {index}")
    if timeline.begin is None:
        raise GpuExporterError(f"recording {path}: has a header but no ticks; record again")
    return Recording(path, interval, timeline.now - timeline.begin, gpus, timeline.finished())


class Tick(NamedTuple):
    """What one GPU read at unix time `at`, in a phase (empty if the recording knows none)."""

    at: float
    gpu: Gpu
    phase: str
    samples: Mapping[str, float]


def ticks(path: Path) -> Iterator[Tick]:
    """The ticks of a recording as they were written. Raises GpuExporterError as `load` does."""
    lines = _lines(path)
    header = _header(path, next(lines, (1, ""))[1])
    gpus = {entry["gpu"]: _gpu(entry, str(header.get("driver", ""))) for entry in header["gpus"]}
    for number, line in lines:
        if line.strip():
            t, index, phase, samples = _tick(path, number, line, gpus)
            yield Tick(t, gpus[index], phase, samples)


class ValueStatistics(NamedTuple):
    """The statistics of one value in a phase; `mode` is the most frequent value."""

    mean: float
    deviation: float
    low: float
    high: float
    mode: float


def statistics(path: Path) -> tuple[Gpu, Mapping[str, Mapping[str, ValueStatistics]]]:
    """The first GPU of a recording, and by phase the statistics of every value, without the beginnings of phases.

    Raises GpuExporterError as `load` does.
    """
    begun: dict[int, tuple[str, float]] = {}
    by_phase: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first: Gpu | None = None
    for t, gpu, phase, samples in ticks(path):
        first = first or gpu
        if begun.get(gpu.index, ("", 0.0))[0] != phase:
            begun[gpu.index] = phase, t
        if phase and t - begun[gpu.index][1] >= SETTLE_SECONDS:
            for name, value in samples.items():
                by_phase[phase][name].append(value)
    return first or Gpu(0), {
        phase: {name: _statistics_of(values) for name, values in columns.items()} for phase, columns in by_phase.items()
    }


def _statistics_of(values: Sequence[float]) -> ValueStatistics:
    return ValueStatistics(fmean(values), pstdev(values), min(values), max(values), mode(values))


@dataclass(slots=True)
class _Timeline:
    """Ticks in order -> columns. Where no GPU has a tick for long, the recorder was paused: the pause is cut out."""

    interval: float
    columns: dict[int, dict[str, Column]]
    begin: float | None = None
    now: float = 0.0
    cut: float = 0.0
    last: dict[int, float] = field(default_factory=dict)
    offsets: dict[int, dict[str, float]] = field(default_factory=dict)
    resume: set[int] = field(default_factory=set)

    def add(self, t: float, index: int, samples: Mapping[str, float]) -> bool:
        """Take one tick; False if it is not later than the tick of this GPU before."""
        t -= self.cut
        if self.begin is None:
            self.begin = t - self.interval
        elif t - self.now > HOLE_INTERVALS * self.interval:
            pause = t - self.now - self.interval
            self.cut += pause
            t -= pause
            self.resume = set(self.columns)
        if t <= self.last.get(index, -math.inf):
            return False
        self.last[index] = t
        self.now = max(self.now, t)
        columns, offsets = self.columns[index], self.offsets.setdefault(index, {})
        for name, value in samples.items():
            column = columns.setdefault(name, Column())
            if name in BY_KEY and BY_KEY[name].kind is Kind.COUNTER:
                if index in self.resume and column.values:  # the increase during the pause is not part of the recording
                    offsets[name] = value - column.values[-1]
                value -= offsets.get(name, 0.0)
            column.append(t, value, self.interval)
        self.resume.discard(index)
        return True

    def finished(self) -> Mapping[int, Mapping[str, Column]]:
        """The columns with times from the beginning."""
        begin = self.begin or 0.0
        for columns in self.columns.values():
            for column in columns.values():
                column.times = [t - begin for t in column.times]
        return self.columns


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield number, line.decode("utf-8")
    except FileNotFoundError:
        raise GpuExporterError(f"recording {path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        _damaged(path, number + 1, f"the gzip stream is truncated or corrupt ({error})")
    except UnicodeDecodeError:
        _damaged(path, number, "not UTF-8 text")
    except OSError as error:
        raise GpuExporterError(f"recording {path}: {error.strerror or error}") from error


def _damaged(path: Path, number: int, what: str) -> NoReturn:
    raise GpuExporterError(f"recording {path}, line {number}: {what}")


def _is_number(value: object) -> TypeGuard[float]:
    """A finite number that fits a float (JSON has longer ones)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _json(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line, parse_constant=lambda name: _damaged(path, number, f"{name} is not a value"))
    except (ValueError, RecursionError) as error:
        _damaged(path, number, f"not JSON ({error})")
    if not isinstance(value, dict):
        _damaged(path, number, "not a JSON object")
    return value


def _header(path: Path, line: str) -> dict[str, Any]:
    header = _json(path, 1, line) if line.strip() else {}
    if header.get("format") != FORMAT:
        _damaged(
            path, 1, f'not the header of a recording (no "format": "{FORMAT}"); make one with `gpu-exporter record`'
        )
    if header.get("version") != VERSION:
        _damaged(path, 1, f"format version {header.get('version')}; this gpu-exporter reads version {VERSION}")
    interval, gpus = header.get("interval_seconds"), header.get("gpus")
    if not _is_number(interval) or interval <= 0:
        _damaged(path, 1, "the header has no positive interval_seconds")
    indexes = [gpu.get("gpu") if isinstance(gpu, dict) else None for gpu in gpus] if isinstance(gpus, list) else []
    if not indexes or not all(type(index) is int for index in indexes):
        _damaged(path, 1, "the header lists no gpus (each needs an integer `gpu`)")
    if len(set(indexes)) < len(indexes):
        _damaged(path, 1, "the header lists a GPU twice")
    return header


def _gpu(entry: Mapping[str, Any], driver: str) -> Gpu:
    text = {name: str(entry.get(name, "")) for name in ("UUID", "pci_bus_id", "modelName", "device")}
    info = (("driver_version", driver),) if driver else ()
    return Gpu(entry["gpu"], text["UUID"], text["pci_bus_id"], text["modelName"], text["device"], driver, info)


def _tick(
    path: Path, number: int, line: str, gpus: Mapping[int, object]
) -> tuple[float, int, str, Mapping[str, float]]:
    tick = _json(path, number, line)
    t, index, samples = tick.get("t"), tick.get("gpu"), tick.get("samples")
    if not _is_number(t) or not isinstance(samples, dict):
        _damaged(path, number, "not a tick (needs t, gpu, samples)")
    if not isinstance(index, int) or index not in gpus:
        _damaged(path, number, f"GPU {index} is not in the header")
    for name, value in samples.items():
        if not _is_number(value):
            _damaged(path, number, f"{name} has no number but {value!r:.40}")
    return float(t), index, str(tick.get("phase", "")), samples


class Writer:
    """Writes a recording, with gzip if the name ends in .gz. With `mask`, UUIDs do not identify the machine.

    Every method raises GpuExporterError when the file can't be written.
    """

    def __init__(self, path: Path, gpus: Sequence[Gpu], interval: float, *, mask: bool = False) -> None:
        self._path = path
        with self._write_errors():
            raw = path.open("wb")
            binary = gzip.GzipFile(fileobj=raw, mode="wb") if path.suffix == ".gz" else raw
            self._files: tuple[IO[Any], ...] = (io.TextIOWrapper(cast(IO[bytes], binary), encoding="utf-8"), raw)
        self._write(
            {
                "format": FORMAT,
                "version": VERSION,
                "created": date.today().isoformat(),
                "driver": gpus[0].driver if gpus else "",
                "interval_seconds": interval,
                "gpus": [
                    {
                        "gpu": gpu.index,
                        "UUID": f"GPU-00000000-0000-0000-0000-{gpu.index:012d}" if mask else gpu.uuid,
                        "device": gpu.device,
                        "modelName": gpu.model,
                        "pci_bus_id": gpu.pci_bus_id,
                    }
                    for gpu in gpus
                ],
            }
        )

    def tick(self, t: float, gpu: int, samples: Mapping[str, float]) -> None:
        """Write what one GPU read at unix time t. Values keep seven significant digits or their whole part."""
        rounded = {name: int(v) if v == int(v) else float(f"{v:.7g}") for name, v in samples.items()}
        self._write({"t": round(t, 4), "gpu": gpu, "samples": rounded})

    def _write(self, line: Mapping[str, object]) -> None:
        with self._write_errors():
            self._files[0].write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Finish the file."""
        with self._write_errors():
            for file in self._files:
                file.close()

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        """Turn errors of the file system into GpuExporterError."""
        try:
            yield
        except OSError as error:
            raise GpuExporterError(f"recording {self._path}: {error.strerror or error}") from error
