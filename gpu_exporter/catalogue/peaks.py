"""The peak of a GPU in FLOP/s by data type, without sparsity: what model FLOPs utilisation (MFU) refers to.

The catalogue of models has FP32 and BF16. In the data sheets of these models, the other types have fixed ratios to
BF16, within 2 %: the tensor cores take half the time for half the width.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue.gpu_models import BY_NAME, GpuModel

FP32 = "fp32"
# By data type: its ratio to BF16, and the architectures whose data sheets have it.
_TENSOR = {"Ampere", "Ada", "Hopper", "Blackwell"}
OF_BF16: Mapping[str, tuple[float, set[str]]] = {
    "tf32": (0.5, _TENSOR),
    "bf16": (1.0, _TENSOR),
    "fp16": (1.0, _TENSOR),
    "fp8": (2.0, _TENSOR - {"Ampere"}),
    "fp4": (4.0, {"Blackwell"}),
}
DTYPES = (FP32, *OF_BF16)
# Other names of PyTorch, Lightning and Transformer Engine.
ALIASES = {
    "float32": FP32,
    "float": FP32,
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}


def peak_of(model: GpuModel, dtype: str) -> float | None:
    """Return the peak of a model in FLOP/s; None if it does not have this data type."""
    if dtype == FP32:
        return model.fp32
    ratio, architectures = OF_BF16.get(dtype, (0.0, set()))
    return model.bf16 * ratio if model.architecture in architectures else None


def peak(model_name: str, dtype: str) -> float | None:
    """Return the peak in FLOP/s of the GPU that the driver calls so; None if model or data type is unknown."""
    model, name = BY_NAME.get(model_name), dtype.lower().removeprefix("torch.")
    return None if model is None else peak_of(model, ALIASES.get(name, name))
