"""Peaks by data type are those of the data sheets."""

from __future__ import annotations

import pytest

from gpu_exporter.catalogue.gpu_models import DTYPES, MODELS, peak, peak_of


@pytest.mark.parametrize(
    ("model", "dtype", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 80GB HBM3", "torch.float16", 989.4),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 80GB HBM3", "FP8", 1978.9),
        ("NVIDIA H100 80GB HBM3", "float32", 66.9),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA L40S", "tf32", 183),
        ("NVIDIA L40S", "fp8", 733),
        ("NVIDIA B200", "nvfp4", 9000),
        ("NVIDIA B200", "fp32", 75),
        ("NVIDIA GB200", "fp32", 80),
        ("NVIDIA A30", "bf16", 165),
        ("NVIDIA GH200 480GB", "fp8", 1979),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "fp32", 120),
    ],
)
def test_the_peak_is_that_of_the_data_sheet(model: str, dtype: str, teraflops: float) -> None:
    """NVIDIA's data sheets, dense; some print the digits that others round."""
    assert peak(model, dtype) == pytest.approx(teraflops * 1e12, rel=0.02)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp8"),
        ("NVIDIA H200", "fp4"),
        ("NVIDIA H200", "int7"),
        ("NVIDIA H200", ""),
        ("Quadro", "bf16"),
    ],
)
def test_an_unknown_peak_is_not_guessed(model: str, dtype: str) -> None:
    assert peak(model, dtype) is None


def test_every_model_has_a_peak_of_every_type_that_its_architecture_has() -> None:
    for model in MODELS:
        known = [dtype for dtype in DTYPES if peak_of(model, dtype)]
        assert known[:4] == ["fp32", "tf32", "bf16", "fp16"]
