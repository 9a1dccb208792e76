"""The labels of a series, by schema. Classic families have dcgm-exporter's labels, in its order.

Source: NVIDIA/dcgm-exporter 4.5.3-4.8.2, `internal/pkg/rendermetrics/render_metrics.go` (which labels, by entity) and
`internal/pkg/collector/gpu_collector.go` (their values). The labels of the entity come first, then the others by name,
then those that it calls attributes, by name. `--schema si` renames two labels: `hostname` (4.8.3, its pull request 655)
and `DCGM_FI_SYSTEM_DRIVER_VERSION` (release notes of 4.9.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_exporter.catalogue.metrics import INFO, SWITCH_LINKS
from gpu_exporter.model.gpu import Gpu, Series
from gpu_exporter.model.metric import EntityKind, Labels, Schema

NODE_LABEL = {Schema.CLASSIC: "Hostname", Schema.SI: "hostname"}
DRIVER_LABEL = {Schema.CLASSIC: "DCGM_FI_DRIVER_VERSION", Schema.SI: "DCGM_FI_SYSTEM_DRIVER_VERSION"}
ATTRIBUTES = frozenset({"err_code", "err_msg"})

Entity = Callable[[Gpu | None, Mapping[str, str]], Labels]


def driver(gpu: Gpu) -> Labels:
    """Return the label that classic families of a GPU have without a file of fields."""
    return ((DRIVER_LABEL[Schema.CLASSIC], gpu.driver),)


def labels_of(
    series: Series, node: str, schema: Schema = Schema.CLASSIC, rows: Callable[[Gpu], Labels] = driver
) -> Labels:
    """Return the labels of a series: classic families have dcgm-exporter's, `gpu_*` families the GPU's index and UUID.

    `rows` returns the labels that come from rows of type label in the file of fields, by their classic names.
    """
    metric, gpu = series.metric, series.gpu
    if metric.classic:
        return _classic(series, node, schema, rows)
    device: Labels = ()
    if gpu is not None:
        device = (("gpu", str(gpu.index)), ("UUID", gpu.uuid))
        if metric is INFO:
            device += (("pci_bus_id", gpu.pci_bus_id), ("device", gpu.device), ("model", gpu.model), ("node", node))
            device += gpu.info
    return device + metric.labels + series.labels


def _classic(series: Series, node: str, schema: Schema, rows: Callable[[Gpu], Labels]) -> Labels:
    labels = dict(series.metric.labels + series.labels)
    kind = EntityKind.NVLINK if series.metric in SWITCH_LINKS else series.metric.entity
    entity = ENTITIES.get(kind, _gpu)(series.gpu, labels)
    entity += ((NODE_LABEL[schema], node),)
    rest = {name: value for name, value in labels.items() if name not in dict(entity)}
    if series.gpu is not None:
        rest.update(rows(series.gpu))
    if DRIVER_LABEL[Schema.CLASSIC] in rest:
        rest[DRIVER_LABEL[schema]] = rest.pop(DRIVER_LABEL[Schema.CLASSIC])
    return entity + tuple(sorted(rest.items(), key=lambda label: (label[0] in ATTRIBUTES, label[0])))


def _device(gpu: Gpu) -> tuple[str, str]:
    """Return the label that dcgm-exporter derives from the index. gpu_info has the device file, which may differ."""
    return ("device", f"nvidia{gpu.index}")


def _instance(labels: Mapping[str, str]) -> Labels:
    return tuple((name, labels[name]) for name in ("GPU_I_PROFILE", "GPU_I_ID") if name in labels)


def _gpu(gpu: Gpu | None, labels: Mapping[str, str]) -> Labels:
    if gpu is None:
        return ()
    return (
        ("gpu", str(gpu.index)),
        ("UUID", gpu.uuid),
        ("pci_bus_id", gpu.pci_bus_id),
        _device(gpu),
        ("modelName", gpu.model),
        *_instance(labels),
    )


def _nvlink(gpu: Gpu | None, labels: Mapping[str, str]) -> Labels:
    """Return the labels of a link of a GPU or of an NVSwitch."""
    result: Labels = (("nvlink", labels.get("nvlink", "")), *_nvswitch(gpu, labels))
    if gpu is not None:
        result += (("gpu", str(gpu.index)), ("gpu_uuid", gpu.uuid), ("pci_bus_id", gpu.pci_bus_id))
        result += (_device(gpu), ("model_name", gpu.model), *_instance(labels))
    return result


def _nvswitch(gpu: Gpu | None, labels: Mapping[str, str]) -> Labels:
    """Return the number of the switch. dcgm-exporter 4.8.2 writes `nvswitch0` for every switch (its issue 728)."""
    number = labels.get("nvswitch", "")
    return (("nvswitch", f"nvswitch{number}" if number.isdecimal() else number),) if number else ()


def _cpu(gpu: Gpu | None, labels: Mapping[str, str]) -> Labels:
    return (("cpu", labels.get("cpu", "")),)


def _cpu_core(gpu: Gpu | None, labels: Mapping[str, str]) -> Labels:
    return (("cpucore", labels.get("cpucore", "")), *_cpu(gpu, labels))


ENTITIES: Mapping[EntityKind, Entity] = {
    EntityKind.NVLINK: _nvlink,
    EntityKind.NVSWITCH: _nvswitch,
    EntityKind.CPU: _cpu,
    EntityKind.CPU_CORE: _cpu_core,
}
