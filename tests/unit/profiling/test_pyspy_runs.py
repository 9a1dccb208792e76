"""How py-spy is started, limited and read, without py-spy."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.profiling import pyspy
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import NotSampled, Sampling, SamplingFailure
from tests.unit.profiling.test_watch import proc

PROGRAM = Path("/bin/py-spy")
PROCESSES = [Process(pid, 0, 0, "t.py", pid) for pid in (7, 8)]
NO_PYTHON = b"Error: No python processes found in process 7\n"


@pytest.mark.parametrize(
    ("sampling", "arguments"),
    [
        (Sampling(5.0, 50), "--duration 5 --rate 50 --threads --idle --full-filenames --nonblocking --subprocesses"),
        (Sampling(0.2, 9, workers=False), "--duration 1 --rate 9 --threads --idle --full-filenames --nonblocking"),
        (
            Sampling(2.6, 9, native=True),
            "--duration 3 --rate 9 --threads --idle --full-filenames --native --subprocesses",
        ),
    ],
)
def test_arguments(sampling: Sampling, arguments: str) -> None:
    """Whole seconds, at least one. With native frames, the process is stopped for each sample."""
    found = pyspy._arguments(PROCESSES[0], sampling, Path("/x/7.folded"))
    assert " ".join(found) == f"record --pid 7 --format raw --output /x/7.folded {arguments}"


@pytest.mark.parametrize("native", [False, True])
def test_limits(monkeypatch: pytest.MonkeyPatch, *, native: bool) -> None:
    """Every library is mapped for native frames, which may need any address space."""
    limits: dict[int, tuple[int, tuple[int, int]]] = {}
    nice: list[tuple[int, int, int]] = []
    monkeypatch.setattr(resource, "prlimit", lambda pid, of, most: limits.update({of: (pid, most)}))
    monkeypatch.setattr(os, "setpriority", lambda *arguments: nice.append(arguments))
    pyspy._limit(42, Sampling(2.2, most_bytes=1000, native=native))
    expected = {resource.RLIMIT_FSIZE: 1000, resource.RLIMIT_CPU: 3 + int(pyspy.SLACK_SECONDS)}
    if not native:
        expected[resource.RLIMIT_AS] = pyspy.MOST_MEMORY_BYTES
    assert limits == {of: (42, (most, most)) for of, most in expected.items()}
    assert nice == [(os.PRIO_PROCESS, 42, pyspy.NICENESS)]


class Runs:
    """Runs of py-spy in virtual time, with the exit code and the output of each by PID; None never ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **results: tuple[int | None, bytes | None, bytes]) -> None:
        self.results = {int(name[1:]): result for name, result in results.items()}
        self.now, self.events = 0.0, list[Any]()
        self.dump: Callable[[], bytes] = lambda: b"Error: Permission denied (os error 13)\n"
        monkeypatch.setattr(subprocess, "Popen", self.started)
        monkeypatch.setattr(subprocess, "run", self.ran)
        monkeypatch.setattr(pyspy, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(pyspy, "_limit", lambda pid, sampling: self.events.append(("limit", pid)))

    def started(self, command: Sequence[str], **options: Any) -> Any:
        assert options["stdin"] == options["stdout"] == subprocess.DEVNULL
        assert command[0] == str(PROGRAM)
        pid = int(command[command.index("--pid") + 1])
        code, written, said = self.results[pid]
        options["stderr"].write(said)
        if written is not None:
            Path(command[command.index("--output") + 1]).write_bytes(written)

        def wait(seconds: float | None = None) -> int:
            if seconds is None:
                self.events.append("waited")
                return -9
            if code is None:
                self.now += seconds
                raise subprocess.TimeoutExpired(command, seconds)
            return code

        return SimpleNamespace(pid=1000 + pid, wait=wait, kill=lambda: self.events.append("killed"))

    def ran(self, command: Sequence[str], **options: Any) -> Any:
        assert command == [str(PROGRAM), "dump", "--pid", "7", "--nonblocking"]
        assert options["capture_output"]
        assert not options["check"]
        self.events.append("dumped")
        return SimpleNamespace(stderr=self.dump())


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    for pid in (7, 8):
        proc(tmp_path, pid)
    return HostFiles(tmp_path, tmp_path)


def outcome(files: HostFiles, tmp_path: Path) -> tuple[SamplingFailure | None, str]:
    """Return what is said about process 7, and make sure that no file is left."""
    (tmp_path / "scratch").mkdir()
    found = pyspy.sample(PROGRAM, PROCESSES[:1], Sampling(1.0, most_bytes=3 << 20), files, tmp_path / "scratch")[7]
    assert not list((tmp_path / "scratch").iterdir())
    return (found.failure if isinstance(found, NotSampled) else None), str(found).removeprefix("process 7 (t.py): ")


@pytest.mark.parametrize(
    ("result", "failure", "text"),
    [
        ((0, b"a 1\n", b"warning"), None, "a 1\n"),
        ((0, b"a\xff 1\n", b""), None, "a\ufffd 1\n"),
        (
            (1, b"half", b"Error: No space left on device\n"),
            SamplingFailure.DISK,
            "py-spy returned no stacks: Error: No space",
        ),
        ((0, b"", b""), SamplingFailure.OTHER, "py-spy returned no stacks: no reason given"),
        ((0, None, b""), SamplingFailure.OTHER, "py-spy returned no stacks: no reason given"),
        ((-signal.SIGXFSZ, b"half", b""), SamplingFailure.TOO_LARGE, "its stacks exceed 3 MiB"),
        ((signal.SIGXFSZ, b"half", b""), SamplingFailure.OTHER, "py-spy returned no stacks"),
        (
            (1, None, b"Error: Failed to find a Python interpreter"),
            SamplingFailure.NOT_PYTHON,
            "it does not run Python",
        ),
        ((1, None, NO_PYTHON), SamplingFailure.NOT_PERMITTED, "not permitted: run as root"),
    ],
)
def test_outcomes(
    files: HostFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    result: tuple[int, bytes | None, bytes],
    failure: SamplingFailure | None,
    text: str,
) -> None:
    """Where py-spy does not say why, a single look at the process does."""
    runs = Runs(monkeypatch, p7=result)
    found, said = outcome(files, tmp_path)
    assert (found, said.startswith(text)) == (failure, True), said
    assert runs.events == [("limit", 1007), *(["dumped"] if result[2] == NO_PYTHON else [])]


def test_a_look_that_hangs(files: HostFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch, p7=(1, None, NO_PYTHON))

    def hangs() -> bytes:
        raise subprocess.TimeoutExpired("py-spy", 1.0)

    runs.dump = hangs
    assert outcome(files, tmp_path) == (SamplingFailure.OTHER, "py-spy returned no stacks: no reason given")


def test_a_process_that_has_ended(files: HostFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever py-spy says then. Stacks that it has written count."""
    (tmp_path / "7/stat").unlink()
    runs = Runs(monkeypatch, p7=(1, None, NO_PYTHON))
    assert outcome(files, tmp_path) == (SamplingFailure.ENDED, "it ended before it was sampled")
    assert "dumped" not in runs.events


def test_all_are_sampled_at_the_same_time(files: HostFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is killed at the end of the sampling and some time for symbols; the others have their stacks."""
    runs = Runs(monkeypatch, p7=(None, b"half", b""), p8=(0, b"a 1\n", b""))
    found = pyspy.sample(PROGRAM, PROCESSES, Sampling(2.0), files, tmp_path)
    assert isinstance(found[7], NotSampled)
    assert (found[7].failure, found[8]) == (SamplingFailure.TIMEOUT, "a 1\n")
    assert runs.now == 2.0 + pyspy.SLACK_SECONDS
    assert runs.events == [("limit", 1007), ("limit", 1008), "killed", "waited"]


def test_a_py_spy_that_ends_before_it_is_limited(
    files: HostFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Runs(monkeypatch, p7=(0, b"a 1\n", b""))

    def gone(pid: int, sampling: Sampling) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(pyspy, "_limit", gone)
    assert outcome(files, tmp_path) == (None, "a 1\n")


@pytest.mark.parametrize(("content", "scope"), [("1\n", 1), ("x", 0), (None, 0)])
def test_the_scope_of_ptrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, scope: int) -> None:
    monkeypatch.setattr(pyspy, "PTRACE_SCOPE", tmp_path / "scope")
    if content is not None:
        (tmp_path / "scope").write_text(content)
    assert pyspy._ptrace_scope() == scope
