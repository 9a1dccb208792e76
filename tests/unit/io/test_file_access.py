"""Files that hang delay a caller only up to a deadline; files that are not regular are never read."""

from __future__ import annotations

import os
import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from gpu_exporter.io.file_access import FileWorker, open_regular, read, refuse_unwritable, replace_file
from tests.support.tools import LIMIT


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """FIFOs, sockets, folders and devices are refused at once."""
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "fifo", tmp_path / "socket", tmp_path, Path("/dev/zero")):
            with pytest.raises(OSError, match="not a regular file"):
                read(path, 10)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(tmp_path / "fifo", flags)
    assert read(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        read(tmp_path / "file", 4)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none", 10)


def test_a_call_has_the_result_or_the_error() -> None:
    """As if it were made in the caller's thread."""
    worker = FileWorker("test")
    assert [worker.call(partial(int, number)) for number in range(3)] == [0, 1, 2]
    with pytest.raises(FileNotFoundError):
        worker.call(lambda: os.stat("/none"))
    assert worker.call(lambda: "again") == "again"


def test_a_call_that_hangs_fails_by_a_deadline() -> None:
    """Further calls fail at once while it hangs, and work when it has returned."""
    worker, back, done = FileWorker("test"), threading.Event(), threading.Event()

    def hangs() -> None:
        back.wait()
        done.set()

    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        worker.call(hangs, 0.05)
    for _ in range(100):  # would take minutes if each waited
        with pytest.raises(TimeoutError):
            worker.call(lambda: None, 10)
    back.set()
    assert done.wait(LIMIT)
    assert [worker.call(partial(int, number)) for number in range(3)] == [0, 1, 2]


def test_calls_take_turns() -> None:
    """One at a time, from many threads."""
    worker, inside, most = FileWorker("test"), [0], [0]

    def access() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        inside[0] -= 1

    threads = [threading.Thread(target=worker.call, args=(access, 60.0)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    """Readers that have the old file keep its content."""
    path = tmp_path / "file"
    path.write_text("old")
    with path.open() as opened:
        replace_file(path, "new °")
        assert opened.read() == "old"
    assert path.read_text(encoding="utf-8") == "new °"


def test_a_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    """The error names the file, and no draft stays."""
    (tmp_path / "folder").mkdir()
    for name in ("folder", "none/file"):
        with pytest.raises(OSError, match=name):
            replace_file(tmp_path / name, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("new.html", ""),
        ("old.html", ""),
        ("folder", "Is a directory"),
        ("none/new.html", "No such file or directory"),
        ("old.html/new.html", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "old.html").touch()
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    if why:
        with pytest.raises(OSError, match=why) as raised:
            refuse_unwritable(tmp_path / name)
        assert raised.value.filename == str(tmp_path / name)
    else:
        refuse_unwritable(tmp_path / name)
    refuse_unwritable(Path("/dev/null"))
    assert sorted(tmp_path.rglob("*")) == before
