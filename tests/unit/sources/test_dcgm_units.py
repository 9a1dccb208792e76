"""The unit of every field that is read from DCGM, row by row, and its conversion.

From DCGM 4.6.0's source: `DcgmCacheManager.cpp` for fields that it computes, and `dcgm_fields.cpp` for fields that it
passes on from NVML, whose unit is that of nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import METRICS
from gpu_exporter.model.gpu import Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.sources.dcgm.plan import FieldQuery, is_profiling
from gpu_exporter.sources.dcgm.values import gpu
from tests.support.table import table_test

FIX = (
    "fix: look the field up in DCGM's source, add it to FIELDS in tests/unit/sources/test_dcgm_units.py,"
    " and set `dcgm_scale` in gpu_exporter/catalogue/metrics.py"
)

# DCGM's unit of each field, and its source.
FIELDS: tuple[tuple[Iterable[int], str, str], ...] = (
    ((4,), "gpus", "nvmlDeviceGetCount"),
    ((55,), "number", "nvmlDeviceGetMinorNumber"),
    ((65,), "status", "nvmlDeviceGetComputeMode"),
    ((66,), "bool", "nvmlDeviceGetPersistenceMode"),
    ((67,), "bool", "nvmlDeviceGetMigMode, the current one"),
    ((84,), "bool", "1 if nvmlDeviceValidateInforom succeeds, 0 if NVML_ERROR_CORRUPTED_INFOROM"),
    ((90, 92, 93), "MiB", "nvmlDeviceGetBAR1MemoryInfo / 1024 / 1024"),
    ((100, 101, 102, 113, 114, 115), "MHz", "nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo"),
    ((112,), "bitmask", "nvmlDeviceGetCurrentClocksEventReasons"),
    ((140,), "celsius", "NVML field 82; 0 where that field fails"),
    ((150, 152, 153, 158, 159), "celsius", "temperature, margin, thresholds as NVML gives them"),
    ((155, 160, 161, 162, 163, 164), "watts", "NVML's milliwatts / 1000.0"),
    ((157,), "watts", "NVML field 186 / 1000.0; 0 where that field fails"),
    ((156,), "millijoules", "NVML field 83, unit of the table: millijoules"),
    ((170,), "status", "1 not started, 2 in progress, 3 success, 4 failure; 0, 5, 6 mean none"),
    ((171,), "code", "the NVML code of the fabric"),
    ((190,), "state", "nvmlDeviceGetPerformanceState"),
    ((191,), "percent", "nvmlDeviceGetFanSpeed"),
    ((200, 201), "KB/s", "unit of the table; DCGM 3.3 to 4.6 never has a value"),
    ((202,), "replays", "nvmlDeviceGetPcieReplayCounter"),
    ((203, 204, 206, 207), "percent", "nvmlDeviceGetUtilizationRates, encoder, decoder: whole percent"),
    ((230,), "xid", "the last Xid"),
    ((235, 237), "generation", "nvmlDeviceGetMaxPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkGeneration"),
    ((236, 238), "lanes", "nvmlDeviceGetMaxPcieLinkWidth, nvmlDeviceGetCurrPcieLinkWidth"),
    ((*range(240, 246),), "nanoseconds", "NVML fields 74 to 79 (PERF_POLICY_*)"),
    ((250, 251, 252, 253), "MiB", "nvmlDeviceGetMemoryInfo_v2 / 1024 / 1024"),
    ((254,), "ratio", "used / (total - reserved)"),
    ((300, 301), "bool", "ECC mode, current and pending"),
    ((*range(310, 346),), "errors", "NVML's ECC counters"),
    ((346,), "bool", "bThresholdExceeded of nvmlDeviceGetSramEccErrorStatus"),
    ((*range(385, 390),), "banks", "nvmlDeviceGetRowRemapperHistogram"),
    ((390, 391), "pages", "the length of nvmlDeviceGetRetiredPages' list, NVML field 30"),
    ((392,), "bool", "NVML field 31"),
    ((393, 394), "rows", "NVML fields 143 and 142"),
    ((395, 396), "bool", "NVML fields 145 and 144"),
    ((409, 419, 429, 439), "errors", "NVML's NVLink totals over all links"),
    ((449,), "MB/s", "sent and received over all links, of the last interval"),
    ((780, 781, 861, 862), "counts", "NSCQ's or NVSDM's counter as it is"),
    ((856, 857), "sxid", "the SXid"),
    ((858,), "celsius", "NSCQ, NVSDM"),
    ((864,), "bool", "NSCQ, NVSDM"),
    ((870,), "state", "-1 unknown, 0 off, 1 safe, 2 active, 3 error (dcgm_fields.h)"),
    ((*range(1001, 1009), *range(1013, 1035)), "ratio", "DcgmGpmManager: percent / 100.0"),
    ((1009, 1010, 1011, 1012), "bytes per second", "GPM's MiB/s * 1024 * 1024, of the last interval"),
    ((1100,), "ratio", "busy / all jiffies of the last interval (DcgmModuleSysmon)"),
    ((1110,), "celsius", "DcgmModuleSysmon"),
    ((1130,), "watts", "DcgmModuleSysmon"),
    ((1420, 1421, 1422, 1423, 1424), "nanoseconds", "NVML fields 74, 76, 269, 270, 271"),
    ((1501,), "errors", "NVML field 173"),
    ((1508,), "bool", "NVML field 165: 0 inactive, 1 active"),
    ((1523,), "action", "NVML field 230"),
    ((1525, 1527, 1528), "errors", "NVML's counters of one link"),
    ((1532, 1533), "bytes per second", "GPM's MiB/s of one link * 1024 * 1024"),
)
UNITS: Mapping[int, str] = {number: unit for numbers, unit, _ in FIELDS for number in numbers}
# DCGM's unit, gpu-exporter's, and the factor between; other units must be equal.
FACTORS = {
    ("millijoules", "joules"): 1e-3,
    ("nanoseconds", "seconds"): 1e-9,
}
READ = [row for row in METRICS if row.dcgm is not None]


@pytest.mark.drift
@table_test("row", READ, lambda row: row.key)
def test_scales(row: Metric) -> None:
    """DCGM's unit, times the scale of the row, is the unit of the row."""
    assert row.dcgm is not None, FIX
    assert row.dcgm in UNITS, FIX
    unit = UNITS[row.dcgm]
    if row.bit is not None:
        assert (unit, row.unit, row.dcgm_scale) == ("bitmask", "bool", 1), FIX
    else:
        assert row.dcgm_scale == FACTORS.get((unit, row.unit), 1), FIX
        assert unit == row.unit or (unit, row.unit) in FACTORS, FIX


