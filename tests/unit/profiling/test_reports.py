"""Sampled stacks as text, JSON and HTML, and the files and the audit line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_exporter.io.file_access import write_private
from gpu_exporter.profiling import html_page, text_report
from gpu_exporter.profiling.audit import audit_line
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.result import ProcessProfile, all_stacks, folded_lines, process_profile
from gpu_exporter.profiling.stacks import ThreadProfile, parse
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


def many(threads: int = 1, lines: int = 1, waiting: int = 0) -> ProcessProfile:
    """Return a process with so many busy threads on so many lines each, and some that wait."""
    folded = "".join(
        f"thread ({10 + number}): busy{number:02};f (/a.py:{line + 1}) {100 - line}\n"
        for number in range(threads)
        for line in range(lines)
    )
    waits = "".join(
        f"thread ({90 + number}): pool{number:02};wait (/usr/lib/python3.11/threading.py:327) 9\n"
        for number in range(waiting)
    )
    return process_profile(Process(7, 1, 0, "t.py", 7), parse(folded + waits), Sampling(5.0, 20))


def test_text_is_bounded() -> None:
    """Of many threads and lines, the most costly ones, and how many there are besides."""
    shown = [line for line in text_report.lines([many(text_report.MOST_THREADS)]) if line.startswith("  busy")]
    assert len(shown) == text_report.MOST_THREADS
    found = list(text_report.lines([many(text_report.MOST_THREADS + 2)]))
    assert [line for line in found if line.startswith("  busy")] == shown
    assert found[-1] == "  2 more threads: see --json"
    lines = [line for line in text_report.lines([many(lines=10)]) if "/a.py" in line]
    assert [line.partition("/a.py(")[2][0] for line in lines] == list("123")[: text_report.MOST_LINES]
    names = ", ".join(f"pool{number:02}" for number in range(text_report.MOST_WAITING))
    said = "  waited for other threads or processes all the time: "
    assert list(text_report.lines([many(waiting=text_report.MOST_WAITING)]))[-1] == said + names
    assert list(text_report.lines([many(waiting=text_report.MOST_WAITING + 1)]))[-1] == f"{said}{names}, …"


def test_small_shares_are_left_out() -> None:
    """Below one percent, a cause or a line says nothing."""
    main = "thread (7): MainThread"
    folded = "".join(
        (
            f"{main};f (/a.py:1) 970\n{main};f (/a.py:2) 9\n{main};f (/a.py:3) 10\n",
            f"{main};load_batch (/b.py:1) 10\n{main};f (/a.py:4) 1\n",
        )
    )
    process = Process(7, 1, 0, "t.py", 7)
    found = "\n".join(text_report.lines([process_profile(process, parse(folded), Sampling(50.0, 20))]))
    assert [line.strip().partition("/a.py")[2] for line in found.splitlines() if "/a.py" in line] == [
        "(1): f",
        "(3): f",
    ]
    assert "waiting for the data loader" in found
    fewer = folded.replace("load_batch (/b.py:1) 10", "load_batch (/b.py:1) 9").replace("(/a.py:4) 1", "(/a.py:4) 2")
    found = "\n".join(text_report.lines([process_profile(process, parse(fewer), Sampling(50.0, 20))]))
    assert "waiting for the data loader" not in found


@pytest.mark.parametrize(
    ("name", "is_main", "workers", "title"),
    [
        ("MainThread", True, 0, "main thread"),
        ("pool", False, 0, "pool"),
        ("MainThread", False, 1, "1 child process"),
        ("MainThread", False, 2, "2 child processes"),
        ("pool", False, 2, "pool of 2 child processes"),
    ],
)
def test_titles_of_threads(name: str, is_main: bool, workers: int, title: str) -> None:
    assert text_report.title(ThreadProfile(name, is_main, 1.0, (), False, workers)) == title


def test_workers_in_text() -> None:
    """What they do has other words: loading data is their work. Several processes are apart."""
    worker = 'process 8:"w";thread (8): MainThread;load_batch (/d.py:1) 20\n'
    process = Process(7, 1, 0, "t.py", 7)
    found = process_profile(process, parse(worker + FOLDED, {7}), Sampling(5.0, 20))
    text = list(text_report.lines([found, found]))
    at = text.index("  1 child process, 1 s")
    assert text[at + 1].endswith("  loading data")
    assert text.count("") == 1
    assert text[text.index("") + 1] == text[0]
    document = Document(html_page.page([found]))
    assert "loading data" in document.text
    assert "Stacks of other threads and processes" in document.text


def test_html_is_bounded() -> None:
    """The JSON in it has everything."""
    threads = html_page.MOST_THREADS
    text = Document(html_page.page([many(threads + 1, 2 * html_page.MOST_LINES, waiting=1)])).text
    assert sum(text.count(f"Busy{number:02}") for number in range(threads + 1)) == threads
    assert "Pool" not in text
    assert text.count("/a.py(") >= html_page.MOST_LINES * threads
    one = Document(html_page.page([many(1, html_page.MOST_LINES + 1)])).text
    shown = one.partition("Stacks of")[0]
    assert shown.count("/a.py(") == html_page.MOST_LINES
    most = html_page.MOST_PROCESSES
    document = Document(
        html_page.page([replace(many(), process=Process(pid, 1, 0, "t", pid)) for pid in range(most + 3)])
    )
    assert sum(name == "h2" for name, _ in document.elements) == most
    assert "3 more processes are only in the JSON." in document.text
    (data,) = [text for name, text in document.raw if name == "script"]
    assert len(json.loads(data)) == most + 3
    assert "more processes" not in Document(html_page.page([many()] * most)).text


def test_html_of_a_process() -> None:
    document = Document(html_page.page([profile()]))
    assert "Process 7 (python train.py) on GPU 0" in document.text
    assert "Sampled 100 times in 5 s." in document.text
    captions = ("Stacks of the main thread", "Stacks of other threads and processes")
    assert all(caption in document.text for caption in captions)
    only_main = Document(
        html_page.page([process_profile(Process(7, 1, 0, "t", 7), parse(FOLDED.splitlines()[0]), Sampling())])
    )
    assert [caption in only_main.text for caption in captions] == [True, False]


def test_json() -> None:
    content = json.loads(json.dumps(profile().to_json()))
    assert (content["pid"], content["uid"], content["gpus"], content["samples"]) == (7, 1000, [0], 100)
    main = content["threads"][0]
    assert main["causes"][0]["cause"] == "data_loading"
    assert main["causes"][0]["lines"] == [{"frame": "/home/u/train.py(31): load_batch", "seconds": 3.0, "share": 0.6}]


def test_html() -> None:
    document = Document(html_page.page([profile(), profile(8)]))
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
