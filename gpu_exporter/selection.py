"""What a source is asked for, and which of it is shown how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_exporter.metrics import METRICS, selected
from gpu_exporter.model import Gpu, Labels, Metric, MetricSet


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
    `more` are those of `asked` that only a file of fields has.
    """

    asked: tuple[Metric, ...]
    families: Mapping[str, Family] = field(default_factory=dict)
    labels: Labels = (("DCGM_FI_DRIVER_VERSION", "driver"),)
    more: tuple[Metric, ...] = ()


def own_family(metric: Metric) -> Family:
    """How the catalogue shows a metric."""
    return Family(metric.name, metric.kind.value, metric.help)


def catalogue() -> dict[str, Family]:
    """Every family of the catalogue; the first of rows with one name speaks for it."""
    return {row.name: own_family(row) for row in reversed(METRICS)}


def everything(choice: MetricSet = MetricSet.DEFAULT, *, processes: bool = False) -> Selection:
    """Without a file of fields: what `--metrics` says, as the catalogue has it."""
    shown = catalogue()
    return Selection(selected(choice, processes=processes), {row.name: shown[row.name] for row in METRICS})


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
