"""What the analysis of traces is asked for and answers, without its process; and what is said about traces."""

from __future__ import annotations

import base64
import io
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.profiling import analysis, analysis_child, tracing
from gpu_exporter.profiling.kineto_daemon import TraceOptions
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.records import KernelTime, ProcessStacks, StackKind
from gpu_exporter.profiling.trace_session import TakenTrace, TraceSession
from tests.support.traces import SyntheticTrace

MIB = 1 << 20
PROCESSES = [Process(pid, 1, 0, "train.py", pid, gpus) for pid, gpus in ((7, (0,)), (8, (1,)), (9, (2, 3)), (10, (4,)))]
UUIDS = {index: f"GPU-{index}" for index in range(4)}


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[list[TakenTrace]]:
    """Return open files of 100 MiB of two processes."""
    taken = []
    for process in PROCESSES[:2]:
        with open(tmp_path / str(process.pid), "w+b") as file:
            file.truncate(100 * MIB)
            taken.append(TakenTrace(process, os.dup(file.fileno())))
    yield taken
    for trace in taken:
        os.close(trace.descriptor)


class Child:
    """A process of the analysis that prints an answer, and something to stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: bytes = b"") -> None:
        self.answer, self.said, self.events = answer, said, list[str]()
        self.stdout = io.BytesIO(answer)
        self.timers: list[float] = []
        monkeypatch.setattr(subprocess, "Popen", self.started)
        timer = threading.Timer

        def made(seconds: float, function: Any) -> threading.Timer:
            self.timers.append(seconds)
            return timer(seconds, function)

        monkeypatch.setattr(threading, "Timer", made)

    def started(self, command: Sequence[str], **options: Any) -> Child:
        assert command[:3] == [sys.executable, "-m", "gpu_exporter.profiling.analysis_child"]
        self.request, self.options = json.loads(command[3]), options
        options["stderr"].write(self.said)
        return self

    def kill(self) -> None:
        self.events.append("kill")

    def wait(self) -> None:
        self.events.append("wait")


def test_a_request(monkeypatch: pytest.MonkeyPatch, traces: list[TakenTrace]) -> None:
    """The child gets the open files, some time, and nothing else; it is gone in the end."""
    answer = {"text": "Verdict\u2026", "pprof": base64.b64encode(b"\x1f\x8b").decode()}
    child = Child(monkeypatch, json.dumps(answer).encode())
    found = analysis.analyze(traces, {"text", "pprof"})
    assert found == {"text": "Verdict\u2026".encode(), "pprof": b"\x1f\x8b"}
    one, other = (trace.descriptor for trace in traces)
    assert child.request["traces"] == {f"/proc/self/fd/{one}": "process 7", f"/proc/self/fd/{other}": "process 8"}
    assert child.request["outputs"] == ["pprof", "text"]
    seconds = child.request["cpu_seconds"]
    # 10 s for 100 MB was measured on another machine; a slow or busy one has several times that.
    assert analysis.CPU_SECONDS + 200 / 100 * 10 <= seconds <= 10 * (analysis.CPU_SECONDS + 200 / 100 * 10)
    assert child.timers == [4 * seconds]
    assert child.options["pass_fds"] == [one, other]
    assert (child.options["stdin"], child.options["cwd"]) == (subprocess.DEVNULL, "/")
    assert set(child.options["env"]) == {"PYTHONPATH", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "LC_ALL"}
    assert all(os.path.isabs(entry) for entry in child.options["env"]["PYTHONPATH"].split(os.pathsep))
    assert child.options["env"]["OMP_NUM_THREADS"] == child.options["env"]["OPENBLAS_NUM_THREADS"] == "1"
    assert child.events[-2:] == ["kill", "wait"]
    assert child.stdout.closed


@pytest.mark.parametrize(
    ("answer", "said", "why"),
    [
        (b'{"error": "process 7: bad\\u001b"}', b"", "process 7: bad\ufffd"),
        (b"", b"", "it exceeded its limits of time or memory: use a shorter --seconds, or --no-stacks"),
        (b"not json", b"Traceback\nMemoryError: x\n\n", "MemoryError: x: use a shorter --seconds, or --no-stacks"),
        (b'{"text": 3}', b"", "it exceeded its limits"),
        (b'{"text": "' + b"x" * 100 + b'"}', b"", "it exceeded its limits"),
    ],
)
def test_answers_that_are_no_use(
    monkeypatch: pytest.MonkeyPatch, traces: list[TakenTrace], answer: bytes, said: bytes, why: str
) -> None:
    Child(monkeypatch, answer, said)
    with pytest.raises(GpuExporterError) as error:
        analysis.analyze(traces, {"text"}, 100)
    assert str(error.value).startswith(f"the trace cannot be analysed: {why}")


def test_an_answer_of_the_most_bytes(monkeypatch: pytest.MonkeyPatch, traces: list[TakenTrace]) -> None:
    answer = b'{"text": "x"}'
    Child(monkeypatch, answer)
    assert analysis.analyze(traces, {"text"}, len(answer)) == {"text": b"x"}


@pytest.mark.parametrize(("content", "suffix"), [(b"\x1f\x8bx", ".json.gz"), (b"{}", ".json"), (b"\x1f", ".json")])
def test_kept_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, suffix: str) -> None:
    """The name says whether it is compressed; the beginning is kept if the job still writes to it."""
    (tmp_path / "x").write_bytes(content)
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    taken = [TakenTrace(PROCESSES[0], descriptor)]
    assert analysis.keep(taken, tmp_path / "a/b") == [tmp_path / f"a/b/trace_7{suffix}"]
    assert (tmp_path / "a/b").stat().st_mode & 0o077 == 0
    assert (tmp_path / f"a/b/trace_7{suffix}").read_bytes() == content
    monkeypatch.setattr(analysis, "MOST_TRACE_BYTES", 5 * len(content) // 2)
    monkeypatch.setattr(analysis, "BLOCK_BYTES", 1)
    (tmp_path / "x").write_bytes(content * 4)
    (copy,) = analysis.keep(taken, tmp_path / "c")
    assert copy.read_bytes() == (content * 4)[: 5 * len(content) // 2]
    os.close(descriptor)


# --- the child ------------------------------------------------------------------------------------------------------


def trace_of(path: Path, *, kernels: int = 2, rank: int | None = None) -> Path:
    trace = SyntheticTrace(rank=rank)
    trace.host("train.py(3): step", 0, 1000)
    for number in range(kernels):
        trace.device(100 + 300 * number, 100)
    return trace.write(path)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child be this process, with the limits that it has."""
    monkeypatch.setattr(analysis_child, "_limit", lambda seconds: None)


def answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], names: Mapping[str, str], *outputs: str
) -> dict[str, str]:
    """Return what the child prints."""
    request = {"traces": names, "outputs": outputs, "cpu_seconds": 7}
    monkeypatch.setattr(sys, "argv", ["child", json.dumps(request)])
    assert analysis_child.main() == 0
    answer: dict[str, str] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.usefixtures("child")
def test_all_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Only those that were asked for, with the names of traces instead of paths."""
    names = {str(trace_of(tmp_path / "one.json")): "process 7"}
    outputs = ("text", "json", "folded", "pprof", "device", "report")
    answer = answered(monkeypatch, capsys, names, *outputs)
    assert tuple(answer) == outputs
    assert answer["text"].startswith("Verdict: ")
    assert json.loads(answer["json"])["ranks"][0]["file"] == "process 7"
    assert answer["folded"].endswith("\n")
    assert base64.b64decode(answer["pprof"])[:2] == b"\x1f\x8b"
    assert "process 7" in answer["report"]
    assert str(tmp_path) not in "".join(answer.values())
    assert list(answered(monkeypatch, capsys, names, "text")) == ["text"]


@pytest.mark.usefixtures("child")
def test_the_time_of_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By trace, also if ranks are numbered in another order."""
    names = {
        str(trace_of(tmp_path / "one.json", rank=1)): "process 7",
        str(trace_of(tmp_path / "two.json", kernels=3, rank=0)): "process 8",
    }
    devices = {each["of"]: each for each in json.loads(answered(monkeypatch, capsys, names, "device")["device"])}
    assert {of: sum(device["kernels"].values()) for of, device in devices.items()} == {
        "process 7": pytest.approx(200e-6),
        "process 8": pytest.approx(300e-6),
    }
    stacks, left_out = devices["process 8"]["gpu"]
    assert (sum(stacks.values()), left_out) == (pytest.approx(300e-6), 0.0)
    assert all(stack.startswith("train.py(3): step;") for stack in stacks)
    idle, _ = devices["process 7"]["idle"]
    assert sum(idle.values()) > 0


