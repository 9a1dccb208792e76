"""The history of active checks: a file in `--state-dir`, which `check --active` writes and the exporter follows.

It has the latest runs of each GPU, by UUID. It needs no GPU and no CUDA. A symbolic link in its place is not followed.
A thread follows it for `/metrics` and `/api/v1/node`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.capabilities import Quantity
from gpu_exporter.conditions.averages import median
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import FileWorker, ProblemLog, cause, open_regular, open_unlinked
from gpu_exporter.io.state_version import NewerStateError, check_version
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.model.verdict import Action, Health

FILE = "active-checks.json"
# Of the file: see `io.state_version`.
VERSION = 1
# Runs that are kept of each GPU, and GPUs that are kept.
MOST_RUNS, MOST_GPUS = 50, 64
LARGEST = 4 << 20
# As few healthy runs are no reference yet.
LEAST_RUNS = 3


@dataclass(frozen=True, slots=True)
class FoundHistory:
    """A problem that a run has found: `reason` is for programs, `what` for people."""

    reason: str
    health: Health
    action: Action
    what: str


@dataclass(frozen=True, slots=True)
class Run:
    """One active check of one GPU, at unix time `at`. `values` are bytes/s or FLOP/s by `Quantity.value`.

    `health` is that of the active check alone. `boot_id` is empty where it is unknown.
    """

    at: float
    level: int
    health: Health
    model: str = ""
    driver: str = ""
    boot_id: str = ""
    seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    problems: list[FoundHistory] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CheckHistory:
    """The latest runs of each GPU by UUID, oldest first."""

    version: int = VERSION
    gpus: dict[str, list[Run]] = field(default_factory=dict)

    def last(self, uuid: str) -> Run | None:
        """Return the last run of a GPU."""
        runs = self.gpus.get(uuid, [])
        return runs[-1] if runs else None

    def usual(self, uuid: str, quantity: str) -> float | None:
        """Return the median of the healthy runs of a GPU; None if there are fewer than `LEAST_RUNS`."""
        values = [
            run.values[quantity]
            for run in self.gpus.get(uuid, [])
            if quantity in run.values and run.health is Health.HEALTHY
        ]
        return median(values) if len(values) >= LEAST_RUNS else None


class ActiveChecks:
    """The history file of a directory. Every access ends within seconds, also on a disk that hangs."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._worker = FileWorker("active checks")

    def read(self) -> CheckHistory:
        """Return the history; an empty one if there is none yet. Raises OSError, and ValueError for another content."""
        return self._worker.call(self._read)

    def stamp(self) -> tuple[int, int, int] | None:
        """Return what differs after each write; None if there is no file yet. Raises OSError."""
        return self._worker.call(self._stamp)

    def append(self, runs: Mapping[str, Run]) -> None:
        """Add a run for each of these UUIDs. Raises OSError, and ValueError for a file that has another content."""
        self._worker.call(lambda: self._append(runs))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> CheckHistory:
        try:
            with open_unlinked(self.path) as file:
                content = file.read(LARGEST + 1)
        except FileNotFoundError:
            return CheckHistory()
        if len(content) > LARGEST:
            raise ValueError(f"{self.path}: larger than {LARGEST >> 20} MiB; remove it")
        try:
            check_version(content, VERSION)
            return json_as(CheckHistory, content)
        except NewerStateError as error:
            raise ValueError(f"{self.path}: {error}") from None
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}; remove it") from None

    def _append(self, runs: Mapping[str, Run]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            gpus = dict(self._read().gpus)
            for uuid, run in runs.items():
                gpus[uuid] = [*gpus.pop(uuid, []), run][-MOST_RUNS:]
            kept = dict(list(gpus.items())[-MOST_GPUS:])
            draft = self.path.with_suffix(".draft")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(open_regular(draft, flags), "wb") as file:
                file.write(json.dumps(asdict(CheckHistory(VERSION, kept)), default=_enum).encode())
            os.replace(draft, self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let checks of other GPUs, by other jobs, write first."""
        import fcntl  # Windows has none, and only reads

        lock = open_regular(self.path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _enum(value: object) -> object:
    if isinstance(value, Health | Action):
        return value.value
    raise TypeError(f"{value!r} is not JSON")


log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
QUANTITIES = {quantity.value: quantity for quantity in Quantity}


class ActiveCheckWatch:
    """Offers the last active check of each GPU. A file that cannot be read is logged once; the last result stays."""

    def __init__(self, directory: Path) -> None:
        self._checks = ActiveChecks(directory)
        self._stopping = threading.Event()
        self._problems = ProblemLog(log)
        self._series: dict[tuple[str, str], Series] = {}
        self._stamp: tuple[int, int, int] | None = None
        self._last: Mapping[str, Run] = {}

    def start(self) -> None:
        """Start to follow the file."""
        threading.Thread(target=self._follow, name="active-checks", daemon=True).start()

    def stop(self) -> None:
        """Request the end; does not wait for it."""
        self._stopping.set()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(INTERVAL_SECONDS)

    def poll(self) -> None:
        """Read the file if it was written since. Only the last runs are kept: a full history is several MiB."""
        problem = ""
        try:
            stamp = self._checks.stamp()
            if stamp != self._stamp:
                history = self._checks.read()
                self._last = {uuid: run for uuid in history.gpus if (run := history.last(uuid))}
                self._stamp = stamp
        except (OSError, ValueError) as error:
            problem = f"--state-dir: active checks cannot be read: {cause(error)}"
        self._problems.report(problem)

    def last(self, uuid: str) -> Run | None:
        """Return the last run of a GPU."""
        return self._last.get(uuid)

    def samples(self, gpus: Sequence[GpuSamples], pods: Sequence[Series]) -> Sequence[Sample]:
        """Return what the last active check of each GPU measured."""
        return tuple(sample for each in gpus for sample in self._of(each.gpu))

    def _of(self, gpu: Gpu) -> Iterator[Sample]:
        run = self.last(gpu.uuid)
        if run is None:
            return
        for name, value in run.values.items():
            if name in QUANTITIES:
                yield Sample(self._rate(gpu, QUANTITIES[name]), value)
        if run.health is not Health.UNKNOWN:
            yield Sample(self._plain(gpu, "passed"), float(run.health is Health.HEALTHY))
        yield Sample(self._plain(gpu, "at"), run.at)

    def _rate(self, gpu: Gpu, quantity: Quantity) -> Series:
        metric = quantity.metric
        labels = (("quantity", quantity.value),)
        return self._kept(gpu, quantity.value, Series(metric, gpu, labels))

    def _plain(self, gpu: Gpu, name: str) -> Series:
        return self._kept(gpu, name, Series(m.CHECK_PASSED if name == "passed" else m.CHECK_AT, gpu))

    def _kept(self, gpu: Gpu, name: str, series: Series) -> Series:
        """Return the series of the last call, which is the same object, unless the GPU has another identity now."""
        key = gpu.uuid, name
        if key not in self._series or self._series[key].gpu != gpu:
            self._series[key] = series
        return self._series[key]
