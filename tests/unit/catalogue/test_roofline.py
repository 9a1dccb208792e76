"""How close GPUs are to what their model reaches, on recordings of real GPUs and made-up values."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.gpu_models import BY_NAME, MODELS
from gpu_exporter.catalogue.roofline import FLOPS_PER_CYCLE, ROOFS, Position, roof
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.loss import achieved
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from tests.support import phases
from tests.support.truth import PHASES


def recorded(model: str, phase: str) -> Diagnosis:
    path = next(path for path, name in PHASES if name == phase and path.name.startswith(f"{model}_single"))
    return phases.diagnoses(path, phase)[0]


def test_flops_per_cycle_are_those_of_the_data_sheets() -> None:
    """With boost clocks of NVIDIA's documents."""
    boost = {"NVIDIA A100-SXM4-80GB": 1.41e9, "NVIDIA H100 80GB HBM3": 1.83e9, "NVIDIA L40S": 2.52e9}
    for name, clock in boost.items():
        model = BY_NAME[name]
        assert FLOPS_PER_CYCLE[model.architecture] * model.sms * clock == pytest.approx(model.bf16, rel=0.02)


def test_every_model_has_a_plausible_roof() -> None:
    """Between half and all of the data sheet; only what was measured says so."""
    for model in MODELS:
        whole = BY_NAME[model.slice_of] if model.slice_of else model
        flops = roof(model).tensor * whole.sms * FLOPS_PER_CYCLE[whole.architecture]
        assert 0.5 < flops / whole.bf16 < 1
        assert 0.8 < roof(model).memory < 0.95
    assert [name for name, each in ROOFS.items() if each.measured] == ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize("model", ["h200", "h100"])
def test_the_best_kernels_reach_the_roof(model: str) -> None:
    """Recordings of a product and a copy, of another day than the measurement of the H100."""
    product, copy = recorded(model, "gemm_bf16").position, recorded(model, "copy").position
    assert product
    assert copy
    assert 0.88 <= product.tensor <= 1
    assert product.memory < 0.4
    assert 0.95 <= copy.memory <= 1
    assert copy.tensor < 0.05


@pytest.mark.parametrize(("model", "larger"), [("h200", 2.5), ("h100", 3.8)])
def test_decoding_may_have_a_larger_batch(model: str, larger: float) -> None:
    """A recorded decoder that reads its weights for a batch that is too small for the chip."""
    position = recorded(model, "decode_batch").position
    assert position
    assert position.batch == pytest.approx(larger, rel=0.1)


@pytest.mark.parametrize(
    ("position", "larger", "text"),
    [
        (Position(0.2, 0.9, True, False), 4.5, "A batch up to 4.5 times as large takes little longer"),
        (Position(0.9, 0.3, True, False), None, "A larger batch takes longer in proportion."),
        (Position(0.5, 0.7, True, False), None, "of what its model reaches."),
        (Position(0.3, 0.4, False, False), None, "its model reaches, which is assumed from the data sheet."),
        (Position(2e-7, 0.9, True, False), None, "of what its model reaches."),
        (Position(0.0, 0.9, True, True), None, "this GPU reached in its last active check."),
    ],
)
def test_advice_on_the_batch(position: Position, larger: float | None, text: str) -> None:
    assert position.batch == (None if larger is None else pytest.approx(larger))
    assert text in achieved(position)


def test_an_active_check_of_the_gpu_counts_more_than_its_model() -> None:
    """And an unknown model has no position."""

    def of(model: str, checked: float | None, tensor: float = 0.1) -> Position | None:
        labels = {"gpu": "0", "UUID": "GPU-0", "modelName": model, "Hostname": "node"}
        values = {"GR_ENGINE_ACTIVE": 1.0, "SM_ACTIVE": 0.95, "PIPE_TENSOR_ACTIVE": tensor, "DRAM_ACTIVE": 0.45}
        samples = [ScrapedSample(f"DCGM_FI_PROF_{name}", labels, value) for name, value in values.items()]
        samples.append(ScrapedSample("DCGM_FI_DEV_SM_CLOCK", labels, 1980.0))
        if checked:
            samples.append(ScrapedSample("gpu_probe_bytes_per_second", {**labels, "quantity": "memory_copy"}, checked))
        (diagnosis,) = diagnose(seen([Scrape(1000.0 + second, samples) for second in range(3)], {}))
        return diagnosis.position

    known, own = of("NVIDIA H100 80GB HBM3", None), of("NVIDIA H100 80GB HBM3", 0.45 * 3.35e12)
    assert known
    assert own
    assert known.memory == pytest.approx(0.5, rel=0.01)
    assert own.memory == pytest.approx(1.0, rel=1e-6)
    assert (known.checked, own.checked) == (False, True)
    assert of("Unknown GPU", None) is None
    best = of("NVIDIA H100 80GB HBM3", 0.4 * 3.35e12, tensor=1.0)
    assert best
    assert achieved(best).startswith("tensor cores 100 %, memory 100 % of what this GPU reached")
