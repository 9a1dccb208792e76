"""The table of series of other exporters, against the catalogue and the recorded pages."""

from __future__ import annotations

import re

import pytest

from gpu_exporter.catalogue.peer_series import load
from tests import ROOT

SERIES = load()
# What the ending of a name says of the unit.
UNITS = {
    "_ratio": "ratio",
    "_bytes": "bytes",
    "_watts": "watts",
    "_clock_hz": "Hz",
    "_joules_total": "joules",
    "_bytes_per_second": "bytes per second",
    "_Percentage": "percent",
    "_MiB": "MiB",
    "_MHz": "MHz",
    "_W": "watts",
    "_C": "celsius",
    "_MiBps": "MiB per second",
    "_info": "info",
}


@pytest.mark.parametrize("page", ["nvidia_gpu_exporter", "nvitop_exporter"])
def test_the_table_has_every_series_of_the_recorded_page(page: str) -> None:
    """By its name."""
    text = (ROOT / "tests" / "data" / f"{page}.prom").read_text()
    names = set(re.findall(r"^\w+", text, re.MULTILINE))

    assert len(names) >= 30
    assert names <= SERIES.keys()


def test_a_unit_is_that_of_the_name() -> None:
    """For every series whose name ends in a unit; the load average, whose name says percent, is a number."""
    wrong = [
        each.name
        for each in SERIES.values()
        for ending, unit in UNITS.items()
        if each.name.endswith(ending)
        and each.unit != unit
        and "load_average" not in each.name
        and "edpp" not in each.name
    ]

    assert wrong == []


def test_every_counterpart_can_be_converted() -> None:
    """To the unit of the series; half of nvidia_gpu_exporter's have another."""
    factors = {each.name: each.factor for each in SERIES.values() if each.metric}

    assert factors["nvidia_smi_utilization_gpu_ratio"] == 0.01
    assert factors["nvidia_smi_memory_used_bytes"] == 2**20
    assert factors["nvidia_smi_clocks_current_sm_clock_hz"] == 1e6
    assert factors["gpu_memory_used_MiB"] == 1
    assert factors["gpu_memory_percent_Percentage"] == 100
    assert factors["gpu_pcie_rx_throughput_MiBps"] == 1 / 2**20
    assert factors["process_gpu_memory_MiB"] == 1 / 2**20
