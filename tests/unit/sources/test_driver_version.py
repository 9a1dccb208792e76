"""Compares the version of the library with that of the kernel driver, by files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.sources.nvml.driver import reload_needed


@pytest.mark.parametrize(
    ("loaded", "installed", "needed"),
    [
        ("580.159.04\n", "libnvidia-ml.so.580.159.04", False),
        ("580.159.04\n", "libnvidia-ml.so.590.44.01", True),
        ("", "libnvidia-ml.so.580.159.04", None),
        (None, "libnvidia-ml.so.580.159.04", None),
        ("580.159.04\n", None, None),
        ("580.159.04\n", "libnvidia-ml.so.1", None),
    ],
    ids=["same", "upgraded", "no version", "no module", "no library", "library without version"],
)
def test_reload_needed(tmp_path: Path, loaded: str | None, installed: str | None, needed: bool | None) -> None:
    """A process keeps the library of its start, so the one on disk is compared."""
    library, sysfs, procfs = tmp_path / "lib", tmp_path / "sys", tmp_path / "proc"
    for folder in (library, sysfs / "module/nvidia", procfs / "self"):
        folder.mkdir(parents=True)
    if loaded is not None:
        (sysfs / "module/nvidia/version").write_text(loaded)
    (procfs / "self/maps").write_text(
        "7f00-7f01 r-xp 00000000 00:00 0 \n"
        f"7f10-7f20 r-xp 00000000 00:1e 77  {library}/libnvidia-ml.so.580.159.04 (deleted)\n"
    )
    if installed:
        (library / installed).touch()
        if installed != "libnvidia-ml.so.1":
            (library / "libnvidia-ml.so.1").symlink_to(installed)
    assert reload_needed(sysfs, procfs) is needed


def test_nothing_is_mapped(tmp_path: Path) -> None:
    """Without the library, there is nothing to compare."""
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (tmp_path / "module/nvidia/version").write_text("580.159.04\n")
    assert reload_needed(tmp_path, Path("/proc")) is None
