"""The memory of a cgroup, from the files of both versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.memory_cgroup import MemoryCgroup, Usage, hierarchy, memory_cgroup

V1 = {
    "memory.usage_in_bytes": "1000",
    "memory.kmem.tcp.usage_in_bytes": "70",
    "memory.stat": "inactive_file 9\ntotal_inactive_file 300\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}
V2 = {
    "memory.current": "1070",
    "memory.stat": "anon 600\nsock 70\ninactive_file 300\n",
    "memory.events": "low 0\nmax 5\noom 2\noom_kill 2\n",
}


@pytest.mark.parametrize(
    ("version", "files", "limits"),
    [
        (1, V1, {"memory.limit_in_bytes": "4096", "memory.kmem.tcp.limit_in_bytes": str(1 << 40)}),
        (2, V2, {"memory.max": "4096"}),
    ],
)
def test_socket_buffers_are_named_apart(
    version: int, files: Mapping[str, str], limits: Mapping[str, str], tmp_path: Path
) -> None:
    """Memory is what is used without them, and without the file cache that the kernel can drop."""
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    cgroup = MemoryCgroup(tmp_path, 4096)
    assert cgroup.version == version
    assert cgroup.usage() == Usage(700, 70)
    assert cgroup.usage().total == 770
    assert cgroup.oom_kills() == 2
    assert {name: (tmp_path / name).read_text() for name in limits} == limits


def test_a_writable_hierarchy_is_found(tmp_path: Path) -> None:
    """Version 1 has a folder of its own; in version 2, the controller may have to be turned on."""
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    assert hierarchy(tmp_path) == tmp_path
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    assert hierarchy(tmp_path) == tmp_path
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").touch()
    assert hierarchy(tmp_path) == tmp_path / "memory"


def test_without_a_hierarchy_there_is_a_clear_line(tmp_path: Path) -> None:
    """It is an error, so that what needs it is never skipped."""
    fix = f"no memory cgroup can be made below {tmp_path}: fix: run this as root"
    with pytest.raises(AssertionError, match=fix), memory_cgroup("x", 4096, tmp_path):
        pass
