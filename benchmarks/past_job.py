"""A training job whose loader is slow for two minutes in the middle, and the report at its end. Needs GPUs and torch.

    python -m benchmarks.past_job --gpus 2

It serves an exporter with `--job-reports`, trains for six minutes with DDP, waits until the report is there, and prints
what `diagnose --job` says. The exit code is 0 if an incident begins and ends with the slow loader, and nothing else
urgent was found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.exporter import exporter_command, free_port

JOB = "past-job"
MINUTE = 60.0
# The loader is slow from the second to the fourth minute.
SLOW_FROM, SLOW_TO, MINUTES = 2 * MINUTE, 4 * MINUTE, 6.0
SLOW_SECONDS = 0.4
WIDTH, LAYERS, BATCH = 4096, 6, 8192
# How long after its end a job counts as ended, and another diagnosis.
END_SECONDS = 240.0
TOLERANCE = 75.0


def train(minutes: float, begun: Path) -> None:
    """Train as one rank of torchrun; rank 0 notes when it began."""
    import torch
    import torch.distributed as dist

    from gpu_exporter.training import StepTimer

    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device, torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)
    dist.barrier()
    begin = time.time()
    if rank == 0:
        begun.write_text(str(begin))

    def batches() -> Any:
        # All ranks take the same number of steps: rank 0 says when it is over.
        over = torch.zeros(1, device=device)
        while True:
            passed = time.time() - begin
            if SLOW_FROM <= passed < SLOW_TO:
                time.sleep(SLOW_SECONDS)
            over.fill_(float(passed >= minutes * MINUTE))
            dist.broadcast(over, 0)
            if over.item():
                return
            yield batch

    with StepTimer(JOB, dtype="bf16") as timer:
        timer.watch(model)
        for each in timer.data(batches()):
            with timer.step(samples=BATCH):
                for _ in range(4):
                    loss = model(each).square().mean()
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                torch.cuda.synchronize()
    dist.destroy_process_group()


def measure(gpus: int, minutes: float) -> int:
    """Serve, train, and print the report. Returns the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="past-job-"))
    port, reports, begun = free_port(), folder / "reports", folder / "begun"
    options = ["--state-dir", folder / "state", "--job-reports", reports, "--job-socket", folder / "jobs.sock"]
    exporter = subprocess.Popen([*exporter_command(port, *map(str, options)), "--kernel-log", "none"])
    try:
        time.sleep(5)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus)]
        job = [*launch, "-m", "benchmarks.past_job", "--minutes", str(minutes), "--begun", str(begun)]
        subprocess.run(job, check=True, env={**os.environ, "GPU_EXPORTER_JOB_SOCKET": str(folder / "jobs.sock")})
        end = time.monotonic() + END_SECONDS
        while time.monotonic() < end and not list(reports.glob("*.json")):
            time.sleep(5)
        command = [sys.executable, "-m", "gpu_exporter", "diagnose", "--job", JOB, "--url", f"http://127.0.0.1:{port}"]
        subprocess.run(command, check=False)
    finally:
        exporter.terminate()
        with suppress(subprocess.TimeoutExpired):
            exporter.wait(10)
    written = list(reports.glob("*.json"))
    if not written:
        print(f"no report in {reports}", file=sys.stderr)
        return 1
    print(f"report: {written[0].with_suffix('.html')}")
    return verdict(json.loads(written[0].read_text()), float(begun.read_text()))


def verdict(report: dict[str, Any], began: float) -> int:
    """Print whether the incidents are those of the slow loader, and return the exit code."""
    slow = (began + SLOW_FROM, began + SLOW_TO)
    right = True
    for each in report["incidents"]:
        end = each["end"] or each["seen"]
        matches = abs(each["start"] - slow[0]) <= TOLERANCE and abs(end - slow[1]) <= TOLERANCE
        right &= matches or each["severity"] == "info"
        span = f"{each['start'] - began:.0f} s to {end - began:.0f} s"
        print(f"{'expected' if matches else 'other'}: {each['severity']} {each['cause']}, {span}")
    right &= any(abs(each["start"] - slow[0]) <= TOLERANCE for each in report["incidents"])
    print("the report shows the slow loader" if right else "the report does NOT show the slow loader, or more")
    return 0 if right else 1


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--gpus", type=int, default=2)
    options.add_argument("--minutes", type=float, default=MINUTES)
    options.add_argument("--begun", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.begun:
        train(chosen.minutes, chosen.begun)
        return 0
    return measure(chosen.gpus, chosen.minutes)


if __name__ == "__main__":
    sys.exit(main())
