"""Fields of older dashboards and lists of fields: NVML answers them, by the names and in the units of dcgm-exporter."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.catalogue.metrics import METRICS, PROFILING
from gpu_exporter.model.metric import Buffered
from tests.conftest import Page, run
from tests.support.fakes.driver import AMPERE, FakeDriver

VIOLATIONS = ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTIL", "RELIABILITY")
KINDS = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "gauge",
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": "gauge",
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": "gauge",
    "DCGM_FI_DEV_COUNT": "gauge",
    "DCGM_FI_DEV_MINOR_NUMBER": "gauge",
    **{f"DCGM_FI_DEV_{name}_VIOLATION": "counter" for name in VIOLATIONS},
}
# Those of the video engines are tested with the driver's samples, in `test_buffered_samples.py`.
SUBSTITUTES = {row.name for row in METRICS if row.instead_of in PROFILING and not isinstance(row.nvml, Buffered)}


def once(driver: FakeDriver, *arguments: str) -> Page:
    """Return the page of one collection. Its parser ends the names of counters in `_total`."""
    return Page(run("once", *arguments, env=driver.environment).stdout)


def test_values_on_hopper(tmp_path: Path) -> None:
    """Traffic in MB/s and KB/s from the same counters as the profiling metrics; violations in nanoseconds."""
    driver = FakeDriver(tmp_path / "driver", 2)
    for number, field in enumerate(range(74, 80)):
        driver.set(f"FieldValues.{field}", 10**number + 7)
    page = once(driver, "--metrics", "full")

    for gpu in ("0", "1"):
        assert page.value("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", gpu=gpu) == 2 * 1800 * 1.048576
        assert page.value("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", gpu=gpu) == 14 * 1048.576
        assert page.value("DCGM_FI_DEV_PCIE_RX_THROUGHPUT", gpu=gpu) == 12.5 * 1048.576
        assert page.value("DCGM_FI_DEV_COUNT", gpu=gpu) == 2
        assert page.value("DCGM_FI_DEV_MINOR_NUMBER", gpu=gpu) == int(gpu)
        found = [page.value(f"DCGM_FI_DEV_{name}_VIOLATION_total", gpu=gpu) for name in VIOLATIONS]
        assert found == [10**number + 7 for number in range(6)]
    types = dict(line.split()[2:] for line in page.text.splitlines() if line.startswith("# TYPE"))
    assert {name: types[name] for name in KINDS} == KINDS
    assert page.values("DCGM_FI_DEV_GPU_MAX_OP_TEMP") == [87, 87]
    # An H200 does not answer this: no sample, but a reason.
    errors = "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"
    assert errors not in {name.removesuffix("_total") for name, _, _ in page.samples}
    assert page.values("gpu_metric_supported", metric=errors, reason="not_supported") == [0, 0]
    assert not [labels for _, labels, _ in page.samples if labels.get("metric") in {*KINDS, *SUBSTITUTES}]
    assert SUBSTITUTES.isdisjoint(name for name, _, _ in page.samples)


def test_values_before_hopper(tmp_path: Path) -> None:
    """Errors by lane and the operating temperature. Traffic needs GPM, which these GPUs do not have; in its place, the
    default metrics have samples of PCIe traffic and the counters of the links."""
    driver = FakeDriver(tmp_path / "driver", profile=AMPERE)
    driver.set("FieldValues.45", 12)
    page = once(driver, "--source", "nvml", "--metrics", "full")

    assert page.value("DCGM_FI_DEV_GPU_MAX_OP_TEMP") == 85
    assert page.value("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL_total") == 12
    for name in ("NVLINK_BANDWIDTH_TOTAL", "PCIE_TX_THROUGHPUT", "PCIE_RX_THROUGHPUT"):
        assert page.values(f"DCGM_FI_DEV_{name}") == []
        assert page.values("gpu_metric_supported", metric=f"DCGM_FI_DEV_{name}", reason="needs_dcgm") == [0]
    page = once(driver, "--source", "nvml")
    assert [page.value(name) for name in sorted(SUBSTITUTES)] == [12 * 3000 * 1024, 12 * 4000 * 1024, 2.5e6, 1.5e6]


def test_no_substitutes_on_a_vgpu(tmp_path: Path) -> None:
    """Whose driver refuses to measure PCIe traffic, and which has no NVLink: there is a reason for each."""
    driver = FakeDriver(tmp_path / "driver", profile=AMPERE)
    driver.set("PcieThroughput", "!3")
    driver.set("FieldValues.91", "u:0")
    page = once(driver, "--source", "nvml")

    assert SUBSTITUTES.isdisjoint(name for name, _, _ in page.samples)
    for name in SUBSTITUTES:
        assert page.values("gpu_metric_supported", metric=name, reason="not_supported") == [0]


def test_names_since_4_9(tmp_path: Path) -> None:
    """In base units."""
    page = once(FakeDriver(tmp_path / "driver", profile=AMPERE), "--metrics", "full", "--schema", "si")
    assert page.value("DCGM_FI_DEV_GPU_MAX_OP_TEMP_CELSIUS") == 85
    assert page.value("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL_total") == 0
    assert page.value("DCGM_FI_SYSTEM_GPU_QUANTITY") == 1
    assert page.value("DCGM_FI_DEV_GPU_MINOR_NUMBER") == 0

    page = once(FakeDriver(tmp_path / "hopper"), "--schema", "si")
    assert page.value("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND") == 2 * 1800 * 2**20


def test_only_nvlink_traffic_is_in_the_default_set(driver: FakeDriver, tmp_path: Path) -> None:
    """It stands in NVIDIA's default list. A file of fields selects the others, too."""
    page = once(driver)
    assert {name for name in KINDS if page.values(name)} == {"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"}

    fields = tmp_path / "fields.csv"
    fields.write_text("".join(f"{name}, {kind}, x\n" for name, kind in KINDS.items()))
    page = once(driver, "--collectors", str(fields))
    classic = {name for name, _, _ in page.samples if name.startswith("DCGM_")}
    assert classic == {f"{name}_total" if kind == "counter" else name for name, kind in KINDS.items()}


@pytest.mark.parametrize("source", [("replay", "--recording", "h200_x2_ddp"), ("simulated",)], ids=lambda each: each[0])
def test_other_sources_have_the_traffic(source: tuple[str, ...]) -> None:
    """Recorded and simulated GPUs have both directions, so they have their sum."""
    page = Page(run("once", "--metrics", "full", "--source", *source).stdout)

    assert page.values("DCGM_FI_PROF_NVLINK_TX_BYTES")
    for gpu in {labels["gpu"] for name, labels, _ in page.samples if name == "DCGM_FI_PROF_NVLINK_TX_BYTES"}:
        tx, rx = (page.value(f"DCGM_FI_PROF_NVLINK_{way}_BYTES", gpu=gpu) for way in ("TX", "RX"))
        assert page.value("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", gpu=gpu) == pytest.approx((tx + rx) / 1e6)
        assert page.value("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", gpu=gpu) > 0
