"""The parts of the health of a GPU that a page or recording may lack, and the failure modes that judge each."""

from __future__ import annotations

from collections.abc import Mapping

NVLINKS, XIDS = "NVLinks", "XIDs"
# A part is not seen where the signals of all of its modes are missing. Series of XIDs show by themselves that they are.
PARTS: Mapping[str, tuple[str, ...]] = {
    "uncorrectable ECC errors": ("GpuEccUncorrectable",),
    "row remapping": ("GpuRowRemapFailed", "GpuRowRemapPending"),
    NVLINKS: ("GpuNvlinkDown", "GpuNvlinkErrors"),
    "PCIe errors": ("GpuPcieReplayStorm",),
    "throttling by heat": ("GpuThermalThrottling",),
    "power brake": ("GpuPowerBrake",),
}
