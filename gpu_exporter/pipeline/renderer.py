"""Render snapshots as text 0.0.4 and OpenMetrics 1.0, once per collection. A scrape joins its lines at most.

Classic families have dcgm-exporter's labels, in its order. Source: NVIDIA/dcgm-exporter 4.5.3-4.8.2,
`internal/pkg/rendermetrics/render_metrics.go` (which labels, by entity) and
`internal/pkg/collector/gpu_collector.go` (their values). The labels of the entity come first, then the others by name,
then those that it calls attributes, by name. `--schema si` renames two labels: `hostname` (4.8.3, its pull request 655)
and `DCGM_FI_SYSTEM_DRIVER_VERSION` (release notes of 4.9.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, compress
from operator import is_, itemgetter, ne
from typing import TYPE_CHECKING

from gpu_exporter.catalogue.dcgm_exporter.names import converter
from gpu_exporter.catalogue.metrics import INFO, SWITCH_LINKS
from gpu_exporter.catalogue.selection import Selection, everything
from gpu_exporter.io.user_text import Devices
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import EntityKind, Labels, Metric, Schema
from gpu_exporter.model.snapshot import OwnerLabels, Snapshot
from gpu_exporter.model.source import Source
from gpu_exporter.pipeline.pages import Page

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
        return _classic_labels(series, node, schema, rows)
    device: Labels = ()
    if gpu is not None:
        device = (("gpu", str(gpu.index)), ("UUID", gpu.uuid))
        if metric is INFO:
            device += (("pci_bus_id", gpu.pci_bus_id), ("device", gpu.device), ("model", gpu.model), ("node", node))
            device += gpu.info
    return device + metric.labels + series.labels


def _classic_labels(series: Series, node: str, schema: Schema, rows: Callable[[Gpu], Labels]) -> Labels:
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


if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as ClientMetric

# Labels that are written even if they are empty.
ALWAYS = frozenset({"namespace", "pod", "container"})


def escape(value: str) -> str:
    """Escape a label value for both formats. Replace characters that UTF-8 cannot encode."""
    value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value.encode("utf-8", "replace").decode("utf-8")


def number(value: float) -> str:
    """Format a value for both formats: whole numbers without a decimal point, others without loss of precision."""
    whole = int(value)
    return str(whole) if value == whole and -1e15 < whole < 1e15 else repr(value)


@cache
def _header(name: str, kind: str, help: str, *, openmetrics: bool) -> bytes:
    """Return the HELP and TYPE lines of a family.

    In OpenMetrics, the samples of a counter end in _total, and the family is named without it. A counter with another
    name would be renamed or rejected, so it has the type `unknown` there, and keeps its name.
    """
    help = help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        help = help.replace('"', r"\"")
        if kind == "counter":
            name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n".encode()


EVERY_DEVICE = Devices()
_series = itemgetter(0)  # of a sample


@dataclass(frozen=True, slots=True)
class Style:
    """Options of the output, named as in `Config`. `devices` says which series classic families have: those of whole
    GPUs (its kind is g), of MIG instances (i), or both (f)."""

    no_hostname: bool = False
    replace_blanks_in_model_name: bool = False
    devices: Devices = EVERY_DEVICE

    def hides(self, series: Series) -> bool:
        """Return whether this series is left out."""
        if self.devices.kind == "f" or not series.metric.classic or series.metric.entity is not EntityKind.GPU:
            return False
        return (self.devices.kind == "g") is ("GPU_I_ID" in dict(series.labels))


class Renderer:
    """Renders pages. Builds the prefix of a line once per series, and a line and its family only when a value changes.

    `node` is the classic `Hostname` label. `labels` are those of every series (`source="replay"`). `selection`
    says which families are exposed and how; without it, the whole catalogue is.
    """

    def __init__(
        self, node: str, labels: Labels = (), selection: Selection | None = None, style: Style | None = None
    ) -> None:
        self._node = node
        self._style = style or Style()
        self._labels_of_all = labels
        self._selection = selection or everything()
        self._samples: tuple[Sample, ...] = ()
        self._process: Iterable[ClientMetric] = ()
        self._process_families: Sequence[tuple[bytes, bytes, bytes]] = ()
        self._lines: dict[str, dict[Series, bytes]] = {}
        self._families: dict[str, bytes] = {}
        self._owner_labels = OwnerLabels()
        self._value_labels: Mapping[Gpu | None, Labels] = {}
        families = self._selection.families
        self._headers = {
            metric: tuple(_header(shown.name, shown.kind, shown.help, openmetrics=om) for om in (False, True))
            for metric, shown in families.items()
        }
        self._converters = {
            metric: converter(shown.factor) for metric, shown in families.items() if shown.factor != 1.0
        }

    def render(self, snapshot: Snapshot, process: Iterable[ClientMetric] = ()) -> Page:
        """Render a snapshot and the metrics of the process, as prometheus_client collects them.

        These are rendered only if they are another object than those of the last page.
        """
        if self._selection.value_labels:
            self._relabel(snapshot)
        self._forget_moved(snapshot.owner_labels)
        before, self._samples = self._samples, snapshot.samples
        changed = [*map(ne, before, snapshot.samples)]
        old, new = [*compress(before, changed)], [*compress(snapshot.samples, changed)]
        if len(before) == len(snapshot.samples) and all(map(is_, map(_series, old), map(_series, new))):
            self._update(new)
        else:
            self._lay_out(snapshot.samples)
        shown = self._families
        families = [(text, om, shown[name]) for name, (text, om) in self._headers.items() if name in shown]
        if process is not self._process:
            self._process, self._process_families = process, [*map(self._client, process)]
        return Page([*families, *self._process_families])

    def _lay_out(self, samples: Sequence[Sample]) -> None:
        """Render all families anew: there are other series, or the same in another order."""
        style, filtered = self._style, self._style.devices.kind != "f"
        before = dict(chain.from_iterable(family.items() for family in self._lines.values()))
        self._lines.clear()
        self._families.clear()
        for series, _ in samples:
            name = series.metric.name
            if name in self._headers and not (filtered and style.hides(series)):
                self._lines.setdefault(name, {})[series] = before.get(series, b"")
        self._update(samples)

    def _update(self, samples: Iterable[Sample]) -> None:
        """Render these samples, whose values have changed, and their families."""
        lines, converters = self._lines, self._converters
        changed = set()
        for series, value in samples:
            name = series.metric.name
            family = lines.get(name)
            if family is None or (line := family.get(series)) is None:
                continue
            prefix = line[: line.rindex(b" ") + 1] if line else self._prefix(series)
            if name in converters:
                value = converters[name](value)
            family[series] = prefix + number(value).encode() + b"\n"
            changed.add(name)
        for name in changed:
            self._families[name] = b"".join(lines[name].values())

    def _forget_moved(self, owner_labels: OwnerLabels) -> None:
        """Forget the labels of series whose owner has changed."""
        before, self._owner_labels = self._owner_labels, owner_labels
        if before != owner_labels:
            self._forget(lambda series: before.labels(series) != owner_labels.labels(series))

    def _forget(self, has_moved: Callable[[Series], bool]) -> None:
        """Have the labels of these series made anew."""
        for family in self._lines.values():
            family.update((series, b"") for series in family if has_moved(series))
        self._samples = ()

    def _relabel(self, snapshot: Snapshot) -> None:
        """Take the values that are labels, and forget the lines of the GPUs for which they have changed.

        A value that is missing keeps its last text while the GPU is listed: one failed read would otherwise change the
        identity of all classic series of the GPU.
        """
        rows, before = self._selection.value_labels, self._value_labels
        metrics = {row.metric for row in rows}
        listed: set[Gpu | None] = {status.gpu for status in snapshot.gpus}
        values: dict[tuple[Metric, Gpu | None], float] = {}
        for series, value in snapshot.samples:
            listed.add(series.gpu)
            if series.metric in metrics and not series.labels:
                values[series.metric, series.gpu] = value
        now: dict[Gpu | None, Labels] = {}
        for gpu in listed:
            texts = dict(before.get(gpu, ()))
            texts |= {row.name: row.text(values[row.metric, gpu]) for row in rows if (row.metric, gpu) in values}
            now[gpu] = tuple((row.name, texts[row.name]) for row in rows if row.name in texts)
        self._value_labels = now
        changed = {gpu for gpu in (before.keys() | now.keys()) if before.get(gpu, ()) != now.get(gpu, ())}
        if changed:
            self._forget(lambda series: series.gpu in changed and series.metric.classic)

    def _label_rows(self, gpu: Gpu) -> Labels:
        return (*self._selection.label_rows(gpu), *self._value_labels.get(gpu, ()))

    def _prefix(self, series: Series) -> bytes:
        selection = self._selection
        labels = dict(labels_of(series, self._node, selection.schema, self._label_rows))
        if self._style.no_hostname:
            labels.pop(NODE_LABEL[selection.schema], None)
        if self._style.replace_blanks_in_model_name and "modelName" in labels:
            labels["modelName"] = "-".join(labels["modelName"].split())
        labels.update(self._owner_labels.labels(series))
        return f"{selection.families[series.metric.name].name}{series.part}{self._braces(labels)} ".encode()

    def _braces(self, labels: Mapping[str, str]) -> str:
        labels = {**labels, **dict(self._labels_of_all)}
        pairs = [f'{name}="{escape(value)}"' for name, value in labels.items() if value or name in ALWAYS]
        return f"{{{','.join(pairs)}}}" if pairs else ""

    def _client(self, metric: ClientMetric) -> tuple[bytes, bytes, bytes]:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        text, om = (_header(name, metric.type, metric.documentation, openmetrics=om) for om in (False, True))
        lines = (f"{s.name}{self._braces(s.labels)} {number(s.value)}\n" for s in metric.samples)
        return text, om, "".join(lines).encode()


def source_labels(source: Source) -> Labels:
    """Return the labels of every series of a source. Only sources of other GPUs than this machine's have one."""
    return () if source.live else (("source", source.name),)
