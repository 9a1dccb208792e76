"""Runs cases and records their traces: in this process, or as one rank of a job.

A module of its own, because `torch.multiprocessing.spawn` imports a rank's function by the name of its module, and
skips modules named `__main__`.
"""

from __future__ import annotations

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
