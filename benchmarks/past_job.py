"""A training job whose loader is slow for two minutes in the middle, and the report at its end. Needs GPUs and torch.

    python -m benchmarks.past_job --gpus 2 --out FOLDER

It serves an exporter with `--job-reports`, trains with DDP, waits until the report is there, and prints what
`diagnose --job` says: eight minutes in all. The exit code is 0 if an incident begins and ends with the slow loader, and
nothing else urgent was found. Interrupted (SIGTERM), it reports on what was trained by then. The report, the log of the
exporter and the history that it kept stay in FOLDER.

Where `CUDA_VISIBLE_DEVICES` is set, the exporter reads only these GPUs, so that other jobs beside do not matter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.exporter import exporter_command, free_port, running

JOB = "past-job"
MINUTE = 60.0
MINUTES = 4.5
# For so long, in the middle of the job, each batch comes so late.
SLOW_MINUTES, SLOW_SECONDS = 2.0, 0.5
WIDTH, LAYERS, BATCH = 4096, 6, 16384
# A job has ended when it was silent for 30 s and not seen for two minutes, as a diagnosis each 30 s finds.
REPORT_SECONDS = 215.0
# The begin and the end of an incident are known to a diagnosis, each 30 s, of the last 20 s.
TOLERANCE = 60.0


def slow_span(minutes: float) -> tuple[float, float]:
    """Return from when to when the loader is slow, in seconds since the begin of the job."""
    middle = minutes / 2
    return (middle - SLOW_MINUTES / 2) * MINUTE, (middle + SLOW_MINUTES / 2) * MINUTE


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
    begin, (slow_from, slow_to) = time.time(), slow_span(minutes)
    if rank == 0:
        begun.write_text(str(begin))

    def batches() -> Any:
        # All ranks take the same number of steps: rank 0 says when it is over.
        over = torch.zeros(1, device=device)
        while True:
            passed = time.time() - begin
            if slow_from <= passed < slow_to:
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


class Interrupted(Exception):
    """The time of this benchmark is over."""


def interrupt(*_: object) -> None:
    """Interrupt once: `timeout` sends its signal to this process, and then to its whole group."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise Interrupted


def measure(gpus: int, minutes: float, out: Path) -> int:
    """Serve, train, and print the report. Returns the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    begun, history, port = out / "begun", out / "history.jsonl", free_port()
    with ExitStack() as stack:
        # The path of a socket has at most 107 characters.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="past-job-")))
        options = ["--state-dir", folder / "state", "--job-reports", out, "--job-socket", folder / "jobs.sock"]
        command = exporter_command(port, *map(str, options), "--source", "nvml", "--kernel-log", "none", *devices(gpus))
        stack.enter_context(running(command, port))
        try:
            say(f"serving on port {port}")
            train_ranks(gpus, minutes, begun, folder / "jobs.sock")
            say("trained; waiting for the report")
            end = time.monotonic() + REPORT_SECONDS
            while time.monotonic() < end and not list(out.glob(f"{JOB}-*.json")):
                time.sleep(2)
        except (Interrupted, subprocess.CalledProcessError) as error:
            say(f"not all was trained: {type(error).__name__} {error}")
        asked = ["--job", JOB, "--url", f"http://127.0.0.1:{port}", "--report", str(out / "diagnose.html")]
        subprocess.run([sys.executable, "-m", "gpu_exporter", "diagnose", *asked], check=False)
        for each in sorted((folder / "state").glob("history-*.jsonl")):
            with history.open("ab") as whole, each.open("rb") as of_day:
                shutil.copyfileobj(of_day, whole)
    written = list(out.glob(f"{JOB}-*.json"))
    if not written or not begun.exists():
        say(f"no report in {out}")
        return 1
    say(f"report: {written[0].with_suffix('.html')}")
    return verdict(json.loads(written[0].read_text()), float(begun.read_text()), minutes)


def devices(gpus: int) -> list[str]:
    """Return the options by which an exporter reads only the GPUs of the job, if the environment names them."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ["--devices", f"g:{','.join(visible[:gpus])}", "--expected-gpus", str(gpus)] if visible else []


def train_ranks(gpus: int, minutes: float, begun: Path, socket: Path) -> None:
    """Train with all ranks. Raises CalledProcessError if one fails."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(gpus)]
    job = [*launch, "-m", "benchmarks.past_job", "--minutes", str(minutes), "--begun", str(begun)]
    # In the order of the driver, as the exporter's.
    environment = {**os.environ, "GPU_EXPORTER_JOB_SOCKET": str(socket), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    launcher = subprocess.Popen(job, env=environment)
    try:
        if launcher.wait():
            raise subprocess.CalledProcessError(launcher.returncode, job)
    finally:
        launcher.terminate()  # which ends its ranks
        launcher.wait(30)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def verdict(report: dict[str, Any], began: float, minutes: float) -> int:
    """Print whether the incidents are those of the slow loader, and return the exit code."""
    begin, end = slow_span(minutes)
    found, other = False, False
    for each in report["incidents"]:
        start, last = each["start"] - began, (each["end"] or each["seen"]) - began
        matches = abs(start - begin) <= TOLERANCE and abs(last - end) <= TOLERANCE
        found |= matches
        other |= not matches and each["severity"] != "info"
        print(
            f"{'expected' if matches else 'other'}: {each['severity']} {each['cause']}, {start:.0f} s to {last:.0f} s"
        )
    print(f"the loader was slow from {begin:.0f} s to {end:.0f} s: {'found' if found else 'NOT found'}")
    if other:
        print("and there is something urgent that it does not explain")
    return int(not found or other)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpus", type=int, default=2)
    options.add_argument("--minutes", type=float, default=MINUTES, help="how long to train (default: %(default)s)")
    options.add_argument("--out", type=Path, default=Path("past-job"), help="folder for results (default: %(default)s)")
    options.add_argument("--begun", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.begun:
        train(chosen.minutes, chosen.begun)
        return 0
    signal.signal(signal.SIGTERM, interrupt)
    return measure(chosen.gpus, chosen.minutes, chosen.out)


if __name__ == "__main__":
    sys.exit(main())
