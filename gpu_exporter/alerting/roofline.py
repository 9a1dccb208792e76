"""Rules on how close GPUs are to what they can reach, from the catalogue of models and from active checks."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.gpu_models import BY_NAME
from gpu_exporter.catalogue.roofline import ROOFS

_DEVICE = ("node", "gpu", "namespace", "workload")


def _table(rows: Iterable[tuple[str, float]]) -> str:
    """Return one constant series for each model."""
    return "\nor\n".join(f'label_replace(vector({value:.5g}), "modelName", "{name}", "", "")' for name, value in rows)


MODEL_TENSOR = Aggregate(
    "model:tensor_rate:hertz",
    "Cycles per second with active tensor cores that the best kernels reach on this model",
    _table((name, roof.tensor) for name, roof in ROOFS.items()),
    ("modelName",),
)
MODEL_MEMORY = Aggregate(
    "model:memory_rate:bytes_per_second",
    "Memory bandwidth that the best kernels reach on this model",
    _table((name, roof.memory * BY_NAME[name].memory_bandwidth) for name, roof in ROOFS.items()),
    ("modelName",),
)
MODEL_BANDWIDTH = Aggregate(
    "model:memory_bandwidth:bytes_per_second",
    "Memory bandwidth of this model by its data sheet, to which DRAM activity refers",
    _table((name, BY_NAME[name].memory_bandwidth) for name in ROOFS),
    ("modelName",),
)
_OF_MODEL = "on (modelName) group_left ()"
# Of an instance, the bandwidth of the whole GPU says nothing.
_TRAFFIC = f"{s.DRAM_ACTIVE.record} * {_OF_MODEL} {MODEL_BANDWIDTH.record}"
TENSOR = Aggregate(
    "gpu:tensor_achieved:ratio",
    "Rate of the tensor cores as a share of what the best kernels reach on this model",
    f"clamp_max({s.TENSOR_ACTIVE.record} * on (cluster, UUID) group_left () max by (cluster, UUID)"
    f" ({s.SM_CLOCK.record}) / {_OF_MODEL} {MODEL_TENSOR.record}, 1)",
    _DEVICE,
)
MEMORY = Aggregate(
    "gpu:memory_achieved:ratio",
    "Memory bandwidth in use as a share of what this GPU reached in its last active check, or else of what the best "
    "kernels reach on this model",
    f"""clamp_max({_TRAFFIC.replace(s.DRAM_ACTIVE.record, s.DRAM_ACTIVE.record + '{GPU_I_ID=""}')}
  / on (cluster, UUID) group_left () max by (cluster, UUID) ({s.CHECKED_MEMORY.record})
or
{_TRAFFIC}
  / {_OF_MODEL} {MODEL_MEMORY.record}, 1)""",
    _DEVICE,
)
ROOFLINE = (MODEL_TENSOR, MODEL_MEMORY, MODEL_BANDWIDTH, TENSOR, MEMORY)
