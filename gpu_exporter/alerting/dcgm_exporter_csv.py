"""Render the files of fields that dcgm-exporter must export."""

from __future__ import annotations

import csv
from io import StringIO

from gpu_exporter.alerting import banner
from gpu_exporter.alerting.coverage import Generation, fields
from gpu_exporter.catalogue import signals

# Describes the gauges of gpu-exporter, not those of dcgm-exporter.
WINDOW = ", mean over the gauge window"
HEAD = """\
# The fields of dcgm-exporter {versions} that the rules, alerts and dashboards of gpu-exporter need:
#   dcgm-exporter --collectors {file}
# This file replaces the default fields of dcgm-exporter; add any others that you use. An older version does not start
# with a field that it does not know ("could not find DCGM field"): delete the line. Alerts that need it never fire.
# The rates of PCIe and NVLink are gauges, despite their names: never apply rate() to them.
# DCGM FIELD, Prometheus metric type, help message
"""


def classic() -> str:
    """Return alerts/dcgm-exporter.csv: names up to 4.8."""
    return _file(Generation.DCGM_EXPORTER_4_8, "up to 4.8", "dcgm-exporter.csv")


def modern() -> str:
    """Return alerts/dcgm-exporter-4.9.csv: names from 4.9 on."""
    return _file(Generation.DCGM_EXPORTER_4_9, "from 4.9 on", "dcgm-exporter-4.9.csv")


def _file(which: Generation, versions: str, file: str) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((each.name, each.kind.value, each.help.replace(WINDOW, "")) for each in fields(which))
    return banner.comment(signals) + HEAD.format(versions=versions, file=file) + text.getvalue()
