"""Network cards of the machine on /metrics, beside GPUs of the fake driver."""

from pathlib import Path

from tests.conftest import Serve
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.fakes.fabric import MLX5_IB, FakeFabric


def test_network_cards_of_gpus(serve: Serve, tmp_path: Path) -> None:
    """They are on by default; `--no-nics` turns them off."""
    driver = FakeDriver(tmp_path / "driver", gpus=1)
    address = str(identity(0)["PciBusId"])[4:].lower()
    fabric = FakeFabric(tmp_path / "host")
    fabric.gpu(f"pci0000:00/0000:00:01.0/{address}")
    fabric.nic("mlx5_0", "pci0000:00/0000:00:02.0/0000:f0:00.0", MLX5_IB)
    sysfs = ("--metrics", "full", "--interval", "200ms", "--sysfs", str(fabric.sys))

    exporter = serve(*sysfs, env=driver.environment)
    page = exporter.until(lambda page: bool(page.values("gpu_nic_distance_level")), timeout=60)
    assert page.value("gpu_nic_distance_level") == 3
    assert page.value("gpu_nic_port_tx_bytes_total", device="mlx5_0", port="1") == 4000
    assert page.value("gpu_nic_port_errors_total", kind="link") == 6

    exporter = serve(*sysfs, "--no-nics", env=driver.environment)
    page = exporter.until(lambda page: page.values("gpu_up") == [1], timeout=60)
    assert not [name for name, _, _ in page.samples if name.startswith("gpu_nic_")]
