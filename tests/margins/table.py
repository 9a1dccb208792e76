"""The table of margins, and the reasons for small ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Scope
from gpu_exporter.conditions.evaluate import Device, SignalWindow
from gpu_exporter.conditions.prose import term
from gpu_exporter.conditions.tree import Compare, Limit, Over
from tests.margins.margin import Margin, margin
from tests.support import phases
from tests.support.classes import classify

SMALLEST = 1.3


@dataclass(frozen=True, slots=True)
class Row:
    """The margin of a class or failure mode on a GPU of a phase, and the reason if it may be small."""

    recording: str
    phase: str
    gpu: int
    judged: str
    margin: Margin

    @property
    def what(self) -> str:
        """The deciding comparison: SM activity >= busySm."""
        compare = self.margin.compare
        assert compare
        return f"{term(compare.left)} {compare.operator} {right(compare)}"

    @property
    def reason(self) -> str:
        """Why the margin may be small; empty if there is no reason."""
        return next((why for names, limits, why in REASONS if self._is(names, limits)), "")

    def _is(self, names: str, limits: str) -> bool:
        of_phase = names == "*" or self.phase in names.split()
        compare = self.margin.compare
        return of_phase and compare is not None and bool({right(compare), self.judged} & {*limits.split()})


def right(compare: Compare) -> str:
    """Return the name of the limit of a comparison, or its number."""
    if isinstance(compare.right, Limit):
        return compare.right.name
    return f"{compare.right:g}" if isinstance(compare.right, float | int) else "term"


# The phases (`*`: all), the limits or failure modes, and why a margin below SMALLEST is right there.
REASONS: tuple[tuple[str, str, str], ...] = (
    (
        "reduce_1m bulk_late_10ms train_loader_30 copy_back copy_then_compute copy_pageable ddp_jitter decode_eager "
        "serving_50 tensor_parallel_serving ddp_all_late tensor_parallel_decode duty_50 ddp_late_20ms short_gaps",
        "halfEngine busyEngine",
        "idle for a part of each step by construction: both classes are right, and the time shares grade it",
    ),
    (
        "bulk_slow_50 bulk_late_10ms copy_back train_loader_30 tensor_parallel_graph ddp_jitter expert_parallel "
        "ddp_slow_40 ddp_slow_150 ddp_late_20ms ddp_straggler_slow_gpu tensor_parallel",
        "busySm",
        "waits for a part of each step by construction: both classes are right, and the time shares grade it",
    ),
    (
        "reduce_4k reduce_1m",
        "launchingBytes",
        "small all-reduces, launched one by one: launches and the other rank limit them in turn, and both are right",
    ),
    (
        "bulk_even",
        "slowerGap",
        "a rank of the H100s measured that it waits 11 % of the time: a matter of degree",
    ),
    (
        "duty_seconds",
        "stalled",
        "only whole intervals between two reads count as idle, and its pauses are three of them long",
    ),
    (
        "softmax sort gelu alternating",
        "busyFloat busyDram mostlyTensor",
        "between memory and arithmetic: both classes are right",
    ),
    ("*", "GpuPcieLinkDegraded", "as much as before is healthy, and the next narrower link has half of it"),
    ("*", "powerSwing", "how far power swings is a matter of degree, and the alert is an information"),
    (
        "evaluation_items gemm_small tiny_kernels",
        "heldMemory",
        "the engine works: only unknown because of the short recording",
    ),
    ("copy_sleep_compute", "quietPcie", "a single GPU has no ranks"),
)


def rows(path: Path, phase: str) -> Iterator[Row]:
    """Yield the margins of the class, and of each failure mode that a phase is evidence for or against."""
    window = phases.window(path, phase)
    for index, device in enumerate(window.devices):
        for judged, found in _of_device(window, device):
            if found.compare is not None:
                yield Row(path.name.partition(".")[0], phase, index, judged, found)


def _of_device(window: SignalWindow, device: Device) -> Iterator[tuple[str, Margin]]:
    bottleneck = classify(window, device)
    for each in BOTTLENECKS:
        of_class = margin(each.condition, window, device)
        yield f"class {each.name}", of_class
        if each is bottleneck:
            break
    for mode in MODES:
        if mode.condition and mode.scope is not Scope.FLEET and not _is_class(mode.condition):
            yield mode.name, margin(mode.condition, window, device)


def _is_class(condition: object) -> bool:
    """Return whether a condition is that of a class, whose margin is in the table already."""
    return type(condition).__name__ == "Is"


def worst(found: Sequence[Row]) -> list[Row]:
    """Return the rows with the smallest margins first."""
    return sorted(found, key=lambda row: row.margin.factor)


__all__ = ["SMALLEST", "Over", "Row", "rows", "worst"]
