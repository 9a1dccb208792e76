"""What `doctor` says about network cards, in one line."""

from pathlib import Path

from gpu_exporter.doctor.nics import checks
from gpu_exporter.model.finding import Finding, FindingLevel
from tests.support.fakes.fabric import FakeFabric, infiniband_node


def said(fabric: FakeFabric) -> Finding:
    (finding,) = checks(fabric.root / "proc", fabric.sys)
    return finding


def test_a_node_with_infiniband(tmp_path: Path) -> None:
    """Ports with their rate, distances, GPUDirect, and the ports that are not active."""
    fabric = infiniband_node(tmp_path)
    fabric.put("module/nvidia_peermem/initstate", "live\n")
    fabric.state(fabric.port("mlx5_5"), up=False)
    finding = said(fabric)
    assert (finding.level, finding.what) == (
        FindingLevel.OK,
        "7 of 8 ports active (8 x mlx5_core InfiniBand 400 Gb/s); nearest port of the GPUs: PIX for 8; "
        "GPUDirect: nvidia_peermem; not active: mlx5_5:1",
    )


def test_without_gpudirect(tmp_path: Path) -> None:
    """It works, but not as fast as it could."""
    finding = said(infiniband_node(tmp_path, 1))
    assert (finding.level, "GPUDirect: not available" in finding.what) == (FindingLevel.NOTE, True)
    assert "nvidia_peermem" in finding.cure


def test_no_network_cards(tmp_path: Path) -> None:
    fabric = FakeFabric(tmp_path)
    assert said(fabric) == Finding(
        "network", FindingLevel.OK, f"no network cards for RDMA in {fabric.sys}/class/infiniband"
    )
