"""Which rows a source reads, and how they are exposed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED, converter
from gpu_exporter.catalogue.metrics import (
    CLOCK_EVENTS,
    EXP_CLOCK_COUNT,
    EXP_CLOCK_TOTAL,
    METRICS,
    histograms,
    selected,
)
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Labels, Metric, MetricSet, PerProcess, Schema

CLOCK_COUNTS = frozenset({EXP_CLOCK_COUNT, EXP_CLOCK_TOTAL})


@dataclass(frozen=True, slots=True)
class Family:
    """How a metric is exposed: its name, TYPE and HELP, and the factor for its value."""

    name: str
    kind: str
    help: str
    factor: float = 1.0


class ValueLabel(NamedTuple):
    """A label whose text is the latest value of a metric of the GPU, times `factor`; `whole` if DCGM's field is one."""

    name: str
    metric: Metric
    factor: float = 1.0
    whole: bool = True

    def text(self, value: float) -> str:
        """Return the text for a value, as dcgm-exporter writes it."""
        converted = converter(self.factor)(value)
        return str(round(converted)) if self.whole else f"{converted:f}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that a source reads (`read_rows`), and the exposed `families` by name of the metric; others are hidden.

    `labels` are put on each classic family of a GPU: the name of the label, and the detail of the GPU (see `detail`).
    So are `value_labels`, whose text may change. `file_only_rows` are the rows that only a file of fields names.
    `schema` chooses the names of the classic labels.
    """

    read_rows: tuple[Metric, ...]
    families: Mapping[str, Family] = field(default_factory=dict)
    labels: Labels = (("DCGM_FI_DRIVER_VERSION", "driver"),)
    file_only_rows: tuple[Metric, ...] = ()
    schema: Schema = Schema.CLASSIC
    value_labels: tuple[ValueLabel, ...] = ()

    @property
    def hidden_rows(self) -> frozenset[Metric]:
        """The rows that are read for other purposes than their own series, none of which needs each collection: the
        integral of a mean is exact over any time."""
        shown = [row for row in self.read_rows if row.name in self.families]
        needed = {row.histogram_of for row in shown} | {part for row in shown for part in row.sum_of}
        needed |= {part for row in METRICS if row.name in self.families for part in row.peak_of}
        needed |= {label.metric for label in self.value_labels}
        if not CLOCK_COUNTS.isdisjoint(shown):
            needed.add(CLOCK_EVENTS)
        return frozenset(row for row in self.read_rows if row.name not in self.families and row not in needed)

    def label_rows(self, gpu: Gpu) -> Labels:
        """Return `labels` with their values for this GPU."""
        return tuple((label, detail(gpu, what)) for label, what in self.labels)


def own_family(metric: Metric, schema: Schema = Schema.CLASSIC) -> Family:
    """Return the family of a metric that no file of fields names."""
    name, factor = RENAMED.get(metric.name, (metric.name, 1.0)) if schema is Schema.SI else (metric.name, 1.0)
    return Family(name, metric.kind.value, metric.help, factor)


def catalogue(schema: Schema = Schema.CLASSIC) -> dict[str, Family]:
    """Return every family of the catalogue; of several rows with one name, the first defines the family."""
    return {row.name: own_family(row, schema) for row in reversed(METRICS)}


def everything(
    choice: MetricSet = MetricSet.DEFAULT,
    *,
    processes: bool = False,
    host: bool = False,
    jobs: bool = False,
    schema: Schema = Schema.CLASSIC,
) -> Selection:
    """Return the selection without a file of fields: the rows that `--metrics` chooses."""
    shown = catalogue(schema)
    listed = host or jobs
    families = {row.name: shown[row.name] for row in METRICS if not hidden(row, processes=processes, listed=listed)}
    rows = (*selected(choice, processes=processes or listed, host=host), *histograms(choice))
    return Selection(rows, families, schema=schema)


def hidden(row: Metric, *, processes: bool, listed: bool) -> bool:
    """Return whether a row is only read because host evidence and the job socket need the processes on each GPU."""
    return listed and not processes and isinstance(row.nvml, PerProcess)


def detail(gpu: Gpu, what: str) -> str:
    """Return a constant property of a GPU: `driver`, `model`, `uuid`, …, or a key of its `info`; empty if unknown."""
    info = dict(gpu.info)
    own = {
        "process": sys.argv[0],
        "cuda_driver_number": _packed(info.get("cuda_version", ""), 1000, 10),
        "compute_capability_number": _packed(info.get("compute_capability", ""), 1 << 16, 1),
        "driver": gpu.driver,
        "model": gpu.model,
        "uuid": gpu.uuid,
        "index": str(gpu.index),
        "pci_bus_id": gpu.pci_bus_id,
        "minor_number": gpu.device.removeprefix("nvidia"),
    }
    return own[what] if what in own else info.get(what, "")


def _packed(version: str, major: int, minor: int) -> str:
    """Return `major.minor` as one number, as DCGM does; empty if it is not such a version."""
    parts = version.split(".")
    return (
        str(int(parts[0]) * major + int(parts[1]) * minor) if [part.isdecimal() for part in parts] == [True] * 2 else ""
    )
