"""Reads what Nsight says about kernels as CSV: `nsys stats` their times, `ncu --csv` what limits each of them.

The sums of `nsys stats` are no utilisation: kernels overlap. Both may begin with lines of the tool itself.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_exporter.model.errors import GpuExporterError

# Columns of the reports `cuda_gpu_kern_sum`, `gpukernsum` and `cuda_gpu_sum`, in nanoseconds.
_TIME, _COUNT, _NAMES = "Total Time", ("Instances", "Count"), ("Name", "Operation")
_KERNEL, _METRIC, _UNIT, _VALUE = "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
# Nsight Compute names a metric by its section, or, in raw pages, by its counter.
_DURATION = ("Duration", "gpu__time_duration.sum")
_COMPUTE = ("Compute (SM) Throughput", "SM [%]", "sm__throughput.avg.pct_of_peak_sustained_elapsed")
_MEMORY = ("Memory Throughput", "Memory [%]", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed")
_OCCUPANCY = ("Achieved Occupancy", "sm__warps_active.avg.pct_of_peak_sustained_active")
_STALL = re.compile(r"smsp__average_warps?_(?:issue_stalled|latency_issue_stalled)_(\w+?)(?:_per_issue_active)?\.")
_SECONDS = {
    "nsecond": 1e-9,
    "ns": 1e-9,
    "usecond": 1e-6,
    "us": 1e-6,
    "msecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "s": 1.0,
}
# As in Nsight Compute's own rule on the speed of light: below, neither unit is the limit, and latency is.
LEAST_THROUGHPUT, BALANCE = 0.6, 0.1
MEMORY_BOUND, COMPUTE_BOUND, BALANCED, LATENCY_BOUND = "memory-bound", "compute-bound", "balanced", "latency-bound"


@dataclass(frozen=True)
class KernelReport:
    """Launches of one kernel. Shares are between 0 and 1, and None where the report has none.

    `stalls` are warps that wait for each reason per instruction that is issued, the most first.
    """

    name: str
    count: int
    seconds: float
    compute: float | None = None
    memory: float | None = None
    occupancy: float | None = None
    stalls: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        """What limits the kernel: "" if the report does not say."""
        if self.compute is None or self.memory is None:
            return ""
        if max(self.compute, self.memory) < LEAST_THROUGHPUT:
            return LATENCY_BOUND
        if abs(self.compute - self.memory) < BALANCE:
            return BALANCED
        return COMPUTE_BOUND if self.compute > self.memory else MEMORY_BOUND


def read(path: Path) -> tuple[KernelReport, ...]:
    """Return the kernels of a report, the one with most time first. Raises OSError and GpuExporterError."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.reader(file, strict=False)
        try:
            for row in rows:
                head = [cell.strip() for cell in row]
                if _KERNEL in head:
                    return _sorted(_compute(head, rows))
                if any(cell.startswith(_TIME) for cell in head):
                    return _sorted(_systems(head, rows))
        except csv.Error as error:
            raise GpuExporterError(f"{path}, line {rows.line_num}: {error}") from None
    raise GpuExporterError(
        f"{path}: no report of kernels: use `nsys stats --report cuda_gpu_kern_sum --format csv` or `ncu --csv`"
    )


def _sorted(kernels: Iterable[KernelReport]) -> tuple[KernelReport, ...]:
    return tuple(sorted(kernels, key=lambda kernel: (-kernel.seconds, kernel.name)))


def _systems(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[KernelReport]:
    """Yield the rows of `nsys stats`, up to the end of its table."""
    time = next(at for at, cell in enumerate(head) if cell.startswith(_TIME))
    scale = _SECONDS.get(head[time].partition("(")[2].rstrip(")"), 1e-9)
    count = next((head.index(name) for name in _COUNT if name in head), None)
    name = next((head.index(name) for name in _NAMES if name in head), len(head) - 1)
    for row in rows:
        if len(row) != len(head):
            return
        seconds = _number(row[time])
        if seconds is not None and seconds >= 0:
            yield KernelReport(row[name], int(_number(row[count]) or 0) if count is not None else 0, seconds * scale)


def _compute(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[KernelReport]:
    """Yield the kernels of `ncu --csv`: a row for each metric of a launch, or with `--page raw` for each launch."""
    launches: dict[str, dict[str, tuple[float, str]]] = {}
    names: dict[str, str] = {}
    units: Sequence[str] = ()
    for row in rows:
        if len(row) != len(head):
            continue
        cells = dict(zip(head, row, strict=True))
        if not cells.get("ID") and _METRIC not in head:
            units = row  # the second line of a raw page
            continue
        launch = cells.get("ID") or str(len(names))
        names[launch] = cells[_KERNEL]
        metrics = launches.setdefault(launch, {})
        if _METRIC in head:
            given = [(cells[_METRIC], cells.get(_UNIT, ""), cells.get(_VALUE, ""))]
        else:
            given = list(zip(head, units or [""] * len(head), row, strict=True))
        for metric, unit, text in given:
            value = _number(text)
            if value is not None:
                metrics.setdefault(metric, (value, unit))
    by_name: dict[str, list[Mapping[str, tuple[float, str]]]] = {}
    for launch, metrics in launches.items():
        by_name.setdefault(names[launch], []).append(metrics)
    for name, of_name in by_name.items():
        yield _kernel(name, of_name)


def _kernel(name: str, launches: Sequence[Mapping[str, tuple[float, str]]]) -> KernelReport:
    """Return all launches of one kernel together; means are weighted by duration."""
    durations = [_duration(metrics) for metrics in launches]
    weights = durations if sum(durations) > 0 else [1.0] * len(launches)

    def mean(keys: Iterable[str], scale: float) -> float | None:
        known = [
            (metrics[key][0] * scale, weight)
            for metrics, weight in zip(launches, weights, strict=True)
            if (key := next((each for each in keys if each in metrics), ""))
        ]
        total = sum(weight for _, weight in known)
        return sum(value * weight for value, weight in known) / total if total else None

    reasons = {match[1]: key for metrics in launches for key in metrics if (match := _STALL.match(key))}
    stalls = {reason.replace("_", " "): value for reason, key in reasons.items() if (value := mean((key,), 1.0))}
    return KernelReport(
        name,
        len(launches),
        sum(durations),
        mean(_COMPUTE, 0.01),
        mean(_MEMORY, 0.01),
        mean(_OCCUPANCY, 0.01),
        dict(sorted(stalls.items(), key=lambda stall: -stall[1])),
    )


def _duration(metrics: Mapping[str, tuple[float, str]]) -> float:
    value, unit = next((metrics[key] for key in _DURATION if key in metrics), (0.0, ""))
    return max(0.0, value) * _SECONDS.get(unit.strip(), 1e-9)


def _number(text: str) -> float | None:
    """Return a number, which may have separators of thousands; None if it is none."""
    try:
        value = float(text.replace(",", "").strip())
    except ValueError:
        return None
    return value if abs(value) < 1e18 else None
