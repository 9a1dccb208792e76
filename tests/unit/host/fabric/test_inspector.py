"""The directory of NCCL Inspector: fresh and stale files, and files that are no files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_exporter.host.fabric.inspector import LARGEST, STALE_SECONDS, InspectorWatch
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuSamples
from tests.support.fakes.nccl_inspector import coll, path

GPUS = (Gpu(0, "GPU-00000000-0000-0000-0000-000000000000"), Gpu(1, "GPU-00000000-0000-0000-0000-000000000001"))


class Inspected:
    """A directory that is read when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.watch = InspectorWatch(directory)
        self.seen = [GpuSamples(gpu, None, (), {}) for gpu in (*GPUS, Gpu(2))]
        self.watch.rows(self.seen)

    def path(self, gpu: int = 0) -> Path:
        return path(self.directory, GPUS[gpu].uuid)

    def write(self, content: str, ago: float = 10, gpu: int = 0) -> None:
        self.path(gpu).write_text(content)
        self.age(ago, gpu)

    def age(self, ago: float, gpu: int = 0) -> None:
        at = time.time() - ago
        os.utime(self.path(gpu), (at, at))

    def poll(self) -> dict[int, float]:
        """Return GB/s by index of the GPU."""
        self.watch.poll(0)
        return {row.gpu.index: round(row.value / 1e9, 6) for row in self.watch.rows(self.seen) if row.gpu}


def test_files_belong_to_gpus_by_uuid(tmp_path: Path) -> None:
    """A file of another node's GPU, or without a UUID, belongs to none."""
    node = Inspected(tmp_path)
    node.write(coll(5), gpu=0)
    node.write(coll(6, gpu="GPU0"), gpu=1)
    for name in ("", "11111111-0000-0000-0000-000000000000"):
        path(tmp_path, name).write_text(coll(7))
    assert node.poll() == {0: 5, 1: 6}


def test_files_that_are_rewritten_and_deleted(tmp_path: Path) -> None:
    """While a file is being written, its last content holds."""
    node = Inspected(tmp_path)
    node.write("", ago=0)
    assert node.poll() == {}
    node.write(coll(5), ago=40)
    assert node.poll() == {0: 5}
    node.write("", ago=-5)
    assert node.poll() == {0: 5}
    node.write(coll(6), ago=5)
    assert node.poll() == {0: 6}
    node.path().unlink()
    assert node.poll() == {}


@pytest.mark.parametrize("ago", [STALE_SECONDS + 5, -1e6])
def test_stale_files(tmp_path: Path, ago: float) -> None:
    """They give no samples, and neither does a file from the future, once its last content is stale."""
    node = Inspected(tmp_path)
    node.write(coll(5), ago=ago)
    assert node.poll() == {}


def test_content_becomes_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Inspected(tmp_path)
    node.write(coll(5))
    assert node.poll() == {0: 5}
    later = time.time() + STALE_SECONDS
    monkeypatch.setattr("gpu_exporter.host.fabric.inspector.time.time", lambda: later)
    assert node.poll() == {}


def _link(path: Path) -> None:
    target = path.with_suffix(".txt")
    target.write_text(coll(5))
    path.symlink_to(target)


def _large(path: Path) -> None:
    path.write_text(coll(5) * (LARGEST // 400))


def _wrong(path: Path) -> None:
    path.write_text(coll(5, n_nodes="x\x1b[2J"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_link, "replace it by a regular file"),
        (os.mkfifo, "replace it by a regular file"),
        (os.mkdir, "replace it by a regular file"),
        (_large, "larger than 256 KiB: raise NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES"),
        (_wrong, "line 1 is left out"),
    ],
)
def test_what_cannot_be_read_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None], why: str
) -> None:
    """The log names the file and the fix; other files are read."""
    node = Inspected(tmp_path)
    make(node.path())
    node.age(10)
    node.write(coll(6), gpu=1)
    assert [node.poll(), node.poll()] == [{1: 6}, {1: 6}]
    (record,) = caplog.records
    assert str(node.path()) in record.getMessage()
    assert why in record.getMessage()
    assert "\x1b" not in record.getMessage()


def test_a_missing_directory_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read once it exists."""
    node = Inspected(tmp_path / "later")
    assert [node.poll(), node.poll()] == [{}, {}]
    (record,) = caplog.records
    assert f"{tmp_path / 'later'}: No such file or directory: create it" in record.getMessage()
    (tmp_path / "later").mkdir()
    node.write(coll(5))
    assert node.poll() == {0: 5}