@pytest.mark.drift
def test_every_listed_field_is_read() -> None:
    """ECC fields are listed as a range."""
    assert set(UNITS) == {row.dcgm for row in READ}, (
        "fix: add the field to FIELDS in tests/unit/sources/test_dcgm_units.py, or delete it there"
    )


@table_test("row", [row for row in READ if row.classic], lambda row: row.key)
def test_classic_rows_are_in_dcgms_own_unit(row: Metric) -> None:
    """As in dcgm-exporter."""
    assert row.dcgm_scale == 1


@table_test("row", READ, lambda row: row.key)
def test_exactly_profiling_rows_have_an_integral(row: Metric) -> None:
    """They have field groups of their own."""
    assert row.dcgm is not None
    assert is_profiling(row.dcgm) == (row in {each.integral_of for each in METRICS})


@pytest.mark.parametrize(
    ("row", "raw", "value"),
    [
        (m.ENERGY_JOULES, 5_000, 5),
        (m.ENERGY, 5_000, 5_000),
        (m.CLOCK_EVENT_SECONDS[0], 2_500_000_000, 2.5),
        (m.CLOCK_EVENT_ACTIVE[2], 0x4, 1),
        (m.CLOCK_EVENT_ACTIVE[3], 0x4, 0),
        (m.FB_USED_RATIO, 0.5, 0.5),
        (m.POWER, 0.0, 0.0),
        (m.POWER_INSTANT, 0.0, None),
        (m.MEMORY_TEMP, 0, None),
        (m.FABRIC, 5, None),
        (m.LINK_UP, 1, 1),
    ],
    ids=lambda value: getattr(value, "key", str(value)),
)
def test_values(row: Metric, raw: float, value: float | None) -> None:
    """From DCGM's value to the exposed one."""
    assert row.dcgm is not None
    found = FieldQuery(Series(row), gpu(0), row.dcgm, row.pace).value(raw)
    assert found == (value if value is None else pytest.approx(value))
