"""The NVLink fabric of a GPU, its place in the rack, its compute mode, and memory of confidential computing."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

from gpu_exporter.catalogue import metrics as m
from tests.conftest import Page, run
from tests.support.fakes.driver import FakeDriver

COMPLETED, IN_PROGRESS = 3, 2
NAME = m.PLACEMENT.name


def labels(page: Page, gpu: str) -> dict[str, str]:
    """Return the labels of the only series of a GPU, without those of every series."""
    (found,) = (labels for name, labels, _ in page.samples if name == NAME and labels["gpu"] == gpu)
    return {label: text for label, text in found.items() if label not in ("gpu", "UUID")}


def test_placement(tmp_path: Path) -> None:
    """Of a GPU that has joined a fabric, of one in a chassis, and of one that is in neither: there is a reason."""
    driver = FakeDriver(tmp_path / "driver", 4)
    with driver.batch():
        for gpu in (0, 1):
            driver.set("GpuFabricInfoV.state", COMPLETED, gpu)
            driver.set("GpuFabricInfoV.clique", 32766, gpu)
        driver.set("GpuFabricInfoV.cluster", 0x04030201, 0)
        driver.set("PlatformInfo", "1822624000123,24,11,1,3", 0)
        driver.set("PlatformInfo", "1822624000123,24,11,1,4", 2)
        driver.set("GpuFabricInfoV.state", IN_PROGRESS, 3)
    page = Page(run("once", env=driver.environment).stdout)
    place = {"chassis_serial": "1822624000123", "slot": "24", "tray": "11", "host": "1"}

    assert labels(page, "0") == {
        "cluster_uuid": "01020304-0000-0000-0000-000000000000",
        "clique_id": "32766",
        **place,
        "module": "3",
    }
    assert labels(page, "1") == {"clique_id": "32766"}
    # Of the cluster and the clique, so that ranks can be compared; a fabric of a single node has no cluster.
    code = crc32(bytes((1, 2, 3, 4, *[0] * 12)) + (32766).to_bytes(4, "big"))
    assert page.values(m.FABRIC_CODE.name) == page.values(m.FABRIC_CODE.name, gpu="0") == [code]
    assert labels(page, "2") == {**place, "module": "4"}
    assert not page.values(NAME, gpu="3")
    assert page.values(m.SUPPORTED.name, gpu="3", metric=NAME, reason="not_supported") == [0]


def test_modes(tmp_path: Path) -> None:
    """Of a GPU that has them, and of one that does not: there is a reason."""
    driver = FakeDriver(tmp_path / "driver", 2)
    with driver.batch():
        driver.set("ComputeMode", 3, 0)
        driver.set("ConfComputeMemSizeInfo.protected", 1000, 0)
        driver.set("ConfComputeMemSizeInfo.unprotected", 24, 0)
    page = Page(run("once", "--metrics", "full", env=driver.environment).stdout)

    for row, value in ((m.COMPUTE_MODE, 3), (m.CC_PROTECTED, 1_024_000), (m.CC_SHARED, 24_576)):
        assert page.values(row.name) == [value]
        assert page.values(m.SUPPORTED.name, gpu="1", metric=row.name, reason="not_supported") == [0]
