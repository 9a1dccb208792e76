"""Recorded phases of real H200s, repeated for two hours, have exactly the classes and alerts of their phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import RECORDINGS
from tests.rules.promtool import Case, Expect, check, firing, never_fired, no_other_node, now_firing
from tests.rules.recorded import values_by_phase
from tests.rules.series import Device, Generation, minutes, rank
from tests.support.tools import is_long

HELD = 120.0


class Truth(NamedTuple):
    """The class of a GPU and its true failure modes."""

    bottleneck: str
    modes: tuple[str, ...] = ()


COMPUTES, HOST = Truth("compute-bound"), Truth("host-bound", ("GpuHostBound",))
MEMORY, REDUCES = Truth("memory-bound", ("GpuMemoryBound",)), Truth("communicating", ("GpuCommunicationBound",))
# GPU by GPU. The last rank is the straggler.
TRUTH: Mapping[str, Sequence[Truth]] = {
    "idle": [Truth("idle")],
    "compute_bound_bf16_gemm": [COMPUTES],
    "train_big_batch": [COMPUTES],
    "no_tensor_fp32_gemm": [Truth("tensor-cores-idle", ("GpuTensorCoresIdle",))],
    "memory_bound_copy": [MEMORY],
    "memory_bound_elementwise": [MEMORY],
    "fake_load_one_thread": [Truth("fake-load", ("GpuFakeLoad",))],
    "launch_bound_tiny_kernels": [Truth("host-bound", ("GpuHostBound", "GpuLaunchBound"))],
    "pcie_h2d_pinned": [Truth("pcie-bound", ("GpuPcieBound",))],
    "data_loading_bound_train": [Truth("data-loading-bound", ("GpuDataLoadingBound",))],
    "ddp_balanced": [COMPUTES, COMPUTES],
    "ddp_all_data_bound": [HOST, HOST],
    "nccl_all_reduce_1g": [REDUCES, REDUCES],
    "ddp_straggler_cpu_delay": [
        Truth("communicating"),
        Truth("host-bound", ("GpuStragglerStarved", "GpuHostBound")),
    ],
    "ddp_straggler_slow_gpu": [Truth("communicating"), Truth("compute-bound", ("GpuStragglerSlow",))],
}
# The straggler has more work, and runs at its power cap: the alert is only info.
AT_ITS_POWER_CAP: Mapping[str, Mapping[str, str]] = {"ddp_straggler_slow_gpu": {"severity": "info"}}
# Their instant power may or may not swing, depending on the times of reads: both are true.
EITHER = ("GpuPowerOscillation",)


GENERATIONS = [Generation.GPU_EXPORTER, *([Generation.DCGM_4_9] if is_long() else [])]


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda each: each.value)
def test_each_phase_held_for_two_hours(tmp_path: Path, generation: Generation) -> None:
    known = values_by_phase(sorted(RECORDINGS.glob("*.jsonl.gz")))
    assert {phase for phase, _ in known} == set(TRUTH)
    fleet, found = [], []
    for phase, truths in TRUTH.items():
        for gpu, (bottleneck, modes) in enumerate(truths):
            fleet.append(Device(phase, gpu, [minutes(HELD, known[phase, gpu])], generation, rank(phase, gpu)))
            on_gpu = f', gpu="{gpu}", alertname!~"{"|".join(EITHER)}"'
            fires = [
                ({**labels, **AT_ITS_POWER_CAP.get(phase, {})}, value) for labels, value in firing(phase, modes, [gpu])
            ]
            found.append(now_firing(phase, on_gpu, fires))
            is_class = ({"node": phase, "gpu": str(gpu), "class": bottleneck}, 1.0)
            which = f'group by (node, gpu, class) (gpu:bottleneck:class{{node="{phase}", gpu="{gpu}"}})'
            found.append(Expect(which, [is_class]))
        found.append(never_fired(phase, {*EITHER, *(mode for truth in truths for mode in truth.modes)}))
    found.append(no_other_node(TRUTH))
    check(tmp_path, [Case(generation.value, fleet, found)])
