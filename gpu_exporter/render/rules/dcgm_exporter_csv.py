"""Signals -> the file of fields that a dcgm-exporter must export."""

from __future__ import annotations

import csv
from io import StringIO

from gpu_exporter.catalogue import signals
from gpu_exporter.render import banner
from gpu_exporter.render.coverage import fields

# Of our gauges, not of theirs.
WINDOW = ", mean over the gauge window"
HEAD = """\
# What dcgm-exporter {versions} must export for all rules, alerts and dashboards of gpu-exporter that can work with it:
#   dcgm-exporter --collectors {file}
# It replaces the list that dcgm-exporter comes with; add what else you use. An older version does not start with a
# field that it does not know ("could not find DCGM field"): delete its line, and what needs it stays silent.
# Rates (PCIe, NVLink) are gauges, whatever their names say: never rate() them.
# DCGM FIELD, Prometheus metric type, help message
"""


def classic() -> str:
    """alerts/dcgm-exporter.csv: names up to 4.8."""
    return _file("classic", "up to 4.8", "dcgm-exporter.csv")


def modern() -> str:
    """alerts/dcgm-exporter-4.9.csv: names since 4.9."""
    return _file("modern", "from 4.9 on", "dcgm-exporter-4.9.csv")


def _file(which: str, versions: str, file: str) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((each.name, each.kind.value, each.help.replace(WINDOW, "")) for each in fields(which))
    return banner.comment(signals) + HEAD.format(versions=versions, file=file) + text.getvalue()
