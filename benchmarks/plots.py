"""Renders plots as SVG. Equal numbers give equal bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import pygal
from pygal.etree import etree
from pygal.style import Style

Series = Mapping[str, Sequence[float | None]]
STYLE = Style(
    background="white",
    plot_background="white",
    font_family="sans-serif",
    value_font_size=11,
    label_font_size=12,
    major_label_font_size=12,
    legend_font_size=13,
    title_font_size=16,
)


def bars(title: str, unit: str, labels: Sequence[str], series: Series, form: str = "{:g}") -> str:
    """Return a bar chart with a bar for each label and series, and the values if they fit."""
    return _drawn(pygal.Bar, title, unit, labels, series, form.format, print_values=len(series) * len(labels) < 20)


def lines(title: str, unit: str, labels: Sequence[str], series: Series, form: str = "{:g}") -> str:
    """Return a line chart with a line for each series over the labels."""
    return _drawn(pygal.Line, title, unit, labels, series, form.format)


def _drawn(
    chart: Callable[..., pygal.Graph],
    title: str,
    unit: str,
    labels: Sequence[str],
    series: Series,
    formatter: Callable[[float], str],
    **settings: object,
) -> str:
    etree.to_etree()  # always the same XML writer, whether or not lxml is installed
    drawn = chart(
        js=(),
        disable_xml_declaration=True,
        style=STYLE,
        legend_at_bottom=True,
        width=900,
        height=420,
        include_x_axis=True,
        formatter=formatter,
        **settings,
    )
    drawn.uuid = "plot"  # instead of a random one
    drawn.title, drawn.y_title, drawn.x_labels = title, unit, labels
    for name, values in series.items():
        drawn.add(name, values)
    # Remove the creation date and scripts.
    return re.sub(r"<!--.*?-->|<script.*?</script>", "", drawn.render(), flags=re.DOTALL) + "\n"
