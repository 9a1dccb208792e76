"""Files that jobs write their traces to: which are used, how much was written, and what is removed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.trace_file import LEAST_FREE_BYTES, MOST_TRACE_BYTES, TraceFile, unusable

PROCESS = Process(7, 1, os.getuid(), "train.py", 70)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder /a/b of the job, whose files are below the root of its process."""
    (tmp_path / "root/a/b").mkdir(parents=True)
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/root").symlink_to(tmp_path / "root")
    return tmp_path / "root/a/b"


@pytest.fixture
def file(folder: Path, tmp_path: Path) -> Iterator[TraceFile]:
    made = TraceFile(PROCESS, PurePosixPath("/a/b"), tmp_path / "proc")
    yield made
    made.close()
    assert not [path for path in folder.iterdir() if path.name.startswith("gpu-exporter-")]


def written(file: TraceFile, folder: Path, content: bytes, suffix: str = "") -> Path:
    """Write the file as the job does, which inserts its own PID into the name."""
    path = folder / f"{PurePosixPath(file.requested).stem}_70.json{suffix}"
    path.write_bytes(content)
    return path


def test_a_trace(file: TraceFile, folder: Path) -> None:
    """It is complete when it has its final name, and has no name when it is taken."""
    assert (file.is_complete(), file.written_bytes()) == (False, 0)
    draft = written(file, folder, b"half", ".tmp")
    assert (file.is_complete(), file.written_bytes()) == (False, 4)
    draft.rename(draft.with_suffix(""))
    assert file.path == f"/a/b/{draft.with_suffix('').name}"
    assert (file.is_complete(), file.written_bytes()) == (True, 4)
    descriptor = file.take()
    assert os.read(descriptor, 10) == b"half"
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    assert not list(folder.iterdir())


def test_names_cannot_be_guessed(folder: Path, tmp_path: Path) -> None:
    files = [TraceFile(PROCESS, PurePosixPath("/a/b"), tmp_path / "proc") for _ in range(2)]
    assert len({file.requested for file in files}) == 2
    assert all(len(PurePosixPath(file.requested).stem) >= len("gpu-exporter-") + 32 for file in files)
    for file in files:
        file.close()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "linked", "gone"])
def test_what_is_not_taken(file: TraceFile, folder: Path, kind: str) -> None:
    """One line says why, no descriptor is left open, and nothing waits for a writer."""
    path = written(file, folder, b"x")
    if kind != "linked":
        path.unlink()
    why = {"link": "a symbolic link", "linked": "it has other names", "gone": "No such file or directory"}
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "linked":
            os.link(path, folder / "another")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(GpuExporterError) as error:
        file.take()
    assert str(error.value) == (f"process 7 (train.py): its trace is not used: {why.get(kind, 'not a regular file')}")
    assert len(os.listdir("/proc/self/fd")) == before
    if kind == "folder":
        path.rmdir()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"st_size": MOST_TRACE_BYTES}, ""),
        ({"st_size": MOST_TRACE_BYTES + 1}, "larger than 1024 MiB: use a shorter --seconds, or --no-stacks"),
        ({"st_size": 0}, "it is empty"),
        ({"st_nlink": 2}, "it has other names"),
        ({"st_nlink": 0}, "it has other names"),
        ({"st_uid": 0}, "it belongs to user 0, not to user 1000 as the process"),
        ({"st_mode": stat.S_IFCHR}, "not a regular file"),
    ],
)
def test_files_that_a_process_may_have_written(changes: dict[str, int], why: str) -> None:
    about = {"st_mode": stat.S_IFREG | 0o600, "st_uid": 1000, "st_nlink": 1, "st_size": 1, **changes}
    assert unusable(SimpleNamespace(**about), 1000) == why  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("blocks", "enough"), [(LEAST_FREE_BYTES // 4096, True), (LEAST_FREE_BYTES // 4096 - 1, False)]
)
def test_space_for_a_trace(file: TraceFile, monkeypatch: pytest.MonkeyPatch, blocks: int, *, enough: bool) -> None:
    """Only what the job's user may use counts."""
    monkeypatch.setattr(os, "fstatvfs", lambda of: SimpleNamespace(f_bavail=blocks, f_bfree=1 << 40, f_frsize=4096))
    assert file.free_bytes() == 4096 * blocks
    if enough:
        file.check_space()
        return
    with pytest.raises(GpuExporterError) as error:
        file.check_space()
    assert str(error.value) == (
        "process 7 (train.py): only 511 MiB are free in its /a/b, and a trace may need 512: free some, or use another"
        " --trace-dir"
    )


def test_what_an_earlier_exporter_left_is_removed(folder: Path, tmp_path: Path) -> None:
    """Only complete and half-written traces of this process."""
    left = [f"gpu-exporter-{'a' * 32}_70.json", f"gpu-exporter-{'0' * 32}_70.json.tmp"]
    others = [
        f"gpu-exporter-{'a' * 32}_7.json",
        f"gpu-exporter-{'a' * 31}_70.json",
        f"x-gpu-exporter-{'a' * 32}_70.json",
        f"gpu-exporter-{'a' * 32}_70.json.tmp2",
    ]
    for name in (*left, *others):
        (folder / name).write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    TraceFile(PROCESS, PurePosixPath("/a/b"), tmp_path / "proc").close()
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/a/b/c", "process 7 (train.py): /a/b/c: No such file or directory: give a folder that it can write to"),
        ("/a/link", "process 7 (train.py): /a/link: Not a directory: give a folder that it can write to"),
    ],
)
def test_folders_that_cannot_be_opened(folder: Path, tmp_path: Path, path: str, why: str) -> None:
    """A link is not followed: the job could lead it anywhere."""
    (folder.parent / "link").symlink_to(folder)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(GpuExporterError) as error:
        TraceFile(PROCESS, PurePosixPath(path), tmp_path / "proc")
    assert str(error.value) == f"{why} with --trace-dir"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    with pytest.raises(GpuExporterError, match=r"process 7 \(train.py\): its files: No such file or directory: run as"):
        TraceFile(PROCESS, PurePosixPath("/a/b"), tmp_path / "proc")
