"""Sampled stacks as text, JSON and HTML, and the files and the audit line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpu_exporter.profiling import html_report, text_report
from gpu_exporter.profiling.audit import audit_line
from gpu_exporter.profiling.private_file import write_private
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.result import ProcessProfile, all_stacks, folded_lines, process_profile
from gpu_exporter.profiling.stacks import parse
from tests.support.html import Document

FOLDED = (
    "thread (7): MainThread;main (/home/u/train.py:90);load_batch (/home/u/train.py:31) 60\n"
    "thread (7): MainThread;main (/home/u/train.py:90);step (/home/u/train.py:44) 40\n"
    "thread (8): <b>watch;watch (/home/u/watch.py:3) 100\n"
    "thread (9): pool;wait (/usr/lib/python3.11/threading.py:327) 100\n"
)


def profile(pid: int = 7) -> ProcessProfile:
    process = Process(pid, 1, 1000, "python train.py", pid, (0,))
    return process_profile(process, parse(FOLDED), Sampling(5.0, 20))


def test_text() -> None:
    assert list(text_report.lines([profile()])) == [
        "Process 7 (python train.py) on GPU 0: sampled 100 times in 5 s",
        "  main thread",
        "      60 %       3 s  waiting for the data loader",
        "                60 %  /home/u/train.py(31): load_batch",
        "      40 %       2 s  running other code",
        "                40 %  /home/u/train.py(44): step",
        "  <b>watch, 5 s",
        "     100 %       5 s  running other code",
        "               100 %  /home/u/watch.py(3): watch",
        "  waited for other threads or processes all the time: pool",
    ]


def test_json() -> None:
    content = json.loads(json.dumps(profile().to_json()))
    assert (content["pid"], content["uid"], content["gpus"], content["samples"]) == (7, 1000, [0], 100)
    main = content["threads"][0]
    assert main["causes"][0]["cause"] == "data_loading"
    assert main["causes"][0]["lines"] == [{"frame": "/home/u/train.py(31): load_batch", "seconds": 3.0, "share": 0.6}]


def test_html() -> None:
    document = Document(html_report.page([profile(), profile(8)]))
    assert "<b>watch" in document.text
    assert "/home/u/train.py(31): load_batch" in document.text
    assert sum(name == "svg" for name, _ in document.elements) == 4
    (data,) = [text for name, text in document.raw if name == "script"]
    assert [process["pid"] for process in json.loads(data)] == [7, 8]


def test_folded_stacks() -> None:
    """With several processes, each stack says which."""
    assert folded_lines(all_stacks([profile()]))[-1] == (
        "main thread;/home/u/train.py(90): main;/home/u/train.py(44): step 2000000"
    )
    assert all(
        line.startswith(("process 7;", "process 8;")) for line in folded_lines(all_stacks([profile(), profile(8)]))
    )


def test_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    path.write_text("longer than what follows")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        write_private(tmp_path / "link", b"x")
    previous = os.umask(0)
    try:
        write_private(tmp_path / "fresh", b"x")
    finally:
        os.umask(previous)
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o600


def test_the_audit_line() -> None:
    processes = [Process(7, 1, 1000, "a", 7, (1, 0)), Process(8, 1, 0, "b", 8, (2,))]
    assert audit_line("trace", processes, 0.5, 0) == (
        "profile method=trace seconds=0.5 pids=7,8 uids=0,1000 gpus=0,1,2 by_uid=0"
    )
    assert audit_line("stacks", [Process(7, 1, 1000, "a", 7)], 5.0, 1) == (
        "profile method=stacks seconds=5 pids=7 uids=1000 gpus=- by_uid=1"
    )