@pytest.mark.usefixtures("child")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "process 7: the file is empty"),
        (None, "[Errno 2] No such file or directory: 'process 7'"),
    ],
)
def test_traces_that_cannot_be_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    why: str,
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    answer = answered(monkeypatch, capsys, {str(path): "process 7"}, "text")
    assert list(answer) == ["error"]
    assert answer["error"].startswith(why)
    assert str(tmp_path) not in answer["error"]


@pytest.mark.usefixtures("child")
def test_traces_without_gpu_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One with work is enough."""
    names = {str(trace_of(tmp_path / "one.json", kernels=0)): "process 7"}
    assert answered(monkeypatch, capsys, names, "text") == {
        "error": f"process 7: {analysis_child.NO_GPU_WORK}",
    }
    names[str(trace_of(tmp_path / "two.json"))] = "process 8"
    assert list(answered(monkeypatch, capsys, names, "text")) == ["text"]


@pytest.mark.usefixtures("child")
def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(names: Mapping[str, str], outputs: frozenset[str]) -> dict[str, Any]:
        raise MemoryError

    monkeypatch.setattr(analysis_child, "_answer", fails)
    answer = answered(monkeypatch, capsys, {}, "text")
    assert answer == {"error": "the traces need too much memory: use a shorter --seconds, or --no-stacks"}


def test_limits_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the CPU as requested. The child may start no process, write no file and leave no core."""
    limits: dict[int, tuple[int, int]] = {}
    nice: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(sys, "argv", ["child", json.dumps({"traces": {}, "outputs": [], "cpu_seconds": 7.9})])
    monkeypatch.setattr(analysis_child, "_answer", lambda names, outputs: {"limited": len(limits)})
    monkeypatch.setattr(sys, "stdout", printed := io.StringIO())
    analysis_child.main()
    assert json.loads(printed.getvalue()) == {"limited": 5}
    assert limits == {
        resource.RLIMIT_AS: (analysis_child.MOST_MEMORY,) * 2,
        resource.RLIMIT_CPU: (7, 7),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NPROC: (0, 0),
    }
    assert 1 << 30 <= analysis_child.MOST_MEMORY <= 8 << 30
    assert 0 < nice[0] < 20


# --- what is said about traces --------------------------------------------------------------------------------------


def device_of(pid: int) -> dict[str, Any]:
    return {
        "of": f"process {pid}",
        "kernels": {"gemm": pid / 3, "no class": 1.0, "attention": 2.0},
        "gpu": ({"a;b": 1.0}, 0.25),
        "idle": ({"c": 2.0} if pid != 8 else {}, 0.5),
    }


class Analysed:
    """An analysis of which some traces are of no use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bad: Collection[int] = ()) -> None:
        self.bad, self.asked = bad, list[tuple[list[int], set[str], int]]()
        monkeypatch.setattr(analysis, "analyze", self.analyze)

    def analyze(
        self, taken: Sequence[TakenTrace], outputs: Collection[str], most: int = analysis.MOST_ANSWER_BYTES
    ) -> Mapping[str, bytes]:
        pids = [trace.process.pid for trace in taken]
        self.asked.append((pids, set(outputs), most))
        if bad := [pid for pid in pids if pid in self.bad]:
            raise GpuExporterError(f"process {bad[0]} is bad")
        return {"text": b"text", "device": json.dumps([device_of(pid) for pid in pids]).encode()}


def traced(
    monkeypatch: pytest.MonkeyPatch, pids: Collection[int], outputs: Sequence[str] = ("text",)
) -> tracing.Traced:
    """Return what traces of all processes say, of which these have one; process 9 was asked, but has failed."""

    def recorded(session: TraceSession) -> None:
        for process in session.processes:
            if process.pid in pids:
                session.taken.append(TakenTrace(process, os.open("/dev/null", os.O_RDONLY)))
            else:
                session.failed.append((process, GpuExporterError("no trace")))

    monkeypatch.setattr(tracing, "recorded", recorded)
    files = HostFiles(Path("/nowhere"), Path("/nowhere"))
    before = len(os.listdir("/proc/self/fd"))
    found = tracing.trace(PROCESSES, TraceOptions(), files, UUIDS, outputs)
    assert len(os.listdir("/proc/self/fd")) == before
    return found


def why(found: tracing.Traced) -> dict[int, str]:
    return {process.pid: str(error) for process, error in found.failed}


def test_what_traces_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of processes with one GPU that is known, and of classes that are; stacks where there are any."""
    analysed = Analysed(monkeypatch)
    found = traced(monkeypatch, {7, 8, 9, 10})
    assert analysed.asked == [([7, 8, 9, 10], {"text", "device"}, tracing.MOST_BYTES)]
    assert found.outputs == {"text": b"text"}
    assert [process.pid for process in found.taken] == [7, 8, 9, 10]
    assert found.kernels == (
        KernelTime("GPU-0", "attention", 2.0),
        KernelTime("GPU-0", "gemm", 2.333333),
        KernelTime("GPU-1", "attention", 2.0),
        KernelTime("GPU-1", "gemm", 2.666667),
    )
    assert found.stacks[:3] == [
        ProcessStacks(7, (0,), {"a;b": 1.0}, 0.25, StackKind.GPU),
        ProcessStacks(7, (0,), {"c": 2.0}, 0.5, StackKind.IDLE),
        ProcessStacks(8, (1,), {"a;b": 1.0}, 0.25, StackKind.GPU),
    ]
    assert not found.failed
    assert traced(monkeypatch, {7}, ["device", "missing"]).outputs.keys() == {"device"}


