"""Measures how well active checks repeat, and how close they come to what PyTorch reaches.

    PYTHONPATH=. python3 benchmarks/active_check.py [--runs 10] [--json active_check.json]

It runs `gpu-exporter check --active` several times, and PyTorch after every third run if it is installed. It prints the
median and the spread (highest minus lowest, as a share of the median) of each quantity and GPU, its ratio to PyTorch,
and how long a run takes. With `--competitor N`, another process computes on GPU N meanwhile, which makes it slow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZE, COPY_BYTES, HOST_BYTES = 8192, 2 << 30, 256 << 20
REPEAT = 20


def check(*arguments: str) -> dict[str, Any]:
    """Return the JSON of one check, with its exit code and its duration."""
    command = [sys.executable, "-m", "gpu_exporter", "check", "--active", "--json", *arguments]
    start = time.monotonic()
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    took = time.monotonic() - start
    try:
        answer: dict[str, Any] = json.loads(ran.stdout)
    except ValueError:
        sys.exit(f"exit code {ran.returncode}: {ran.stdout}{ran.stderr}")
    return {**answer, "exit": ran.returncode, "took": took}


def reference() -> dict[str, dict[str, float]]:
    """Return what PyTorch reaches by GPU and quantity; empty without PyTorch."""
    code = "from benchmarks.active_check import print_reference; print_reference()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    if ran.returncode:
        print(f"PyTorch: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {}
    answer: dict[str, dict[str, float]] = json.loads(ran.stdout)
    return answer


def print_reference() -> None:
    """Print what PyTorch reaches on each GPU, as JSON."""
    import torch

    rates = {str(index): _of_gpu(torch, index) for index in range(torch.cuda.device_count())}
    print(json.dumps(rates))


def _of_gpu(torch: Any, index: int) -> dict[str, float]:
    torch.cuda.set_device(index)
    rates = {}
    with torch.no_grad():
        a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        rates["bf16"] = 2 * SIZE**3 / _seconds(torch, lambda: torch.matmul(a, b))
        torch.backends.cuda.matmul.allow_tf32 = False
        c, d = (torch.randn(SIZE, SIZE, device="cuda") for _ in range(2))
        rates["fp32"] = 2 * SIZE**3 / _seconds(torch, lambda: torch.matmul(c, d))
        x = torch.zeros(COPY_BYTES, device="cuda", dtype=torch.uint8)
        y = torch.empty_like(x)
        rates["memory_copy"] = 2 * COPY_BYTES / _seconds(torch, lambda: y.copy_(x))
        host = torch.zeros(HOST_BYTES, dtype=torch.uint8, pin_memory=True)
        part = x[:HOST_BYTES]
        rates["pcie_to_gpu"] = HOST_BYTES / _seconds(torch, lambda: part.copy_(host, non_blocking=True))
        rates["pcie_from_gpu"] = HOST_BYTES / _seconds(torch, lambda: host.copy_(part, non_blocking=True))
        if torch.cuda.device_count() > 1:
            peer = torch.empty(HOST_BYTES, dtype=torch.uint8, device=f"cuda:{(index + 1) % torch.cuda.device_count()}")
            rates["nvlink"] = HOST_BYTES / _seconds(torch, lambda: peer.copy_(part, non_blocking=True))
    return rates


def _seconds(torch: Any, work: Callable[[], object]) -> float:
    """Return the median seconds of one `work`."""
    for _ in range(5):
        work()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPEAT):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)) / 1e3 / REPEAT)
    return statistics.median(times)


def competitor(index: int) -> subprocess.Popen[bytes]:
    """Start a process that multiplies matrices on a GPU until it is killed."""
    code = (
        f"import torch; torch.cuda.set_device({index}); a = torch.randn({SIZE}, {SIZE}, device='cuda',"
        " dtype=torch.bfloat16); print('ready', flush=True)\nwhile True: b = a @ a; torch.cuda.synchronize()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    return process


def main() -> None:
    """Run the checks, and print what they measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--competitor", type=int, help="index of the GPU on which another process computes")
    parser.add_argument("--no-torch", action="store_true")
    arguments, others = parser.parse_known_args()
    print(f"uid {os.getuid()}")
    rival = competitor(arguments.competitor) if arguments.competitor is not None else None
    try:
        runs, references = _runs(arguments.runs, torch=not arguments.no_torch and rival is None, others=others)
    finally:
        if rival is not None:
            rival.kill()
            rival.wait()
    _print(runs, references)
    if arguments.json:
        arguments.json.write_text(json.dumps({"runs": runs, "torch": references}, indent=1))


def _runs(count: int, *, torch: bool, others: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    runs, references = [], []
    for number in range(count):
        runs.append(check(*others))
        if torch and number % 3 == 0:
            references.append(reference())
    return runs, references


def _print(runs: list[dict[str, Any]], references: list[dict[str, Any]]) -> None:
    values: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    together: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    for run in runs:
        for gpu in run["active"]["gpus"]:
            for rated in gpu["rates"]:
                key = gpu["gpu"], rated["quantity"], rated["how"]
                values[key].append(rated["value"])
                if rated["together"]:
                    together[key].append(rated["together"])
    print(f"{'gpu quantity':32}{'median':>12}{'spread':>9}{'all at once':>13}{'PyTorch':>12}{'ratio':>8}")
    for (index, quantity, how), rates in sorted(values.items()):
        middle = statistics.median(rates)
        spread = (max(rates) - min(rates)) / middle
        known = [each[str(index)][quantity] for each in references if quantity in each.get(str(index), {})]
        peer = statistics.median(known) if known else None
        beside = together[index, quantity, how]
        print(
            f"{index} {quantity + ' ' + how:30}{middle / 1e9:12.1f}{spread:9.2%}"
            f"{statistics.median(beside) / 1e9 if beside else float('nan'):13.1f}"
            + (f"{peer / 1e9:12.1f}{middle / peer:8.3f}" if peer else "")
        )
    print("GB/s and GFLOP/s; exit codes", sorted({run["exit"] for run in runs}))
    took = [run["took"] for run in runs]
    print(f"a run took {statistics.median(took):.2f} s ({min(took):.2f} to {max(took):.2f})")
    last = runs[-1]
    print(json.dumps({key: last["active"][key] for key in ("seconds", "pairs", "all_at_once", "stuck")}))
    for gpu in last["gpus"]:
        print(json.dumps({key: gpu[key] for key in ("gpu", "health", "problems", "unknown")}))
    for gpu in last["active"]["gpus"]:
        print(json.dumps({key: gpu[key] for key in ("gpu", "load", "notes", "memory_test", "sustained")}))


if __name__ == "__main__":
    main()
