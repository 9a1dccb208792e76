"""Trains on several GPUs (or CPUs) with one known cause of slowness at a time, and compares what the timers say.

    PYTHONPATH=. python3 benchmarks/job_cases.py --json cases.json
    PYTHONPATH=. python3 benchmarks/job_cases.py --device cpu --ranks 8 --seconds 3 --cases ddp-data,ddp-backward

One process per rank runs all cases, each with its own StepTimer. This process receives their messages on a Unix
socket, as the exporter does. Needs PyTorch, and only `gpu_exporter.training` of the package. SAMPLE_EVERY=0 in
the environment leaves out the profiled steps of FSDP.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.job_receiver import Receiver
from benchmarks.job_training import BY_NAME, CASES, SLOW_RANK, Case, rank_main
from benchmarks.job_verdict import PARTS, parts_of, verdict


def collect(cases: Sequence[Case], ranks: int, device_kind: str, seconds: float) -> dict[tuple[str, int], Any]:
    """Run the ranks, and return the last message of each case and rank. Raises RuntimeError if a rank fails."""
    latest: dict[tuple[str, int], Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Receiver(path := os.path.join(folder, "jobs.sock"))) as receiver,
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        children = [_start(rank, ranks, path, port, cases, device_kind, seconds) for rank in range(ranks)]
        try:
            while _receive(receiver, latest) or any(child.poll() is None for child in children):
                failed = [rank for rank, child in enumerate(children) if child.poll()]
                if failed:
                    raise RuntimeError(f"ranks {failed} failed")
        finally:
            for child in children:
                child.kill()
                child.wait()
    return latest


def _start(
    rank: int, ranks: int, path: str, port: int, cases: Sequence[Case], device_kind: str, seconds: float
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GPU_EXPORTER_JOB_SOCKET": path,
    }
    names = ",".join(case.name for case in cases)
    options = ["--rank-of", names, "--device", device_kind, "--seconds", str(seconds)]
    return subprocess.Popen([sys.executable, os.path.abspath(__file__), *options], env=environment)


def _receive(receiver: Receiver, latest: dict[tuple[str, int], Any]) -> bool:
    """Keep the messages that arrive; False if none does."""
    messages = [json.loads(content) for content in receiver.receive(0.2)]
    for message in messages:
        latest[message["job_id"], message["rank"]] = message
    return bool(messages)


def result(case: Case, messages: Mapping[int, Any]) -> dict[str, Any]:
    """Return truth, times by rank in ms, and what the comparison says of a case."""
    parts = {rank: parts_of(message) for rank, message in sorted(messages.items())}
    rank, cause = verdict(parts)
    slow = None if case.cause in ("balanced", "evaluation") else SLOW_RANK
    is_right = cause in case.right and rank == slow
    return {
        "case": case.name,
        "truth": {"rank": slow, "cause": case.cause},
        "named": {"rank": rank, "cause": cause},
        "right": is_right,
        "missed": slow is not None and rank is None,
        "steps": {rank: message["steps"] for rank, message in sorted(messages.items())},
        "milliseconds": {
            rank: {name: None if value != value else round(value * 1e3, 3) for name, value in of_rank.items()}
            for rank, of_rank in parts.items()
        },
    }


def show(found: Mapping[str, Any]) -> None:
    """Print a result."""
    named = found["named"]
    said = named["cause"] or "no straggler" if named["rank"] is None else f"rank {named['rank']}: {named['cause']}"
    outcome = "ok    " if found["right"] else "MISSED" if found["missed"] else "WRONG "
    print(f"{outcome} {found['case']:<18} named: {said}", flush=True)
    for name in ("step", "self", *PARTS, "waiting"):
        values = "".join(f"{of_rank[name] or 0:>9.2f}" for of_rank in found["milliseconds"].values())
        print(f"      {name:<10}{values}  ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs, or 4 on the CPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda if there are GPUs")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each case")
    parser.add_argument("--cases", default="all", help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main([BY_NAME[name] for name in options.rank_of.split(",")], options.device, options.seconds)
        return 0
    import torch

    device_kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    ranks = options.ranks or (torch.cuda.device_count() if device_kind == "cuda" else 4)
    # On CPUs, PyTorch has no FSDP, and nothing competes.
    possible = [case for case in CASES if device_kind == "cuda" or (case.strategy != "fsdp" and case.cause != "gpu")]
    cases = possible if options.cases == "all" else [BY_NAME[name] for name in options.cases.split(",")]
    latest = collect(cases, ranks, device_kind, options.seconds)
    results = [result(case, {rank: latest[case.name, rank] for rank in range(ranks)}) for case in cases]
    for found in results:
        show(found)
    if options.json:
        about = {"torch": torch.__version__, "device": device_kind, "ranks": ranks}
        if device_kind == "cuda":
            about["gpu"] = torch.cuda.get_device_name()
        options.json.write_text(json.dumps({**about, "results": results}, indent=2))
    return 0 if all(found["right"] for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
