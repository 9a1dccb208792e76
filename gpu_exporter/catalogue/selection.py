"""What a source is asked for, and which of it is shown how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from gpu_exporter.catalogue.metrics import METRICS, histograms, selected
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric, MetricSet, Schema


@dataclass(frozen=True, slots=True)
class Family:
    """How a metric is shown: its name, TYPE and HELP, and by what its value is multiplied."""

    name: str
    kind: str
    help: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Selection:
    """`asked` is what a source is asked for. `families` are shown, by the name of the metric; any other is not.

    `labels` stand on each classic family of a GPU: the label, and what of the GPU its value is (see `detail`).
    `more` are those of `asked` that only a file of fields has. `schema` names what stands on every classic family.
    """

    asked: tuple[Metric, ...]
    families: Mapping[str, Family] = field(default_factory=dict)
    labels: Labels = (("DCGM_FI_DRIVER_VERSION", "driver"),)
    more: tuple[Metric, ...] = ()
    schema: Schema = Schema.CLASSIC

    def label_rows(self, gpu: Gpu) -> Labels:
        """`labels` with their values of this GPU."""
        return tuple((label, detail(gpu, what)) for label, what in self.labels)


def own_family(metric: Metric, schema: Schema = Schema.CLASSIC) -> Family:
    """How a metric is shown that no file of fields names."""
    name, factor = RENAMED.get(metric.name, (metric.name, 1.0)) if schema is Schema.SI else (metric.name, 1.0)
    return Family(name, metric.kind.value, metric.help, factor)


def catalogue(schema: Schema = Schema.CLASSIC) -> dict[str, Family]:
    """Every family of the catalogue; the first of rows with one name speaks for it."""
    return {row.name: own_family(row, schema) for row in reversed(METRICS)}


def everything(
    choice: MetricSet = MetricSet.DEFAULT, *, processes: bool = False, schema: Schema = Schema.CLASSIC
) -> Selection:
    """Without a file of fields: what `--metrics` says, as the catalogue has it."""
    shown = catalogue(schema)
    families = {row.name: shown[row.name] for row in METRICS}
    return Selection((*selected(choice, processes=processes), *histograms(choice)), families, schema=schema)


def detail(gpu: Gpu, what: str) -> str:
    """What never changes of a GPU: `driver`, `model`, `uuid`, …, or a key of its `info`; empty if not known."""
    own = {
        "driver": gpu.driver,
        "model": gpu.model,
        "uuid": gpu.uuid,
        "index": str(gpu.index),
        "pci_bus_id": gpu.pci_bus_id,
        "minor_number": gpu.device.removeprefix("nvidia"),
    }
    return own[what] if what in own else dict(gpu.info).get(what, "")
