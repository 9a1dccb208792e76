"""Recorded phases of an H200 without its profiling counters, held for hours: classes and alerts of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from tests.conftest import RECORDINGS
from tests.rules.promtool import Case, Expect, check_together, firing, never_fired, no_other_node, now_firing
from tests.rules.recorded import Values, values_by_phase
from tests.rules.series import Device, Generation, minutes, rank
from tests.support.tools import is_long

# As in test_recordings.py.
HELD = 120.0 if is_long() else 90.0
# What the driver measures instead.
SAMPLED = {m.PCIE_RX: m.PCIE_RX_SAMPLED, m.PCIE_TX: m.PCIE_TX_SAMPLED}
# The class, empty if it is unknown, and the alerts; without samples of PCIe traffic, other ones.
TRUTH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "idle": ("idle", ()),
    "compute_bound_bf16_gemm": ("compute-bound", ()),
    "train_big_batch": ("compute-bound", ()),
    "memory_bound_copy": ("", ()),
    "memory_bound_elementwise": ("", ()),
    "fake_load_one_thread": ("low-power", ()),
    "launch_bound_tiny_kernels": ("host-bound", ("GpuHostBound", "GpuLaunchBound")),
    "pcie_h2d_pinned": ("pcie-bound", ("GpuPcieBound",)),
    "data_loading_bound_train": ("data-loading-bound", ("GpuDataLoadingBound",)),
}
WITHOUT_PCIE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **TRUTH,
    "launch_bound_tiny_kernels": ("host-bound", ("GpuHostBound",)),
    "pcie_h2d_pinned": ("low-power", ()),
    "data_loading_bound_train": ("host-bound", ("GpuHostBound",)),
}
# Their instant power may or may not swing. What is missing is info, on every GPU.
EITHER, MISSING = "GpuPowerOscillation", "GpuMetricsMissing"


def without(values: Values, *, pcie: bool) -> Values:
    """Return the values of a GPU without profiling counters."""
    sampled = {SAMPLED[row]: numbers for row, numbers in values.items() if pcie and row in SAMPLED}
    return {row: numbers for row, numbers in values.items() if row not in m.PROFILING} | sampled


def case(generation: Generation, truth: Mapping[str, tuple[str, tuple[str, ...]]], *, pcie: bool) -> Case:
    """Return the recorded phases without profiling counters, and what is true of each."""
    recorded = values_by_phase([RECORDINGS / "h200_workloads.jsonl.gz"])
    fleet, found = [], []
    for phase, (bottleneck, modes) in truth.items():
        story = [minutes(HELD, without(recorded[phase, 0], pcie=pcie))]
        fleet.append(Device(phase, 0, story, generation, rank(phase)))
        info = [({**labels, "severity": "info"}, value) for labels, value in firing(phase, [MISSING])]
        found.append(now_firing(phase, f', alertname!="{EITHER}"', [*firing(phase, modes), *info]))
        classes = [({"node": phase, "class": bottleneck}, 1.0)] if bottleneck else []
        found.append(Expect(f'group by (node, class) (gpu:bottleneck:class{{node="{phase}"}})', classes))
        found.append(never_fired(phase, {EITHER, MISSING, *modes}))
    found.append(Expect("group by (node) (gpu:approximate:bool == 1)", [({"node": node}, 1.0) for node in truth]))
    found.append(no_other_node(truth))
    return Case(f"{generation.value}, {'with' if pcie else 'without'} PCIe", fleet, found)


def test_each_phase(tmp_path: Path) -> None:
    cases = (
        case(Generation.GPU_EXPORTER, TRUTH, pcie=True),
        case(Generation.GPU_EXPORTER, WITHOUT_PCIE, pcie=False),
        case(Generation.DCGM_4_9, WITHOUT_PCIE, pcie=False),
    )
    check_together(tmp_path, cases)
