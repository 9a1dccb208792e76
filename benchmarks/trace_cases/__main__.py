"""Records profiler traces with one built-in cause each, as ground truth for the analysis of traces.

Needs PyTorch with CUDA.

    python -m benchmarks.trace_cases --out FOLDER [NAME ...]             # one GPU
    python -m benchmarks.trace_cases --out FOLDER --ranks N [NAME ...]   # jobs with a GPU for each rank

Beside the traces is `truth.json`: for each trace the expected class, cause, and the function and line to be named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.trace_cases.case import STEPS, Case, Step
from benchmarks.trace_cases.jobs import JOBS
from benchmarks.trace_cases.single import CASES


def record(step: Step, path: Path, *, memory: bool = False) -> None:
    """Profile some steps into a file."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    for number in range(3):
        step(number - 3)
    torch.cuda.synchronize()
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with profile(
        activities=activities,
        schedule=plan,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        with_stack=True,
        record_shapes=True,
        profile_memory=memory,
    ) as profiler:
        for number in range(STEPS + 2):
            step(number)
            if number == STEPS + 1:
                torch.cuda.synchronize()
            profiler.step()


def run(cases: Mapping[str, Case], names: list[str], out: Path, suffix: str = "") -> dict[str, Mapping[str, Any]]:
    """Record cases; return what is true of each trace. A case that fails is reported and left out."""
    truth = {}
    for name in names or list(cases):
        case = cases[name]
        for model in case.models:
            began, file = time.monotonic(), f"{name}-{model}{suffix}.json.gz"
            try:
                record(case.make(model), out / file, memory=name == "before")
            except (RuntimeError, OSError, ValueError, ImportError):
                print(f"{file}: {traceback.format_exc(limit=2)}", file=sys.stderr, flush=True)
                continue
            truth[file] = case.truth()
            print(f"{file}: {time.monotonic() - began:.1f} s, {(out / file).stat().st_size} bytes", flush=True)
    return truth


def rank_main(rank: int, ranks: int, names: list[str], out: Path) -> None:
    """Run one rank of the jobs."""
    import torch

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    truth = run(JOBS, names, out, f"-rank{rank}of{ranks}")
    if rank == 0:
        (out / f"truth-{ranks}.json").write_text(json.dumps(truth, indent=1))
    torch.distributed.destroy_process_group()


def main() -> None:
    """Record all cases, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*CASES, *JOBS)))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.ranks == 1:
        truth = run(CASES, chosen.names, chosen.out)
        (chosen.out / "truth.json").write_text(json.dumps(truth, indent=1))
        return
    import torch

    torch.multiprocessing.spawn(rank_main, (chosen.ranks, chosen.names, chosen.out), nprocs=chosen.ranks)


if __name__ == "__main__":
    main()
