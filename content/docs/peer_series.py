"""Render docs/peer-series.md: the series of other exporters, and what replaces them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.alerting import banner
from gpu_exporter.catalogue import peer_series
from gpu_exporter.catalogue.peer_series import PEERS, WITHOUT, PeerExporter, PeerSeries
from gpu_exporter.model.metric import EntityKind, MetricSet
from gpu_exporter.reports.markdown import table

HEAD = """# Series of other exporters

What replaces each series of nvidia_gpu_exporter 1.14.0 and nvitop-exporter 1.7.2, as their sources define them.
[Migration](migration.md#coming-from-nvidia_gpu_exporter-or-nvitop-exporter) describes how to switch, and
`gpu-exporter rewrite` applies this table to a dashboard or a file of rules.

- **needs**: the setting with which gpu-exporter exposes the metric; none if it is empty.
- **times**: multiply gpu-exporter's value by this to get the value of the other exporter.
"""
NEEDS = {MetricSet.FULL: "`--metrics full`"}


def page() -> str:
    """Return docs/peer-series.md."""
    series = peer_series.load().values()
    sections = (_section(peer, [each for each in series if each.peer is peer]) for peer in PEERS)
    return banner.markdown(peer_series.PACKAGED, peer_series) + HEAD + "".join(sections)


def _section(peer: PeerExporter, series: Sequence[PeerSeries]) -> str:
    head = ("series", "unit", "gpu-exporter", "unit", "times", "needs", "note")
    replaced = table(head, (_row(each) for each in series if each.metric))
    rest = table(("series", "use instead"), ((f"`{each.name}`", each.reason) for each in series if not each.metric))
    labels = table(("label", "gpu-exporter"), _labels(peer, series))
    return f"\n## {peer.name}\n\n{labels}\n{replaced}\n### {peer.name}: without a counterpart\n\n{rest}"


def _labels(peer: PeerExporter, series: Sequence[PeerSeries]) -> Iterator[tuple[str, str]]:
    """Yield each label with its name here."""
    for label in dict.fromkeys((*peer.identity, *(label for each in series if each.metric for label in each.labels))):
        new = f"`{peer.labels.get(label, label)}`"
        if label in peer.prefixes:
            new += f", with `{peer.prefixes[label]}` in front of the same value"
        yield f"`{label}`", "none" if label in WITHOUT else new


def _row(series: PeerSeries) -> tuple[str, ...]:
    metric = series.metric
    assert metric is not None
    name = metric.key if not series.of_instance else f'{metric.name}{{GPU_I_ID!=""}}'
    factor = series.factor
    times = "" if factor == 1 else f"{factor:.0f}" if factor > 1 else f"1 / {1 / factor:.0f}"
    needs = (
        "`--processes`"
        if metric.entity is EntityKind.PROCESS or metric.name == "gpu_processes"
        else NEEDS.get(metric.set, "")
    )
    return (f"`{series.name}`", series.unit, f"`{name}`", metric.unit, times, needs, series.reason)
