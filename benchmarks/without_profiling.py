"""Compares what two exporters say of one GPU at the same time: one with its profiling counters, one without them.

    python -m benchmarks.without_profiling [--seconds 20] [--phases train,copy,…] [--json FILE]

The driver of the second exporter says that the GPU has no profiling counters, as those of most GPUs do; all else is
real. Each phase is a workload of `benchmarks.phases`. Prints the class and the failure modes that `diagnose` gives with
each, and what each exporter costs, in percent of a core. Exit code 1 if a class that is given without the counters is
another one than with them. Needs PyTorch with CUDA.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import pynvml

from benchmarks.exporter import Exporter, exporter_command, free_port, running
from benchmarks.harness import begin, exit_code, options
from benchmarks.phases.__main__ import SPARE_SECONDS, START_SECONDS, Process
from gpu_exporter.cli.main import main as gpu_exporter
from tests.without_profiling.compare import stands_for

PHASES = (
    "no_process,gemm_bf16,gemm_fp32,copy,softmax,one_thread,tiny_kernels,h2d_pinned,d2h_pinned,duty_25,duty_75,"
    "copy_pageable,train,train_loader_30,serving_50,few_blocks_float"
)
WITHOUT = "--without-profiling"
NO_PROCESS = "no_process"
# Until the first page has all values, and until a page no longer shows what was before the workload.
FIRST_SECONDS, SETTLE_SECONDS = 8.0, 2.0


@dataclass(frozen=True)
class Verdict:
    """The class of a GPU, empty if it is unknown, and its failure modes."""

    name: str
    quality: str
    modes: Sequence[str]


def verdict_of(page: Mapping[str, Any]) -> Verdict:
    """Return the verdict on the first GPU of `diagnose --json`."""
    gpu = page["gpus"][0]
    return Verdict(gpu["class"] or "", gpu["quality"], sorted(mode["name"] for mode in gpu["modes"]))


def diagnosed(exporter: Exporter, seconds: float) -> Verdict:
    """Watch an exporter for a while. Raises RuntimeError if `diagnose` fails."""
    command = ["-m", "gpu_exporter", "diagnose", "--json", "--for", f"{seconds:g}s"]
    url = f"http://127.0.0.1:{exporter.port}"
    done = subprocess.run([sys.executable, *command, "--url", url], capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(f"diagnose, exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    return verdict_of(json.loads(done.stdout))


def agree(exact: Verdict, approximate: Verdict) -> bool:
    """Return whether the class without profiling counters is unknown, or stands for the one with them."""
    return not approximate.name or exact.name in stands_for(approximate.name)


def measure(phases: Sequence[str], seconds: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Return a row for each phase, and what each exporter cost, as a share of a core."""
    ports = [free_port(), free_port()]
    commands = [exporter_command(port) for port in ports]
    commands[1][1:3] = ["-m", "benchmarks.without_profiling", WITHOUT]
    rows = []
    with (
        running(commands[0], ports[0]) as exact,
        running(commands[1], ports[1]) as approximate,
        closing(Process([0], {})) as worker,
    ):
        both = (exact, approximate)
        time.sleep(FIRST_SECONDS)
        began, before = time.monotonic(), [each.cpu_seconds() for each in both]
        for name in phases:
            rows.append({"phase": name, **watched(name, worker, both, seconds)})
            print(shown(rows[-1]), flush=True)
        elapsed = time.monotonic() - began
        used = [(each.cpu_seconds() - start) / elapsed for each, start in zip(both, before, strict=True)]
    return rows, dict(zip(("with", "without"), used, strict=True))


def watched(name: str, worker: Process, exporters: Sequence[Exporter], seconds: float) -> dict[str, Any]:
    """Run a workload; return the verdicts of the exporter with the counters and of the one without."""
    if name != NO_PROCESS:
        longer = seconds + 2 * SETTLE_SECONDS  # `diagnose` takes time to start
        worker.ask({"prepare": name, "seconds": longer})
        if error := worker.answer(START_SECONDS).get("error"):
            return {"error": error}
        worker.ask({"go": time.time()})
    time.sleep(SETTLE_SECONDS)
    with ThreadPoolExecutor() as pool:
        exact, approximate = pool.map(diagnosed, exporters, (seconds, seconds))
    if name != NO_PROCESS and (error := worker.answer(seconds + SPARE_SECONDS).get("error")):
        return {"error": error}
    return {"with": asdict(exact), "without": asdict(approximate), "agree": agree(exact, approximate)}


def shown(row: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    if "error" in row:
        return f"{row['phase']:<18}{row['error']}"
    names = [f"{row[side]['name'] or '-'} {' '.join(row[side]['modes'])}" for side in ("with", "without")]
    return f"{row['phase']:<18}{names[0]:<58} {names[1]:<50} {'' if row['agree'] else 'DIFFERENT'}"


def main() -> int:
    """Print and write the table."""
    parser = options(__name__, __doc__, written=False)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each phase is watched")
    parser.add_argument("--phases", default=PHASES, help="names of phases, separated by commas")
    chosen = parser.parse_args()
    run = begin(__name__, chosen)
    print(f"{'phase':<18}{'with profiling counters':<58} without")
    rows, cpu = measure(chosen.phases.split(","), chosen.seconds)
    print(f"CPU of a core: with {cpu['with']:.2%}, without {cpu['without']:.2%}")
    run.write({"phases": rows, "cpu": cpu})
    return exit_code([f"{row['phase']}: another class" for row in rows if not row.get("agree", True)])


if __name__ == "__main__":
    if sys.argv[1:2] == [WITHOUT]:
        refused = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        sys.argv = ["gpu-exporter", *sys.argv[2:]]
        with mock.patch.object(pynvml, "nvmlGpmQueryDeviceSupport", side_effect=refused):
            gpu_exporter()
    sys.exit(main())
