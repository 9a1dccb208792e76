"""What the process with the context of a GPU answers, and where it runs."""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_exporter.active_checks import child
from gpu_exporter.active_checks.arithmetic import WrongResult
from gpu_exporter.active_checks.child import MEASUREMENTS, _answer, _move_near, _Worker
from gpu_exporter.active_checks.cuda import CudaError
from tests.support.fakes.libcuda import Libcuda

PCI = "00000000:06:00.0"


@pytest.fixture
def worker(cuda: Libcuda, monkeypatch: pytest.MonkeyPatch) -> _Worker:
    """Return a worker on a machine of two GPUs, that moves to no other CPU."""
    cuda.gpus = 2
    monkeypatch.setattr(child, "_move_near", lambda pci: None)
    return _Worker()


def test_a_gpu_is_opened_and_measured(cuda: Libcuda, worker: _Worker) -> None:
    """It is warm then. The driver is loaded once."""
    assert _answer(worker, {"do": "open", "pci": "00000000:07:00.0"}) == {}
    assert {launch.name for launch in cuda.launches} == {"memory_read"}
    assert {launch.device for launch in cuda.launches} == {1}
    answer = _answer(worker, {"do": "memory_copy"})
    assert (answer["value"], answer["notes"]) == (pytest.approx(2e12, rel=1e-3), [])
    assert cuda.contexts == {1: 1}
    assert len(cuda.named("cuInit")) == 1
    worker.close()
    assert cuda.contexts == {1: 0}


def test_links_are_opened_and_measured(cuda: Libcuda, worker: _Worker) -> None:
    assert _answer(worker, {"do": "links", "pcis": {"4": PCI, "7": "00000000:07:00.0"}}) == {}
    answer = _answer(worker, {"do": "pair", "from": 4, "to": 7})
    assert answer == {"value": pytest.approx(1e12, rel=1e-3), "direct": True}
    assert [pair["from"] for pair in _answer(worker, {"do": "ring", "gpus": [7, 4]})["pairs"]] == [7, 4]
    worker.close()
    assert cuda.contexts == {0: 0, 1: 0}


def test_long_requests_have_their_time(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LONG", {"memory_test": lambda bench, seconds: {"passes": seconds}})
    _answer(worker, {"do": "open", "pci": PCI})
    assert _answer(worker, {"do": "memory_test", "seconds": 2.5}) == {"passes": 2.5}


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "memory_copy"},
        {"do": "pair", "from": 0, "to": 1},
        {"do": "ring", "gpus": [0]},
        {"do": "memory_test", "seconds": 1.0},
        {},
    ],
)
def test_nothing_is_open(worker: _Worker, request_: Mapping[str, Any]) -> None:
    answer = _answer(worker, request_)
    assert answer == {"error": f"request: {request_}: unknown, or nothing is open", "lost": False}


@pytest.mark.parametrize("name", ["sustained", "x", "open"])
def test_unknown_requests(worker: _Worker, name: str) -> None:
    _answer(worker, {"do": "open", "pci": PCI})
    assert "unknown" in _answer(worker, {"do": name})["error"]
    assert "unknown" in _answer(worker, {"do": "memory_copy_", "seconds": 1.0})["error"]


def test_the_first_of_several_failures(worker: _Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, the calls that clean up fail, too."""

    def fails(bench: object) -> dict[str, Any]:
        try:
            raise CudaError("cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS")
        finally:
            raise CudaError("cuMemFree_v2", "CUDA_ERROR_OUT_OF_MEMORY")

    def wrong(bench: object) -> dict[str, Any]:
        raise WrongResult("1 of 2 blocks")

    _answer(worker, {"do": "open", "pci": PCI})
    monkeypatch.setattr(child, "MEASUREMENTS", {**MEASUREMENTS, "fp32": fails, "bf16": wrong})
    assert _answer(worker, {"do": "fp32"}) == {"error": "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS", "lost": True}
    assert _answer(worker, {"do": "bf16"}) == {"error": "1 of 2 blocks", "wrong": True}


@pytest.mark.parametrize(
    ("listed", "allowed", "cpus"),
    [
        ("0-2,8\n", {0, 1, 2, 3, 8, 9}, {0, 1, 2, 8}),
        ("5\n", {5, 6}, {5}),
        ("0-3", {2, 9}, {2}),
        ("0-3", {8}, None),  # it may use none of them
        ("", {8}, None),
        ("garbage", {8}, None),
        (None, {8}, None),
    ],
)
def test_cpus_near_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str | None, allowed: set[int], cpus: set[int] | None
) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:0a:00.0"
    device.mkdir(parents=True)
    if listed is not None:
        (device / "local_cpulist").write_text(listed)
    moved: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(child, "Path", lambda path: tmp_path / path.removeprefix("/"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0: allowed}[pid])
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, to: moved.append((pid, to)))
    _move_near("00000000:0A:00.0")
    assert moved == ([(0, cpus)] if cpus else [])


def test_a_process_answers_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library prints goes to stderr. It ends with its parent, and releases the GPU when its input ends."""
    events: list[object] = []

    class Worker:
        def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
            events.append(request)
            return {"value": len(events)}

        def close(self) -> None:
            events.append("closed")
            raise CudaError("cuDevicePrimaryCtxRelease_v2", "CUDA_ERROR_UNKNOWN")

    answers = tmp_path / "answers"
    descriptor = os.open(answers, os.O_WRONLY | os.O_CREAT)
    library = SimpleNamespace(prctl=lambda *arguments: events.append(arguments))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    files = SimpleNamespace(
        fdopen=os.fdopen, dup=lambda of: {1: descriptor}[of], dup2=lambda *pair: events.append(pair)
    )
    monkeypatch.setattr(child, "os", files)
    monkeypatch.setattr(child, "_Worker", Worker)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"do": "a"}\n{"do": "b"}\n'))
    child.main()
    assert events == [(1, signal.SIGKILL), (2, 1), {"do": "a"}, {"do": "b"}, "closed"]
    assert [json.loads(line) for line in answers.read_text().splitlines()] == [{"value": 3}, {"value": 4}]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
