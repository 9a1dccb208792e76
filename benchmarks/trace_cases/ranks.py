"""Runs cases and records their traces: in this process, or as one rank of a job.

A module of its own, because `torch.multiprocessing.spawn` imports a rank's function by the name of its module, and
skips modules named `__main__`.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.trace_cases.case import DEVICE, STEPS, Case, Step
from benchmarks.trace_cases.jobs import JOBS

# Seconds after which a rank gives up waiting for another that failed.
LONGEST_WAIT = 60


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


def run(cases: Mapping[str, Case], names: Sequence[str], out: Path) -> None:
    """Record cases of one GPU, and what is true of each trace. A case that fails is reported and left out."""
    truth = {}
    for name, model in recordings(cases, names):
        file = f"{name}-{model}.json.gz"
        try:
            _record(cases[name], name, model, out / file)
        except (RuntimeError, OSError, ValueError, ImportError):
            print(f"{file}: {traceback.format_exc(limit=2)}", file=sys.stderr, flush=True)
            continue
        truth[file] = cases[name].truth()
    (out / "truth.json").write_text(json.dumps(truth, indent=1))


def recordings(cases: Mapping[str, Case], names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the cases with their models."""
    return [(name, model) for name in names for model in cases[name].models]


def _record(case: Case, name: str, model: str, path: Path) -> None:
    import torch

    began = time.monotonic()
    record(case.make(model), path, memory=name == "before")
    gc.collect()  # models refer to themselves
    torch.cuda.empty_cache()
    print(f"{path.name}: {time.monotonic() - began:.1f} s, {path.stat().st_size} bytes", flush=True)


def rank_main(rank: int, ranks: int, port: int, chosen: Sequence[tuple[str, str]], out: Path) -> None:
    """Run one rank of the jobs: names of cases and models. The first rank writes what is true after each of them."""
    import torch

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    device = torch.device(DEVICE, rank)
    torch.distributed.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=LONGEST_WAIT))
    for name, model in chosen:
        file = f"{name}-{model}-rank{rank}of{ranks}.json.gz"
        _record(JOBS[name], name, model, out / file)
        torch.distributed.barrier()
        if rank == 0:
            add_truth(out, ranks, {file: JOBS[name].truth(ranks)})
    torch.distributed.destroy_process_group()


def add_truth(out: Path, ranks: int, truth: Mapping[str, Mapping[str, Any]]) -> None:
    """Add what is true of recordings to the file for jobs of this size."""
    path = out / f"truth-{ranks}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **truth}, indent=1))


def recorded(out: Path, ranks: int) -> set[tuple[str, str]]:
    """Return the cases and models of jobs that have been recorded on all ranks."""
    path = out / f"truth-{ranks}.json"
    files = json.loads(path.read_text()) if path.exists() else {}
    return {(name, model) for name, model, _ in (file.rsplit("-", 2) for file in files)}


def run_jobs(names: Sequence[str], ranks: int, out: Path) -> list[str]:
    """Record jobs, each rank in a process of its own; return those that failed: the others go on in new processes."""
    import torch

    (out / f"truth-{ranks}.json").unlink(missing_ok=True)
    left = recordings(JOBS, names)
    failed: list[str] = []
    while left:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            torch.multiprocessing.spawn(rank_main, (ranks, port, left, out), nprocs=ranks)
            break
        except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as error:
            left = [one for one in left if one not in recorded(out, ranks)]
            failed += ["-".join(one) for one in left[:1]]
            left = left[1:]
            print(f"{failed[-1:]}: {error}", file=sys.stderr, flush=True)
    return failed
