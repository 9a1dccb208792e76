"""Broken files of sysfs: no traceback, no invented value, and one warning that names the file."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_exporter.host.fabric.reader import MOST_WARNINGS, FabricReader
from tests.support.fakes.fabric import FakeFabric, infiniband_node, roce_node

COUNTER = "class/infiniband/mlx5_0/ports/1/counters/symbol_error"


def counters(fabric: FakeFabric, reader: FabricReader) -> dict[str, int]:
    """Return the counters of the first port."""
    return reader.errors(reader.nics()[0], details=True)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "content",
    [b"", b"-1\n", b"1.5\n", b"0x10\n", b"\xff\xfe", b"18446744073709551616", b"9" * 5000, b"1 2", "\u0661".encode()],
)
def test_no_counter(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    """It is left out, the others are read, and there is one warning however often it is read."""
    fabric = infiniband_node(tmp_path, 1)
    (fabric.sys / COUNTER).write_bytes(content)
    reader = FabricReader(fabric.files)
    for _ in range(3):
        values = counters(fabric, reader)
    assert "symbol_error" not in values
    assert values["link_downed"] == 1
    (warning,) = warnings(caplog)
    assert str(fabric.sys / COUNTER) in warning
    assert warning.isprintable()


@pytest.mark.parametrize(
    ("name", "content", "expected", "warning"),
    [
        ("state", "4: ACTIVE\n", True, ""),
        ("state", "1: DOWN\n", False, ""),
        ("state", "", None, ""),
        ("state", "active", None, "not a state"),
        ("rate", "400 Gb/sec (4X NDR)\n", 50e9, ""),
        ("rate", "2.5 Gb/sec (1X SDR)\n", 0.3125e9, ""),
        ("rate", "0 Gb/sec\n", None, ""),
        ("rate", "", None, ""),
        ("rate", "fast", None, "not a rate"),
    ],
)
def test_state_and_rate_of_a_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str, expected: object, warning: str
) -> None:
    fabric = infiniband_node(tmp_path, 1)
    fabric.put(f"class/infiniband/mlx5_0/ports/1/{name}", content)
    reader = FabricReader(fabric.files)
    (nic,) = reader.nics()
    link = reader.link(nic)
    assert (link.up if name == "state" else link.rate) == expected
    assert [warning in text for text in warnings(caplog)] == ([True] if warning else [])


def test_a_counter_that_the_driver_does_not_have(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """hfi1 says so; that is no error."""
    fabric = infiniband_node(tmp_path, 1)
    fabric.put(COUNTER, "N/A (no PMA)\n")
    assert "symbol_error" not in counters(fabric, FabricReader(fabric.files))
    assert not warnings(caplog)


@pytest.mark.parametrize("what", ["directory", "loop", "fifo", "unlistable"])
def test_a_file_of_another_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    """Nothing hangs."""
    fabric = infiniband_node(tmp_path, 1)
    path = fabric.sys / COUNTER
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "loop":
        path.symlink_to(path.name)
    else:
        folder = path.parent
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.symlink_to(folder.name)
        path = folder
    assert "symbol_error" not in counters(fabric, FabricReader(fabric.files))
    (warning,) = warnings(caplog)
    assert str(path) in warning


def test_loops_of_directories(tmp_path: Path) -> None:
    """A device that leads to itself is no device, and one whose PCIe device leads to itself has no place."""
    fabric = roce_node(tmp_path)
    (fabric.sys / "class/infiniband/loop").symlink_to("loop")
    (fabric.sys / "class/infiniband/no\nname").symlink_to("mlx5_1")
    link = fabric.sys / "class/infiniband/mlx5_0/device"
    link.unlink()
    link.symlink_to("device")
    nics = FabricReader(fabric.files).nics()
    assert [(nic.name, nic.place is not None) for nic in nics] == [("mlx5_0:1", False), ("mlx5_1:1", True)]


def test_a_device_vanishes_while_it_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fabric = infiniband_node(tmp_path, 1)
    reader = FabricReader(fabric.files)
    (nic,) = reader.nics()
    (fabric.sys / "class/infiniband/mlx5_0").unlink()
    assert reader.link(nic) == (None, None)
    assert reader.traffic(nic) == reader.errors(nic, details=True) == {}
    assert not warnings(caplog)


def test_few_warnings_about_many_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fabric = infiniband_node(tmp_path, 8)
    for file in fabric.sys.glob("devices/**/counters/*"):
        file.write_text("?\n")
    reader = FabricReader(fabric.files)
    assert [reader.traffic(nic) for nic in reader.nics()] == [{}] * 8
    assert len(warnings(caplog)) == 16
    for nic in reader.nics():
        reader.errors(nic, details=True)
    assert len(warnings(caplog)) == MOST_WARNINGS


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_content(tmp_path: Path, data: st.DataObject) -> None:
    """Every file of a port may contain anything: what is read is in range, or absent."""
    root = tmp_path / "node"
    if not root.exists():
        infiniband_node(root, 1)
    fabric = FakeFabric(root)
    for file in sorted((root / "sys").glob("devices/**/mlx5_0/**/*")):
        if file.is_file() and data.draw(st.booleans()):
            file.write_bytes(data.draw(st.binary(max_size=40) | st.from_regex(rb"[0-9:. A-Zb/]{0,30}", fullmatch=True)))
    reader = FabricReader(fabric.files)
    for nic in reader.nics():
        link = reader.link(nic)
        assert link.up in (True, False, None)
        assert link.rate is None or 0 < link.rate < 1e14
        assert f"{nic.layer}{nic.board}".isprintable()
        for value in {**reader.traffic(nic), **reader.errors(nic, details=True)}.values():
            assert 0 <= value < 2**64
