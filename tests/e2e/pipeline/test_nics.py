"""Network cards of the machine and NCCL's bandwidths on /metrics, beside GPUs of the fake driver."""

import os
import time
from pathlib import Path

import pytest

from tests.conftest import Serve, run
from tests.support.fakes.driver import FakeDriver, identity
from tests.support.fakes.fabric import MLX5_IB, FakeFabric
from tests.support.fakes.nccl_inspector import coll, path


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


def test_files_of_nccl_inspector(serve: Serve, tmp_path: Path) -> None:
    """A job's file becomes series of its GPU."""
    driver = FakeDriver(tmp_path / "driver", gpus=2)
    file = path(tmp_path, uuid := str(identity(1)["UUID"]))
    file.write_text(coll(40, n_nodes="4", message_size="32-33MB"))
    os.utime(file, (time.time() - 2,) * 2)
    exporter = serve("--nccl-inspector-dir", str(tmp_path), "--interval", "200ms", env=driver.environment)
    name = "gpu_nccl_bus_bandwidth_bytes_per_second"
    page = exporter.until(lambda page: bool(page.values(name)), timeout=60)
    labels = {"operation": "AllReduce", "message_size": "16-256MiB", "scope": "inter_node"}
    assert page.value(name, UUID=uuid, **labels) == 40e9
    assert len(page.values(name)) == 1


@pytest.mark.parametrize(
    "source",
    [
        ("simulated",),
        ("simulated", "--nodes", "2"),
        ("replay", "--recording", "h200_workloads"),
        ("dcgm", "--dcgm-hostengine", "gpu-17:5555"),
    ],
    ids=" ".join,
)
def test_nccl_inspector_needs_gpus_of_this_machine(source: tuple[str, ...], tmp_path: Path) -> None:
    """Otherwise the directory would be ignored without a word."""
    found = run("serve", "--address", "127.0.0.1:0", "--nccl-inspector-dir", str(tmp_path), "--source", *source)
    assert found.returncode == 1
    assert found.stderr.splitlines() == [
        f"gpu-exporter: --nccl-inspector-dir: source {source[0]} has no GPUs of this machine,"
        " whose jobs write these files: remove it"
    ]
