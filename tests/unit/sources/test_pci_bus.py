"""Which GPUs on the PCI bus the driver should list, and what the ports above them allow, by files of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.model.pci import PciGpu
from gpu_exporter.sources.nvml.driver import gpus_on_bus, pcie_port
from tests.support.fakes.fabric import FakeFabric

ADDRESS = "0000:3b:00.0"
NVIDIA, CONTROLLER_3D = "0x10de", "0x030200"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeFabric:
    """A machine with one GPU that answers, in a container that may have all GPUs."""
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    fabric = FakeFabric(tmp_path)
    fabric.gpu("pci0000:00/0000:1b:00.0")
    return fabric


@pytest.mark.parametrize(
    ("vendor", "kind", "driver", "counted"),
    [
        (NVIDIA, CONTROLLER_3D, "nvidia", True),
        (NVIDIA, CONTROLLER_3D, "", True),
        (NVIDIA, "0x030000", "nouveau", True),
        (NVIDIA, CONTROLLER_3D, "vfio-pci", False),
        (NVIDIA, CONTROLLER_3D, "nvgrace_gpu_vfio_pci", False),
        (NVIDIA, CONTROLLER_3D, "pci-stub", False),
        (NVIDIA, CONTROLLER_3D, "pciback", False),
        (NVIDIA, "0x068000", "nvidia", False),  # an NVSwitch
        (NVIDIA, "0x040300", "snd_hda_intel", False),
        ("0x1a03", "0x030000", "ast", False),  # the graphics of a BMC
    ],
)
def test_functions(bus: FakeFabric, vendor: str, kind: str, driver: str, counted: bool) -> None:
    """By vendor, class and kernel driver of the second PCI function."""
    bus.function(f"pci0000:00/{ADDRESS}", vendor, kind, driver)
    second = [PciGpu("00000000:3B:00.0", driver)] if counted else []
    assert list(gpus_on_bus(bus.sys)) == [PciGpu("00000000:1B:00.0", "nvidia"), *second]


def test_virtual_functions(bus: FakeFabric) -> None:
    """vGPUs of a hypervisor are no GPUs of their own."""
    place = bus.function(f"pci0000:00/{ADDRESS}", NVIDIA, CONTROLLER_3D, "")
    (bus.sys / place / "physfn").symlink_to(bus.sys / "bus/pci/devices/0000:1b:00.0")
    assert [gpu.address for gpu in gpus_on_bus(bus.sys)] == ["00000000:1B:00.0"]


def test_unknown(bus: FakeFabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that has only some GPUs, and a machine without NVIDIA's kernel driver."""
    assert gpus_on_bus(bus.root) == ()
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0")
    assert gpus_on_bus(bus.sys) == ()


PORT = "pci0000:00/0000:00:01.0"
PHYSICAL, VIRTUAL = "flags\t\t: fpu sse\n", "flags\t\t: fpu hypervisor sse\n"


@pytest.mark.parametrize(
    ("vendor", "speed", "width", "cpu", "found"),
    [
        ("0x8086", "16.0 GT/s PCIe", "16", PHYSICAL, (4, 16)),
        ("0x1022", "32.0 GT/s PCIe", "8", PHYSICAL, (5, 8)),
        ("0x10b5", "8.0 GT/s PCIe", "4", "", (3, 4)),
        ("0x8086", "2.5 GT/s", "1", PHYSICAL, (1, 1)),
        ("0x8086", "16.0 GT/s PCIe", "16", VIRTUAL, None),
        ("0x1b36", "16.0 GT/s PCIe", "32", "", None),
        ("0x8086", "Unknown", "255", PHYSICAL, None),
        ("0x8086", "", "", PHYSICAL, None),
    ],
)
def test_what_the_port_allows(
    bus: FakeFabric, vendor: str, speed: str, width: str, cpu: str, found: tuple[float, float] | None
) -> None:
    """Generation and lanes of the port above the GPU; nothing in a virtual machine, whose ports are not the host's."""
    bus.function(f"{PORT}/{ADDRESS}", NVIDIA, CONTROLLER_3D, "nvidia")
    port = bus.sys / "devices" / PORT
    for name, text in (("vendor", vendor), ("max_link_speed", speed), ("max_link_width", width)):
        (port / name).write_text(f"{text}\n")
    (bus.root / "cpuinfo").write_text(cpu)
    assert pcie_port(bus.sys, bus.root, "00000000:3B:00.0") == found


def test_a_gpu_without_a_port(bus: FakeFabric) -> None:
    """On the root bus, as in many cloud instances, and an address that does not exist."""
    bus.function(f"pci0000:00/{ADDRESS}", NVIDIA, CONTROLLER_3D, "nvidia")
    assert [pcie_port(bus.sys, bus.root, address) for address in ("00000000:3B:00.0", "00000000:99:00.0", "")] == [
        None
    ] * 3
