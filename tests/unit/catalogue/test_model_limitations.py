"""What docs/gpu-models.md and docs/platforms.md say of models that were not measured is what the conditions answer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes import MODES, profiles
from gpu_exporter.catalogue.gpu_models import BY_NAME, GB200, GH200, H200, L4, L40S, WHOLE, GpuModel
from gpu_exporter.conditions.evaluate import Device, Points, holds
from gpu_exporter.conditions.signal import Derived, Signal
from gpu_exporter.conditions.tree import Limits
from tests.support.classes import classify

RANKS = (("UUID", "0"),), (("UUID", "1"),)
NOTHING = {
    signal: 0.0
    for signal in (
        *(s.GR_ACTIVE, s.SM_ACTIVE, s.DRAM_ACTIVE, s.TENSOR_ACTIVE, s.INT_ACTIVE),
        *(s.FP64_ACTIVE, s.FP32_ACTIVE, s.FP16_ACTIVE),
        *(s.PCIE_RX, s.PCIE_TX, s.NVLINK_RX, s.NVLINK_TX),
    )
}
COPY = {s.PCIE_RX: profiles.HOST_COPY[m.PCIE_RX]}
WAITS_FOR_DATA = {s.GR_ACTIVE: 0.1, s.SM_ACTIVE: 0.08}
FP32_GEMM = {s.GR_ACTIVE: 1.0, s.SM_ACTIVE: 0.97, s.FP32_ACTIVE: 0.77, s.DRAM_ACTIVE: 0.05}
GATHER = {s.GR_ACTIVE: 1.0, s.SM_ACTIVE: 0.99, s.DRAM_ACTIVE: 0.35}
SMALL_REDUCES = {s.GR_ACTIVE: 0.95, s.SM_ACTIVE: 0.02, s.PCIE_RX: 2e8, s.PCIE_TX: 2e8}
SLICE_1G, SLICE_3G = BY_NAME["NVIDIA H100 80GB HBM3 MIG 1g.10gb"], BY_NAME["NVIDIA H100 80GB HBM3 MIG 3g.40gb"]
H100_PCIE, A100 = BY_NAME["NVIDIA H100 PCIe"], BY_NAME["NVIDIA A100-SXM4-80GB"]
DOCUMENT = "fix: correct the Exempt in gpu_exporter/catalogue/model_expectations.py and docs/platforms.md"


@dataclass
class Steady:
    """GPUs of a model with constant values for five minutes: by default, two ranks of one job."""

    model: GpuModel
    values: Mapping[Signal, float]
    job: Sequence[Device] = RANKS
    now: float = 1000.0
    limits: Limits = field(default_factory=dict)
    memo: dict[Hashable, Any] = field(default_factory=dict)
    presence: ClassVar[Signal] = s.GR_ACTIVE
    devices: ClassVar[Sequence[Device]] = RANKS

    def by_device(self, signal: Signal) -> Mapping[Device, Points]:
        """Return one point every 15 s."""
        value = None if signal in self.model.lacks else self.value(signal)
        return {} if value is None else dict.fromkeys(RANKS, tuple((self.now - 300 + 15 * n, value) for n in range(21)))

    def value(self, signal: Signal) -> float | None:
        """Return the value of a signal, derived from others where it is not given."""
        known = {**NOTHING, s.PCIE_GEN: float(self.model.pcie[0]), s.PCIE_WIDTH: 16.0, **self.values}
        derived = (way.value(self.value) for way in signal.definitions if isinstance(way, Derived))
        return known.get(signal, next(derived, None))

    def ranks(self, device: Device) -> Sequence[Device]:
        """Return the ranks of the job."""
        return self.job

    def alike(self, device: Device) -> Hashable:
        """Return the same for both ranks."""
        return self.model.name


def bottleneck(model: GpuModel, values: Mapping[Signal, float]) -> str:
    """Return the class of a GPU of this model with these values, without a job."""
    found = classify(Steady(model, values, job=()), RANKS[0])
    return found.name if found else ""


def hangs(model: GpuModel, values: Mapping[Signal, float]) -> bool:
    """Return whether GpuCollectiveStall is true of a job on this model with these values."""
    (stall,) = (mode.condition for mode in MODES if mode.name == "GpuCollectiveStall")
    assert stall is not None
    return holds(stall, Steady(model, values), RANKS[0]) is True


def waiting(model: GpuModel, blocks: int) -> Mapping[Signal, float]:
    """Return the values of a rank that waits in NCCL with this number of blocks."""
    return {s.GR_ACTIVE: 0.98, s.SM_ACTIVE: blocks / model.sms}


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: model.name)
def test_a_hang_is_detected_on_every_whole_gpu(model: GpuModel) -> None:
    """With the most blocks that NCCL uses there, and with one, as for small messages."""
    assert [hangs(model, waiting(model, blocks)) for blocks in (model.blocks, 1)] == [True, True]


@pytest.mark.parametrize("model", [*WHOLE, SLICE_3G], ids=lambda model: model.name)
def test_a_busy_loop_is_fake_load(model: GpuModel) -> None:
    """One thread in a busy loop is found on every model but the smallest slices."""
    assert bottleneck(model, {s.GR_ACTIVE: 1.0, s.SM_ACTIVE: 1 / model.sms}) == "fake-load"


@pytest.mark.drift
@pytest.mark.parametrize(
    ("model", "values", "name"),
    [
        (H200, COPY, "pcie-bound"),
        (GB200, {}, "idle"),
        (GH200, {}, "idle"),
        (SLICE_3G, COPY, "idle"),
        (GB200, WAITS_FOR_DATA, "host-bound"),
        (H200, FP32_GEMM, "tensor-cores-idle"),
        (A100, FP32_GEMM, "tensor-cores-idle"),
        (H100_PCIE, FP32_GEMM, "tensor-cores-idle"),
        (L4, FP32_GEMM, "mixed"),
        (L40S, FP32_GEMM, "mixed"),
        (H200, GATHER, "memory-bound"),
        (L4, GATHER, "mixed"),
        (SLICE_1G, {s.GR_ACTIVE: 1.0, s.SM_ACTIVE: 1 / 16}, "communicating"),
    ],
)
def test_classes_are_those_of_the_documents(model: GpuModel, values: Mapping[Signal, float], name: str) -> None:
    """Where a signal is missing or the model is small, the class is the documented one."""
    assert bottleneck(model, values) == name, DOCUMENT


@pytest.mark.drift
@pytest.mark.parametrize(
    ("model", "values", "stalled"),
    [
        (H200, {**SMALL_REDUCES, s.NVLINK_RX: 2e8, s.NVLINK_TX: 2e8}, False),
        (L40S, SMALL_REDUCES, False),
        (SLICE_3G, SMALL_REDUCES, True),
        (SLICE_1G, waiting(SLICE_1G, 8), False),
        (SLICE_3G, waiting(SLICE_3G, 8), True),
    ],
)
def test_stalls_are_those_of_the_documents(model: GpuModel, values: Mapping[Signal, float], stalled: bool) -> None:
    """The documents name the false alarms, and the hangs that are not reported."""
    assert hangs(model, values) is stalled, DOCUMENT
