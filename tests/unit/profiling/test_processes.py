"""Processes as procfs describes them, who else profiles them, and the audit of profiles."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import audit
from gpu_exporter.profiling.processes import MOST_COMMAND, Process, environment, is_alive, look_up
from gpu_exporter.profiling.taking import other_profiler
from tests.unit.profiling.test_watch import proc


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    return HostFiles(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("gpus", "rank", "title"),
    [
        ((), "", "process 7 (a.py)"),
        ((3,), "", "process 7 (a.py) on GPU 3"),
        ((3, 4), "", "process 7 (a.py) on GPUs 3, 4"),
        ((3,), "12", "process 7 (a.py, rank 12) on GPU 3"),
    ],
)
def test_titles(gpus: tuple[int, ...], rank: str, title: str) -> None:
    assert Process(7, 1, 0, "a.py", 7, gpus, rank).title == title


def test_what_procfs_says(files: HostFiles, tmp_path: Path) -> None:
    """The effective user decides who may trace it; the last of the PIDs is that of its own namespace."""
    proc(tmp_path, 7, "python\0train.py")
    (tmp_path / "7/status").write_text("Name:\tx\nUid:\t1000\t1001\t1002\t1003\nNSpid:\t7\t70\t700\n")
    (tmp_path / "7/environ").write_bytes(b"A=1\0RANK=12\0")
    assert look_up(files, 7, (1,)) == Process(7, 0, 1001, "python train.py", 700, (1,), "12")


@pytest.mark.parametrize(("rank", "known"), [("0", "0"), ("123456", "123456"), ("1234567", ""), ("x", ""), ("", "")])
def test_ranks(files: HostFiles, tmp_path: Path, rank: str, known: str) -> None:
    proc(tmp_path, 7)
    (tmp_path / "7/environ").write_text(f"RANK={rank}\0")
    assert look_up(files, 7).rank == known


def test_what_a_process_may_lack(files: HostFiles, tmp_path: Path) -> None:
    """A kernel thread has no command line, an old kernel no PIDs of namespaces, another user no environment."""
    proc(tmp_path, 7, comm="kworker")
    (tmp_path / "7/cmdline").write_bytes(b"")
    (tmp_path / "7/status").write_text("Uid:\t5\t6\t7\t8\n")
    assert look_up(files, 7) == Process(7, 0, 6, "kworker", 7)
    proc(tmp_path, 7, "x" * 200)
    assert len(look_up(files, 7).command) == MOST_COMMAND


@pytest.mark.parametrize("state", ["Z", "X"])
def test_processes_that_have_ended(files: HostFiles, tmp_path: Path, state: str) -> None:
    proc(tmp_path, 7)
    here = look_up(files, 7)
    assert is_alive(files, here)
    stat = tmp_path / "7/stat"
    text = stat.read_text()
    stat.write_text(text.replace(") S", f") {state}"))
    assert not is_alive(files, here)
    with pytest.raises(GpuExporterError, match="process 7 has ended"):
        look_up(files, 7)
    stat.write_text("garbage")
    assert not is_alive(files, here)
    with pytest.raises(GpuExporterError, match="process 7 has ended"):
        look_up(files, 7)
    with pytest.raises(GpuExporterError, match="there is no process 8 here: check the PID"):
        look_up(files, 8)


def test_environments(files: HostFiles, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert environment(files, 7) is None
    (tmp_path / "7/environ").write_bytes(b"A=1=2\0garbage\0B=\0\xff=x\xff\0")
    assert environment(files, 7) == {"A": "1=2", "B": "", "\ufffd": "x\udcff"}


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([], ""),
        ([(8, "ncu", b"ncu")], "ncu is running (process 8)"),
        ([(8, "nsys", b"nsys")], "nsys is running (process 8)"),
        ([(8, "py-spy", b"py-spy\0dump\0--pid\0007")], ""),
        ([(8, "py-spy", b"py-spy\0dump\0--pid\0" + b"6")], "py-spy is running (process 8)"),
        ([(8, "py-spy", b"py-spy\0dump\0--pid\0" + b"9")], ""),
        ([(8, "bash", b"bash\0nsys\0" + b"6")], ""),
    ],
)
def test_other_profilers(files: HostFiles, tmp_path: Path, others: list[tuple[int, str, bytes]], found: str) -> None:
    for pid in (5, 6):
        proc(tmp_path, pid)
    for pid, comm, arguments in others:
        proc(tmp_path, pid, comm=comm)
        (tmp_path / f"{pid}/cmdline").write_bytes(arguments)
    assert other_profiler(files, [5, 6]) == found
    assert other_profiler(files, iter([5, 6])) == found


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ("Name:\tx\nTracerPid:\t99\n", "process 99 debugs process 6"),
        ("TracerPid:\t0\n", ""),
        ("TracerPid:\tx\n", ""),
        ("Tracer:\t99\n", ""),
        ("", ""),
    ],
)
def test_debuggers(files: HostFiles, tmp_path: Path, status: str, found: str) -> None:
    for pid in (5, 6):
        proc(tmp_path, pid)
    (tmp_path / "6/status").write_text(status)
    assert other_profiler(files, [5, 6]) == found


def test_processes_that_are_hidden(files: HostFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not keep others from being found."""
    for pid in (5, 6):
        proc(tmp_path, pid, comm="nsys")
    read = HostFiles.process

    def process(of: HostFiles, path: str) -> bytes:
        if path == "5/comm":
            raise PermissionError
        return read(of, path)

    monkeypatch.setattr(HostFiles, "process", process)
    assert other_profiler(files, []) == "nsys is running (process 6)"


class Syslog(logging.Handler):
    """Takes the place of the system's log."""

    LOG_AUTHPRIV = 10
    sent: list[str]
    fails = False

    def __init__(self, path: str, facility: int) -> None:
        super().__init__()
        if self.fails:
            raise OSError
        self.ident, self.made = "", (path, facility)

    def emit(self, record: logging.LogRecord) -> None:
        self.sent.append(self.ident + self.format(record))

    def close(self) -> None:
        self.sent.append("closed")
        super().close()


def test_an_audit_line_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """To the system's log alone, once, if somebody listens there."""
    sent: list[str] = []
    monkeypatch.setattr(Syslog, "sent", sent, raising=False)
    monkeypatch.setattr(logging.handlers, "SysLogHandler", Syslog)
    monkeypatch.setattr(audit, "SYSLOG", tmp_path / "log")
    audit.record("missing")
    (tmp_path / "log").touch()
    for line in ("one", "two"):
        audit.record(line)
    monkeypatch.setattr(Syslog, "fails", True)
    audit.record("nobody listens")
    assert [each.partition("]: ")[2] or each for each in sent] == ["one", "closed", "two", "closed"]
    assert sent[0].startswith("gpu-exporter[")
    log = logging.getLogger("gpu_exporter.audit")
    assert not any(isinstance(handler, Syslog) for handler in log.handlers)  # pytest may have its own
    assert not log.propagate
