"""Tables for a terminal: they fit its width and show units."""

from __future__ import annotations

import pytest

from gpu_exporter.app.library import GpuReading
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.cli import tables
from gpu_exporter.model.gpu import Gpu, Sample, Series
from tests.conftest import run

GPU = Gpu(0, "GPU-1", model="NVIDIA H200")
READING = GpuReading(
    0.0,
    GPU,
    True,
    "",
    (
        Sample(Series(m.GPU_TEMP, GPU), 40.0),
        Sample(Series(m.POWER, GPU), 79.715),
        Sample(Series(m.SM_ACTIVE, GPU), 0.96),
        Sample(Series(m.ENERGY, GPU), 1_234_567.0),
    ),
)


def test_values_have_units_and_are_aligned() -> None:
    head, *rows = tables.reading_table([READING], 100)
    assert head == "GPU 0  NVIDIA H200  GPU-1  up"
    assert [row.split()[1:] for row in rows] == [["40", "°C"], ["79.72", "W"], ["0.96"], ["1,234,567", "mJ"]]
    assert len({len(row.split(" °C")[0].split(" W")[0].split(" mJ")[0]) for row in rows}) == 1


def test_a_gpu_that_is_down_has_its_reason() -> None:
    (line,) = tables.reading_table([GpuReading(0.0, GPU, False, "lost", ())], 80)
    assert line.endswith("down: lost")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_list_of_metrics_fits(width: int) -> None:
    lines = list(tables.metric_list(METRICS, width))
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert all(metric.help in text for metric in METRICS if width == 200)


def test_the_list_of_metrics_is_aligned() -> None:
    """A name that is longer than its column stands above its other cells, unbroken."""
    head, *rows = tables.metric_list((m.GPU_TEMP, m.NVLINK_RECOVERY, m.EXP_P2P), 62)
    assert [line for line in (head, *rows) if not line.startswith("    ") or " errors " in line] == [
        "METRIC                          TYPE     UNIT     EXPOSED BY",
        "DCGM_FI_DEV_GPU_TEMP            gauge    celsius  default",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "                                counter  errors   default",
        "DCGM_EXP_P2P_STATUS             gauge    status   --collectors",
    ]


def test_a_pipe_gets_full_names() -> None:
    """One line per metric, whatever the width that the environment claims."""
    ran = run("metrics", env={"COLUMNS": "40"})
    head, *rows = ran.stdout.splitlines()

    assert head.split() == ["METRIC", "TYPE", "UNIT", "SET", "READ", "DCGM", "NVML", "HELP"]
    assert [row.split("  ")[0] for row in rows] == [metric.key for metric in METRICS]
    assert all(row.endswith(metric.help) for row, metric in zip(rows, METRICS, strict=True))


def test_metrics_are_filtered_by_name_and_help() -> None:
    assert m.GPU_TEMP in tables.matching(METRICS, "gpu_temp")
    assert m.GPU_TEMP in tables.matching(METRICS, m.GPU_TEMP.help.upper())
    assert tables.matching(METRICS, "no such metric") == []
