"""Records workloads whose limit, fault or loss is known, as ground truth for the diagnosis. Needs PyTorch with CUDA.

    python -m benchmarks.phases single --out FOLDER [--seconds 9] [--turn 0] [NAME ...]
    python -m benchmarks.phases jobs --out FOLDER [--seconds 9] [NAME ...]

`single` runs workloads of one GPU, other ones on each GPU at the same time, and writes one recording per GPU; `--turn`
gives each GPU the workloads of another. `jobs` runs workloads whose ranks have a GPU each, and writes one recording.
Beside each recording is a JSON file with the phases that ran, and the share of time that was injected by cause.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from benchmarks.exporter import free_port
from gpu_exporter.diagnosis.window import FAMILIES

START_SECONDS, SPARE_SECONDS = 120.0, 30.0


@dataclass(frozen=True)
class Phase:
    """Workloads that run at the same time, one for each process on a GPU. `env` is that of the processes."""

    name: str
    workloads: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def _phases(names: str) -> list[Phase]:
    return [Phase(name, (name,)) for name in names.split()]


MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/phases-mps", "CUDA_MPS_LOG_DIRECTORY": "/tmp/phases-mps-log"}
SINGLE = [
    Phase("no_process"),
    *_phases(
        "idle_context gemm_bf16 gemm_fp32 gemm_fp64 gemm_tf32 gemm_fp8 gemm_int8 gemm_small copy elementwise softmax "
        "gather one_thread tiny_kernels h2d_pinned d2h_pinned idle_after_load duty_25 duty_50 duty_75 duty_seconds "
        "short_gaps copy_then_compute copy_sleep_compute copy_back copy_pageable copy_overlapped train train_loader_30 "
        "checkpoint_pauses evaluation_items serving_10 serving_50 serving_100 decode_batch polling_kernel "
        "few_blocks_float few_blocks_integer few_blocks_chase all_blocks_integer sort scatter_add layer_norms "
        "attention_prefill convolutions alternating model_load"
    ),
    Phase("two_processes_gemm", ("gemm_bf16", "gemm_bf16")),
    Phase("two_processes_duty", ("duty_25", "duty_25")),
    Phase("mps_two_decoders", ("serving_100", "serving_100"), MPS),
]
JOBS = [
    *_phases(
        "ddp_balanced ddp_late_5ms ddp_late_20ms ddp_late_100ms ddp_all_late ddp_jitter ddp_launch_bound "
        "ddp_launch_bound_late ddp_slow_15 ddp_slow_40 ddp_slow_150 bulk_even bulk_slow_50 bulk_slow_200 "
        "bulk_late_10ms tensor_parallel tensor_parallel_decode tensor_parallel_graph tensor_parallel_serving "
        "pipeline_even pipeline_uneven expert_parallel fsdp reduce_4k reduce_1m reduce_1g evaluation_on_last two_jobs "
        "peer_copies hang_4k hang_1m hang_64m hang_1g hang_gather hang_receive"
    ),
    *(Phase(f"hang_1m_{protocol}", ("hang_1m",), {"NCCL_PROTO": protocol}) for protocol in ("LL", "LL128", "Simple")),
    Phase("hang_crossed", ("hang_crossed",), {"NCCL_PROTO": "Simple"}),  # never ends: its processes are killed
]


class Process:
    """A worker, which answers one request at a time."""

    def __init__(self, arguments: Sequence[int], env: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.phases.worker", *map(str, arguments)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **env,
            },
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put('{"error": "the process ended"}')

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._answers.put('{"error": "the process ended"}')

    def answer(self, seconds: float) -> dict[str, Any]:
        """Return the answer to a request."""
        try:
            answer: dict[str, Any] = json.loads(self._answers.get(timeout=seconds))
        except queue.Empty:
            return {"error": f"no answer for {seconds:.0f} s"}
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class Crew:
    """The processes that run phases together; started when needed, and again after one failed."""

    def __init__(self, places: Sequence[Sequence[int]]) -> None:
        self._places = places
        self._processes: dict[tuple[tuple[str, str], ...], list[Process]] = {}

    def run(self, phase: Phase, workloads: Sequence[str], seconds: float) -> dict[str, Any]:
        """Run a phase, one workload for each place; return when it ran and the shares injected by each process."""
        if not workloads:
            begin = time.time()
            time.sleep(seconds)
            return {"phase": phase.name, "begin": begin, "end": time.time(), "injected": [{}]}
        env = tuple(phase.env.items())
        processes = self._processes.setdefault(env, [])
        while len(processes) < len(workloads):
            processes.append(Process(self._places[len(processes)], phase.env))
        used = processes[: len(workloads)]
        for process, workload in zip(used, workloads, strict=True):
            process.ask({"prepare": workload, "seconds": seconds})
        answers = [process.answer(START_SECONDS) for process in used]
        if not any("error" in answer for answer in answers):
            for process in used:
                process.ask({"go": time.time() + 0.2})
            answers = [process.answer(seconds * 2 + SPARE_SECONDS) for process in used]
        if errors := [answer["error"] for answer in answers if "error" in answer]:
            self.end()
            return {"phase": phase.name, "error": errors[0]}
        begin, end = max(answer["begin"] for answer in answers), min(answer["end"] for answer in answers)
        return {"phase": phase.name, "begin": begin, "end": end, "injected": [each["injected"] for each in answers]}

    def end(self) -> None:
        """Kill all processes."""
        for process in (process for processes in self._processes.values() for process in processes):
            process.close()
        self._processes.clear()


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Record all GPUs to a file meanwhile."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.phases.recorder", str(path)])
    try:
        time.sleep(3)
        yield
    finally:
        process.terminate()
        process.wait(60)


def label(raw: Path, target: Path, phases: Sequence[Mapping[str, Any]], gpus: Sequence[int]) -> None:
    """Write the ticks of the phases and GPUs, each with its phase, and only the values that signals are made of."""
    with gzip.open(raw, "rt") as lines, gzip.open(target, "wt") as out:
        header = json.loads(next(lines))
        header["gpus"] = [gpu for gpu in header["gpus"] if gpu["gpu"] in gpus]
        out.write(json.dumps(header, separators=(",", ":")) + "\n")
        for line in lines:
            tick = json.loads(line)
            names = [phase["phase"] for phase in phases if phase["begin"] <= tick["t"] <= phase["end"]]
            if names and tick["gpu"] in gpus:
                tick["samples"] = {key: value for key, value in tick["samples"].items() if key.split("{")[0] in KEPT}
                tick["phase"] = names[0]
                out.write(json.dumps(tick, separators=(",", ":")) + "\n")


KEPT = frozenset(FAMILIES) | {"DCGM_FI_DEV_POWER_USAGE_INSTANT", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"}


def single(chosen: argparse.Namespace, gpus: int) -> list[list[dict[str, Any]]]:
    """Run the workloads of one GPU, on each GPU a part of them; return the results by GPU."""
    phases = [phase for phase in SINGLE if not chosen.names or phase.name in chosen.names]
    results: list[list[dict[str, Any]]] = [[] for _ in range(gpus)]

    def of_gpu(gpu: int) -> None:
        crew = Crew([[gpu], [gpu]])
        first, *rest = phases
        for phase in [first, *rest[(gpu + chosen.turn) % gpus :: gpus]]:
            results[gpu].append(crew.run(phase, phase.workloads, chosen.seconds))
            print(f"GPU {gpu}: {results[gpu][-1]}", flush=True)
        crew.end()

    threads = [threading.Thread(target=of_gpu, args=(gpu,)) for gpu in range(gpus)]
    with ExitStack() as stack:
        if shutil.which("nvidia-cuda-mps-control"):
            stack.enter_context(mps())
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


@contextmanager
def mps() -> Iterator[None]:
    """Run the daemon of MPS for processes with its environment. It shares GPUs only among those."""
    for folder in MPS.values():
        Path(folder).mkdir(exist_ok=True)
    env = {**os.environ, **MPS}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env=env, check=False)
    yield
    subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=env, check=False, timeout=30)


def together(chosen: argparse.Namespace, gpus: int) -> list[list[dict[str, Any]]]:
    """Run the workloads of jobs, a rank on each GPU; return the results."""
    results: list[dict[str, Any]] = []
    crews: dict[tuple[tuple[str, str], ...], Crew] = {}
    for phase in JOBS:
        if chosen.names and phase.name not in chosen.names:
            continue
        port, env = free_port(), tuple(phase.env.items())
        if env not in crews:
            for crew in crews.values():
                crew.end()
            crews[env] = Crew([[gpu, gpu, gpus, port] for gpu in range(gpus)])
        results.append(crews[env].run(phase, [*phase.workloads] * gpus, chosen.seconds))
        print(results[-1], flush=True)
    for crew in crews.values():
        crew.end()
    return [results]


def main() -> int:
    """Record, run and write; return 1 if a workload failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("suite", choices=("single", "jobs"))
    options.add_argument("names", nargs="*", metavar="NAME", help="phases to run (default: all)")
    options.add_argument("--out", type=Path, required=True, help="folder of the recordings")
    options.add_argument("--seconds", type=float, default=9.0, help="length of a phase (default: %(default)s)")
    options.add_argument("--turn", type=int, default=0, help="by how many GPUs the workloads of `single` move on")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    pynvml.nvmlInit()
    gpus, model = pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    print(f"{gpus} x {model}, kernel {platform.release()}", flush=True)
    raw = chosen.out / "raw.jsonl.gz"
    with recording(raw):
        results = (single if chosen.suite == "single" else together)(chosen, gpus)
    name = model.split()[1].lower() if " " in model else model.lower()
    for number, phases in enumerate(results):
        of = [number] if chosen.suite == "single" else list(range(gpus))
        stem = f"{name}_{chosen.suite}" + (f"_{chosen.turn}{number}" if chosen.suite == "single" else f"_x{gpus}")
        ran = [phase for phase in phases if "error" not in phase]
        label(raw, chosen.out / f"{stem}.jsonl.gz", ran, of)
        (chosen.out / f"{stem}.json").write_text(json.dumps(phases, indent=1) + "\n")
    raw.unlink()
    return int(any("error" in phase for phases in results for phase in phases))


if __name__ == "__main__":
    sys.exit(main())
