"""Compares the exporter's values with those of known workloads on real GPUs. Needs PyTorch with CUDA.

    python -m benchmarks.ground_truth [--user 65534] [--gpus 1]

Starts `gpu-exporter serve`, runs each workload on every GPU (8192^3 bf16 GEMM, device copy, one spinning thread, none)
and compares scraped values with those that the same workloads had on an H200. Exit code 1 if one differs by more than
0.05.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import harness
from benchmarks.exporter import Exporter, free_port, running

SM, TENSOR, DRAM, UTIL = (
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_DEV_GPU_UTIL",
)
EXPECTED = {
    "idle": (0.0, 0.0, 0.0),
    "gemm": (0.96, 0.93, 0.17),
    "copy": (0.99, 0.0, 0.89),
    "spin": (0.008, 0.0, 0.0),
}
TOLERANCE = 0.05
WARM, MEASURE = 6.0, 8.0


def work(name: str, gpu: int) -> None:
    """Keep a GPU busy with one kind of kernel until killed."""
    import torch

    torch.cuda.set_device(gpu)
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    big = torch.empty(4 * 2**30, device="cuda", dtype=torch.uint8)
    other = torch.empty_like(big)
    while True:
        for _ in range(50):
            if name == "gemm":
                torch.mm(a, b)
            elif name == "copy":
                other.copy_(big)
            elif name == "spin":
                torch.cuda._sleep(20_000_000)  # one thread
        torch.cuda.synchronize()


def values(exporter: Exporter) -> dict[str, dict[str, float]]:
    """Scrape once; return the values by metric and GPU index."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(exporter.page()):
        for sample in family.samples:
            if "gpu" in sample.labels:
                found.setdefault(sample.name, {})[sample.labels["gpu"]] = sample.value
    return found


def measure(exporter: Exporter, name: str, gpus: int) -> list[dict[str, Any]]:
    """Run a workload on every GPU, print the scraped values and return them by GPU with a verdict."""
    with ExitStack() as stack:
        if name != "idle":
            for index in range(gpus):
                child = subprocess.Popen([sys.executable, "-m", "benchmarks.ground_truth", "--work", name, str(index)])
                stack.callback(child.wait)
                stack.callback(child.kill)
        time.sleep(WARM if name == "idle" else WARM + 6)
        before, begin = values(exporter), time.monotonic()
        time.sleep(MEASURE)
        after, elapsed = values(exporter), time.monotonic() - begin
    found = []
    for gpu in sorted(after[SM]):
        scraped = tuple(after[metric][gpu] for metric in (SM, TENSOR, DRAM))
        rate = after["gpu_sm_active_seconds_total"][gpu] - before["gpu_sm_active_seconds_total"][gpu]
        near = all(abs(value - truth) <= TOLERANCE for value, truth in zip(scraped, EXPECTED[name], strict=True))
        found.append(
            {
                "workload": name,
                "gpu": gpu,
                "utilisation_percent": after[UTIL][gpu],
                **dict(zip(("sm_active", "tensor", "dram"), scraped, strict=True)),
                "sm_active_by_counter": rate / elapsed,
                "watts": after["DCGM_FI_DEV_POWER_USAGE"][gpu],
                "good": near,
            }
        )
        print(
            f"{name:<6}{gpu:>4}{after[UTIL][gpu]:>7.0f}%"
            + "".join(f"{value:>10.3f}" for value in scraped)
            + f"{rate / elapsed:>14.3f}{after['DCGM_FI_DEV_POWER_USAGE'][gpu]:>9.0f} W"
            + f"{after['DCGM_FI_DEV_SM_CLOCK'][gpu]:>7.0f} MHz   {'ok' if near else f'expected {EXPECTED[name]}'}",
            flush=True,
        )
    return found


def main() -> int:
    """Measure every workload; return 1 if a value is outside the tolerance."""
    options = harness.options(__name__, __doc__)
    options.add_argument(
        "--user", type=int, metavar="UID", help="run the exporter as this user, without capabilities (default: as you)"
    )
    options.add_argument("--gpus", type=int, default=1, help="number of GPUs to use (default: %(default)s)")
    options.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.work:
        work(chosen.work[0], int(chosen.work[1]))
    run, port = harness.begin(__name__, chosen), free_port()
    command = [sys.executable, "-m", "gpu_exporter", "serve", "--address", f"127.0.0.1:{port}", "--gauge-window", "5s"]
    if chosen.user is not None:
        unprivileged = [
            "setpriv",
            f"--reuid={chosen.user}",
            f"--regid={chosen.user}",
            "--clear-groups",
            "--no-new-privs",
        ]
        command = [*unprivileged, "--bounding-set=-all", "--inh-caps=-all", *command]
    with running(command, port, {"PYTHONPATH": os.pathsep.join(sys.path)}) as exporter:
        print("          gpu util        SM    tensor      DRAM SM by counter    power      clock")
        rows = [row for name in EXPECTED for row in measure(exporter, name, chosen.gpus)]
        print(f"exporter: {exporter.rss_mib():.1f} MiB RSS, {exporter.cpu_seconds():.2f} s CPU")
    run.write({"user": chosen.user, "rows": rows})
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
