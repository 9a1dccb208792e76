"""`diagnose` and `serve` name the cause for which a GPU waits for real processes, which a fake driver puts on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gpu_exporter.catalogue.failure_modes import host
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT, free_port, until

HOST_MODES = frozenset(mode.name for mode in host.MODES)
# A program whose main thread and workers do what its arguments say.
PROGRAM = """
import os, sys, time

def spin(share):
    while True:
        end = time.thread_time() + 0.02 * share
        while time.thread_time() < end:
            pass
        if share < 1:
            time.sleep(0.02 * (1 - share))

main, workers = float(sys.argv[1]), int(sys.argv[2])
for _ in range(workers):
    if os.fork() == 0:
        spin(1)
print("ready", flush=True)
spin(main) if main else time.sleep(1000)
"""
# The parent of a vfork is in uninterruptible sleep until its child ends, as if it waited for a disk.
BLOCKED = "#include <unistd.h>\nint main(void) { if (vfork() == 0) { sleep(1000); _exit(0); } return 0; }\n"
BLOCKED_WORKERS = """
import os, subprocess, sys, time
for _ in range(4):
    subprocess.Popen([sys.argv[1]])
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def waiting_gpu(tmp_path: Path) -> FakeDriver:
    """A GPU that is busy for a quarter of the time."""
    driver = FakeDriver(tmp_path / "driver")
    with driver.batch():
        for number, percent in {1: 24.0, 2: 1.0, 3: 0.0, 5: 0.0, 7: 0.0, 10: 0.0, 12: 0.0, 20: 5.0, 21: 5.0}.items():
            driver.set(f"Gpm.{number}", percent)
    return driver


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def blocked(tmp_path: Path) -> Sequence[str]:
    """A program with workers in uninterruptible sleep, which the load of the machine does not change."""
    worker = tmp_path / "worker"
    (tmp_path / "worker.c").write_text(BLOCKED)
    subprocess.run(["cc", str(tmp_path / "worker.c"), "-o", str(worker)], check=True)
    return [sys.executable, "-c", BLOCKED_WORKERS, str(worker)]


def job(stack: ExitStack, driver: FakeDriver, command: Sequence[str]) -> int:
    """Start a job on the GPU; return its PID."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    stack.callback(child.wait)
    stack.callback(os.killpg, child.pid, signal.SIGKILL)
    assert child.stdout is not None
    stack.callback(child.stdout.close)
    assert child.stdout.readline() == b"ready\n"
    with driver.batch():
        driver.set("ComputeRunningProcesses", f"{child.pid}:1000000000")
        driver.set("ProcessUtilization", f"{child.pid}:24")
    return child.pid


def program(main: float, workers: int) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(main), str(workers)]


def diagnosed(driver: FakeDriver, *options: str) -> dict[str, Any]:
    # A counter that stands still is known to after 5 s, and a busy machine lets the first of these pass.
    command = [sys.executable, "-m", "gpu_exporter", "diagnose", "--source", "nvml", "--for", "15s", "--json", *options]
    environment = {**os.environ, **driver.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    gpu: dict[str, Any] = json.loads(done.stdout)["gpus"][0]
    return gpu


def causes(gpu: dict[str, Any]) -> set[str]:
    print(json.dumps(gpu))  # what a failed test has seen
    return {mode["name"] for mode in gpu["modes"]} & HOST_MODES


def test_other_processes_use_its_cpu(waiting_gpu: FakeDriver, stack: ExitStack) -> None:
    """Three threads that want one CPU get a third of it each.

    Each has a session of its own: the kernel may share the CPU by session.
    """
    cpu = str(min(os.sched_getaffinity(0)))
    for _ in range(2):
        other = subprocess.Popen(
            ["taskset", "-c", cpu, sys.executable, "-c", "while True: pass"], start_new_session=True
        )
        stack.callback(other.wait)
        stack.callback(other.kill)
    pid = job(stack, waiting_gpu, ["taskset", "-c", cpu, *program(1, 0)])

    gpu = diagnosed(waiting_gpu)

    assert causes(gpu) == {"GpuHostCpuStarved"}
    assert gpu["process"]["pid"] == str(pid)
    assert gpu["process"]["command"].startswith(sys.executable)
    assert any(f"process {other.pid} (" in neighbour for neighbour in gpu["neighbours"])


def test_workers_that_wait_for_storage(waiting_gpu: FakeDriver, stack: ExitStack, blocked: Sequence[str]) -> None:
    """Workers in uninterruptible sleep, for which the main thread waits."""
    job(stack, waiting_gpu, blocked)

    assert causes(diagnosed(waiting_gpu)) == {"GpuLoaderStorageBound"}


def test_a_process_that_does_nothing_is_no_cause(waiting_gpu: FakeDriver, stack: ExitStack) -> None:
    """Whatever the GPU waits for, it is not this host's CPU or storage."""
    job(stack, waiting_gpu, program(0, 0))

    assert causes(diagnosed(waiting_gpu)) == set()


def test_a_busy_gpu_has_no_cause(waiting_gpu: FakeDriver, stack: ExitStack) -> None:
    """However busy its host is."""
    waiting_gpu.set("Gpm.1", 99.0)
    job(stack, waiting_gpu, program(1, 3))

    assert causes(diagnosed(waiting_gpu)) == set()


def test_a_recording_has_the_evidence(
    waiting_gpu: FakeDriver, stack: ExitStack, blocked: Sequence[str], tmp_path: Path
) -> None:
    """The same cause is found in it, on another machine and at another time."""
    path = tmp_path / "job.jsonl.gz"
    job(stack, waiting_gpu, blocked)
    options = ["--source", "nvml", "--host-evidence", "--interval", "1s", "--duration", "15s", "--out", str(path)]
    environment = {**os.environ, **waiting_gpu.environment}
    subprocess.run([sys.executable, "-m", "gpu_exporter", "record", *options], env=environment, check=True)
    command = [sys.executable, "-m", "gpu_exporter", "diagnose", "--recording", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert causes(json.loads(done.stdout)["gpus"][0]) == {"GpuLoaderStorageBound"}


def test_serve_exposes_evidence_only_if_asked(waiting_gpu: FakeDriver, stack: ExitStack, tmp_path: Path) -> None:
    """By GPU; processes stay hidden without `--processes`."""
    job(stack, waiting_gpu, program(0.5, 1))
    pages = []
    for options in ((), ("--host-evidence",), ("--host-evidence", "--processes")):
        address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "gpu_exporter", "serve", "--source", "nvml", "--address", address, *options]
        exporter = subprocess.Popen(command, env={**os.environ, **waiting_gpu.environment}, stderr=subprocess.DEVNULL)
        stack.callback(exporter.wait)
        stack.callback(exporter.kill)
        pages.append(_page(address, "gpu_host_worker_cpu_seconds_total{" if options else "gpu_info{"))
        exporter.terminate()

    assert "gpu_host_" not in pages[0]
    assert "gpu_process_" not in pages[1]
    assert "gpu_host_process_info{" not in pages[1]
    assert 'gpu_host_process_info{gpu="0"' in pages[2]
    assert "gpu_process_memory_used_bytes{" in pages[2]


def _page(address: str, wanted: str) -> str:
    """Return the first page with the text."""

    def page() -> str:
        try:
            with urlopen(f"http://{address}/metrics", timeout=LIMIT) as response:
                text: str = response.read().decode()
        except OSError:
            return ""
        return text if wanted in text else ""

    return until(page, 30, wanted)