@pytest.mark.parametrize(
    ("bad", "left", "analyses"),
    [({8}, [7, 10], [[7, 8, 10], [7], [8], [10], [7, 10]]), ({7, 8, 10}, [], [[7, 8, 10], [7], [8], [10]])],
)
def test_a_trace_that_cannot_be_analysed_spoils_no_other(
    monkeypatch: pytest.MonkeyPatch, bad: set[int], left: list[int], analyses: list[list[int]]
) -> None:
    analysed = Analysed(monkeypatch, bad)
    found = traced(monkeypatch, {7, 8, 10})
    assert [pids for pids, _, _ in analysed.asked] == analyses
    assert [process.pid for process in found.taken] == left
    assert why(found) == {9: "no trace", **{pid: f"process {pid} is bad" for pid in bad}}
    assert bool(found.outputs) is bool(left)


def test_the_only_trace_cannot_be_analysed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried again."""
    analysed = Analysed(monkeypatch, {7})
    found = traced(monkeypatch, {7})
    assert len(analysed.asked) == 1
    assert why(found)[7] == "process 7 is bad"


def test_no_process_has_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    analysed = Analysed(monkeypatch)
    found = traced(monkeypatch, set())
    assert not analysed.asked
    assert (found.outputs, list(found.taken), found.kernels, list(found.stacks)) == ({}, [], (), [])
    assert list(why(found)) == [7, 8, 9, 10]
    assert not found.requested


def test_an_answer_that_is_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes fail, each once."""
    monkeypatch.setattr(analysis, "analyze", lambda *arguments: {"device": b"{"})
    found = traced(monkeypatch, {7, 8})
    assert sorted(why(found)) == [7, 8, 9, 10]
    assert why(found)[9] == "no trace"
    assert "no trace" not in why(found)[7]
    assert not found.taken


@pytest.mark.parametrize(
    ("given", "environments", "folder", "checked"),
    [
        (Path("/mine"), [b"KINETO_IPC_SOCKET_DIR=/theirs"], Path("/mine"), False),
        (None, [b"KINETO_IPC_SOCKET_DIR=/theirs"], Path("/theirs"), True),
        (None, [b"A=1"], None, False),
    ],
)
def test_the_folder_of_the_socket(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: Path | None,
    environments: list[bytes],
    folder: Path | None,
    *,
    checked: bool,
) -> None:
    """Only one that a job has named must be its own."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/environ").write_bytes(environments[0] + b"\0")
    session = TraceSession([PROCESSES[0]], TraceOptions(), HostFiles(tmp_path, tmp_path), tmp_path)
    used: list[object] = []

    class Socket:
        def __init__(self, path: Path | None) -> None:
            used.append(path)

        def __enter__(self) -> Socket:
            return self

        def __exit__(self, *error: object) -> None:
            used.append("closed")

    monkeypatch.setattr(tracing, "DaemonSocket", Socket)
    monkeypatch.setattr(tracing, "check_socket_folder", lambda path, processes: used.append((path, len(processes))))
    monkeypatch.setattr(TraceSession, "run", lambda session, socket: used.append("run"))
    tracing.recorded(session, given)
    assert used == [*([(folder, 1)] if checked else []), folder, "run", "closed"]
