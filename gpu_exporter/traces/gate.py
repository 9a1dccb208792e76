"""The gate of a build: conditions on a result, and the comparison with an earlier one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.file_access import read
from gpu_exporter.io.user_text import quoted
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.reports.numbers import counted, duration, exact, signed_percent
from gpu_exporter.traces.result import AnalysisResult, RankResult

MOST_BASELINE_BYTES = 256 << 20
_CONDITION = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([0-9]*\.?[0-9]+)\s*(%?)\s*")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
# Ratios of the span of a GPU that conditions may name, besides the causes of idle time.
RATIOS: Mapping[str, Callable[[RankResult], float]] = {
    "idle": lambda rank: rank.idle_ratio,
    "busy": lambda rank: rank.busy_ratio,
    "compute": lambda rank: rank.compute_seconds / rank.span_seconds,
    "communication": lambda rank: rank.communication_seconds / rank.span_seconds,
    "exposed_communication": lambda rank: rank.exposed_communication_seconds / rank.span_seconds,
    "exposed_transfer": lambda rank: (rank.exposed_transfer_seconds or 0.0) / rank.span_seconds,
    "exposed_waiting": lambda rank: (rank.exposed_waiting_seconds or 0.0) / rank.span_seconds,
    "copy": lambda rank: rank.copy_seconds / rank.span_seconds,
    "exposed_copy": lambda rank: rank.exposed_copy_seconds / rank.span_seconds,
}
NAMES = (*RATIOS, *(cause.value for cause in TraceCause))


@dataclass(frozen=True)
class Condition:
    """A condition under which the gate fails, such as idle>20%."""

    text: str
    name: str
    comparison: str
    limit: float

    def failures(self, result: AnalysisResult) -> Iterator[str]:
        """Yield a line for each GPU that fulfils the condition."""
        for rank in result.ranks:
            value = _ratio(rank, self.name)
            if _OPERATORS[self.comparison](value, self.limit):
                share = exact(round(value, 3), "ratio")
                yield f"{self.text}: {self.name} is {share} on rank {rank.rank}, GPU {rank.device}"


def _ratio(rank: RankResult, name: str) -> float:
    if name in RATIOS:
        return RATIOS[name](rank)
    return sum(cause.share for cause in rank.idle_causes if cause.cause == name)


def condition(text: str) -> Condition:
    """Parse a condition such as idle>20% or exposed_communication>=0.15. Raises ValueError."""
    match = _CONDITION.fullmatch(text)
    if not match or match[1] not in NAMES:
        raise ValueError(f"{quoted(text)} is no condition such as idle>20%; names are {', '.join(NAMES)}")
    limit = float(match[3]) / (100 if match[4] else 1)
    if limit > 1:
        raise ValueError(
            f"{quoted(text)} compares a share of the time with more than all of it: write a %, as in idle>20%"
        )
    return Condition("".join(text.split()), match[1], match[2], limit)


@dataclass(frozen=True)
class BaselineStep:
    """A step in a baseline."""

    seconds: float


@dataclass(frozen=True)
class BaselineRank:
    """What the gate compares of a rank."""

    rank: int
    device: int
    span_seconds: float
    busy_ratio: float
    steps: tuple[BaselineStep, ...] = ()


@dataclass(frozen=True)
class Baseline:
    """The part of an earlier result that the gate compares."""

    ranks: tuple[BaselineRank, ...]


def baseline(path: Path) -> Baseline:
    """Read the output of `trace analyze --json`. Raises GpuExporterError and OSError."""
    try:
        found = json_as(Baseline, read(path, MOST_BASELINE_BYTES))
    except ValueError as error:
        raise GpuExporterError(f"{path}: no output of `trace analyze --json`: {error}") from error
    if not found.ranks:
        raise GpuExporterError(f"{path}: the baseline has no ranks")
    return found


def regressions(result: AnalysisResult, before: Baseline, most: float) -> list[str]:
    """Return a line for each GPU whose steps, or whose GPU time in them, take longer by more than `most`.

    Raises GpuExporterError if the ranks differ.
    """
    earlier = {(rank.rank, rank.device): rank for rank in before.ranks}
    now = {(rank.rank, rank.device): rank for rank in result.ranks}
    if earlier.keys() != now.keys():
        raise GpuExporterError(
            f"the baseline has {counted(len(earlier), 'rank')} and the traces {len(now)}, or other numbers: "
            "compare the same job"
        )
    lines = []
    for key, rank in now.items():
        for what, old, new in (
            ("a step", _step(earlier[key]), _step(rank)),
            ("the busy time of the GPU in a step", _busy(earlier[key]), _busy(rank)),
        ):
            if old > 0 and new / old - 1 > most:
                took, takes, change = duration(old), duration(new), signed_percent(new / old - 1)
                lines.append(f"{what} of rank {key[0]} takes {takes} instead of {took}: {change}")
    return lines


def _step(rank: RankResult | BaselineRank) -> float:
    """Return the median step, or the span if there are no steps."""
    return median(step.seconds for step in rank.steps) if rank.steps else rank.span_seconds


def _busy(rank: RankResult | BaselineRank) -> float:
    """Return the busy seconds for each step, or of the span if there are no steps."""
    return rank.busy_ratio * rank.span_seconds / max(1, len(rank.steps))
