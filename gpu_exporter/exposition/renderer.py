"""Snapshot -> bytes, in text 0.0.4 and OpenMetrics 1.0, plain or gzip. Made once a tick; a scrape only sends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric as ClientMetric

from gpu_exporter.catalogue.dcgm_exporter.names import converter
from gpu_exporter.catalogue.selection import Selection, everything
from gpu_exporter.config import Config
from gpu_exporter.exposition.labels import NODE_LABEL, labels_of
from gpu_exporter.exposition.pages import Page
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import EntityKind, Labels
from gpu_exporter.model.snapshot import OwnerLabels, Snapshot
from gpu_exporter.model.source import Source

# Labels that are written also where they are empty.
ALWAYS = frozenset({"namespace", "pod", "container"})


def escape(value: str) -> str:
    """A label value as both formats write it; what is not UTF-8 is replaced."""
    value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value.encode("utf-8", "replace").decode("utf-8")


def number(value: float) -> str:
    """A value as both formats write it: whole numbers without a point, others so that they read back the same."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _header(name: str, kind: str, help: str, *, openmetrics: bool) -> bytes:
    """OpenMetrics knows only counters whose samples end in _total, and names the family without it.

    A counter with another name would be renamed or refused there, so it is `unknown`: names stay the same.
    """
    help = help.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        help = help.replace('"', r"\"")
        if kind == "counter":
            name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n".encode()


class Style(NamedTuple):
    """What can be written otherwise: without `hostname`, model names with `dashes` for blanks, and of classic families
    only what is of whole GPUs (`parts` is g) or of MIG instances (i) instead of either (f)."""

    hostname: bool = True
    dashes: bool = False
    parts: str = "f"

    def hides(self, series: Series) -> bool:
        """Whether this series is not shown at all."""
        if self.parts == "f" or not series.metric.classic or series.metric.entity is not EntityKind.GPU:
            return False
        return (self.parts == "g") is ("GPU_I_ID" in dict(series.labels))


class Renderer:
    """Makes pages. Prefixes of lines are built once per series, and a line only when its value changed.

    `node` is the classic `Hostname` label; `everywhere` are labels of every series (`source="replay"`). `selection`
    says which families are shown and how: all of the catalogue without one.
    """

    def __init__(
        self, node: str, everywhere: Labels = (), selection: Selection | None = None, style: Style | None = None
    ) -> None:
        self._node = node
        self._style = style or Style()
        self._everywhere = everywhere
        self._selection = selection or everything()
        self._lines: dict[Series, tuple[float, bytes]] = {}
        self._owned = OwnerLabels()
        families = self._selection.families
        self._headers = {
            metric: tuple(_header(shown.name, shown.kind, shown.help, openmetrics=om) for om in (False, True))
            for metric, shown in families.items()
        }
        self._converters = {
            metric: converter(shown.factor) for metric, shown in families.items() if shown.factor != 1.0
        }

    def render(self, snapshot: Snapshot, process: Iterable[ClientMetric] = ()) -> Page:
        """Render a snapshot, and metrics of the process itself as prometheus_client collects them."""
        by_name: dict[str, list[bytes]] = {name: [] for name in self._headers}
        lines, converters, style = self._lines, self._converters, self._style
        some = style.parts != "f"
        self._own(snapshot.owned)
        if len(lines) > 2 * len(snapshot.samples) + 100:
            lines.clear()
        for sample in snapshot.samples:
            series, value = sample
            name = series.metric.name
            family = by_name.get(name)
            if family is None or (some and style.hides(series)):
                continue
            known = lines.get(series)
            if known is None or known[0] != value:
                prefix = known[1][: known[1].rindex(b" ")] if known else self._prefix(series)
                convert = converters.get(name)
                text = number(convert(value) if convert else value)
                known = lines[series] = (value, b"%b %b\n" % (prefix, text.encode()))
            family.append(known[1])
        families = [(text, om, by_name[name]) for name, (text, om) in self._headers.items() if by_name[name]]
        return Page([*families, *map(self._client, process)])

    def _own(self, owned: OwnerLabels) -> None:
        """Forget the lines of whatever has another owner now."""
        before, self._owned = self._owned, owned
        if before != owned:
            for series in [each for each in self._lines if before.labels(each) != owned.labels(each)]:
                del self._lines[series]

    def _prefix(self, series: Series) -> bytes:
        selection = self._selection
        labels = dict(labels_of(series, self._node, selection.schema, selection.label_rows))
        if not self._style.hostname:
            labels.pop(NODE_LABEL[selection.schema], None)
        if self._style.dashes and "modelName" in labels:
            labels["modelName"] = "-".join(labels["modelName"].split())
        labels.update(self._owned.labels(series))
        return f"{selection.families[series.metric.name].name}{series.part}{self._braces(labels)}".encode()

    def _braces(self, labels: Mapping[str, str]) -> str:
        every = {**labels, **dict(self._everywhere)}
        pairs = [f'{name}="{escape(value)}"' for name, value in every.items() if value or name in ALWAYS]
        return f"{{{','.join(pairs)}}}" if pairs else ""

    def _client(self, metric: ClientMetric) -> tuple[bytes, bytes, list[bytes]]:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        text, om = (_header(name, metric.type, metric.documentation, openmetrics=om) for om in (False, True))
        return text, om, [f"{s.name}{self._braces(s.labels)} {number(s.value)}\n".encode() for s in metric.samples]


def style(config: Config) -> Style:
    """What is written otherwise than by default."""
    return Style(not config.no_hostname, config.replace_blanks_in_model_name, config.devices.kind)


def everywhere(source: Source) -> Labels:
    """The labels of every series of a source: what does not show GPUs of this machine says so."""
    return () if source.live else (("source", source.name),)
