"""Trains on several GPUs (or CPUs) with one known cause of slowness at a time, and compares what the timers say.

    PYTHONPATH=. python3 benchmarks/job_cases.py --json cases.json
    PYTHONPATH=. python3 benchmarks/job_cases.py --device cpu --ranks 8 --seconds 3 --cases ddp-data,ddp-backward

One process per rank runs all cases, each with its own StepTimer. This process receives their messages on a Unix
datagram socket, as the exporter does. Needs PyTorch, and only `gpu_exporter.training` of the package.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

SLOW_RANK = 1
# What the cause costs the slow rank, in seconds per step.
COST_SECONDS = {"cuda": 0.008, "cpu": 0.03}
# A rank is named if its self time is this many MADs, and this share of the step time, above the median. The floor of
# the MAD, also a share of the step time, keeps equal ranks from being told apart by noise.
MOST_MADS, MAD_FLOOR, LEAST_SHARE = 3.5, 0.01, 0.05
PARTS = ("data", "forward", "backward", "optimizer", "rest")
FEW_RANKS, LEAST_SHARE_OF_FEW = 4, 0.2
# A slow GPU is slow in all that it computes: both passes have at least this share of the larger excess.
COMPUTE = ("forward", "backward")
GPU_SHARE = 0.2


class Case(NamedTuple):
    """A way to train, what slows SLOW_RANK, and the causes that may be named; "" is none."""

    strategy: str
    cause: str
    right: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.strategy}-{self.cause}"


# Where the self time does not tell, silence is right; a wrong name never is.
CASES = (
    Case("ddp", "balanced", ("",)),
    Case("ddp", "data", ("data",)),
    Case("ddp", "forward", ("forward",)),
    Case("ddp", "backward", ("backward",)),
    Case("ddp", "gpu", ("gpu", "forward", "backward")),
    Case("ddp", "evaluation", ("",)),
    Case("fsdp", "balanced", ("",)),
    Case("fsdp", "data", ("data",)),
    Case("fsdp", "forward", ("forward", "")),
    Case("fsdp", "backward", ("backward", "")),
    Case("fsdp", "gpu", ("gpu", "forward", "backward", "")),
    Case("pipeline", "uneven", ("forward", "backward", "gpu")),
)
BY_NAME = {case.name: case for case in CASES}


# --- the comparison ---------------------------------------------------------------------------------------------------


def parts_of(message: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds per step of a rank by part, without waiting; `self` and `step` are their sums."""
    count = max(sum(message["step"]["counts"]), 1)
    phases, own = message["phase_seconds"], message.get("self")
    step = message["step"]["sum"] / count
    found = {name: phases.get(name, 0.0) / count for name in PARTS[1:-1]}
    found["data"] = message["data_seconds"] / count
    found["waiting"] = phases.get("waiting", 0.0) / count
    found["rest"] = max(step - sum(found.values()), 0.0)
    return {**found, "step": step, "self": own["sum"] / max(sum(own["counts"]), 1) if own else float("nan")}


def outlier(values: Mapping[int, float], step: float) -> int | None:
    """Return the rank that is slower than the others by a material part of a step; None if none is."""
    if any(value != value for value in values.values()) or len(values) < 2:
        return None
    slowest, middle = max(values, key=lambda rank: values[rank]), median(values.values())
    if len(values) < FEW_RANKS:
        return slowest if values[slowest] - min(values.values()) > LEAST_SHARE_OF_FEW * step else None
    spread = 1.4826 * median(abs(value - middle) for value in values.values()) + MAD_FLOOR * step
    excess = values[slowest] - middle
    return slowest if excess > MOST_MADS * spread and excess > LEAST_SHARE * step else None


def verdict(parts: Mapping[int, Mapping[str, float]]) -> tuple[int | None, str]:
    """Return the straggler among ranks and the part in which it is slow; (None, "") if there is none."""
    step = median(of_rank["step"] for of_rank in parts.values())
    slow = outlier({rank: of_rank["self"] for rank, of_rank in parts.items()}, step)
    if slow is None:
        return None, ""
    usual = {name: median(of_rank[name] for rank, of_rank in parts.items() if rank != slow) for name in PARTS}
    excess = {name: parts[slow][name] - usual[name] for name in PARTS}
    worst = max(excess, key=lambda name: excess[name])
    if worst in COMPUTE and all(excess[name] > GPU_SHARE * excess[worst] for name in COMPUTE):
        return slow, "gpu"
    return slow, worst


# --- one rank ---------------------------------------------------------------------------------------------------------


def rank_main(cases: Sequence[Case], device_kind: str, seconds: float) -> None:
    """Train all cases as one rank, which the environment describes as torchrun does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    local = int(os.environ["LOCAL_RANK"])
    if device_kind == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device_kind == "cuda" else "gloo")
    for case in cases:
        if case.strategy == "pipeline":
            run_pipeline(case, device_kind, seconds)
        else:
            run_parallel(case, device_kind, seconds)
        dist.barrier()
    dist.destroy_process_group()


def pause(device_kind: str, seconds: float) -> None:
    """Keep the device busy for some time: the GPU with a kernel that spins, the CPU by sleeping."""
    import torch

    if device_kind == "cuda":
        torch.cuda._sleep(int(seconds * 1.7e9))
    else:
        time.sleep(seconds)


def slow_layer(device_kind: str, forward: float, backward: float) -> Any:
    """Return a layer that does nothing, for some time."""
    import torch

    class Slow(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            if forward:
                pause(device_kind, forward)
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if backward:
                pause(device_kind, backward)
            return gradient

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return Slow.apply(x)

    return Layer()


def layers(device_kind: str, count: int, slow: Any) -> Any:
    """Return a model of linear layers, with the slow layer in the middle."""
    import torch

    width = 4096 if device_kind == "cuda" else 64
    parts = [torch.nn.Linear(width, width) for _ in range(count)]
    parts.insert(count // 2, slow)
    return torch.nn.Sequential(*parts).to(device_kind), width


def wrapped(model: Any, strategy: str, device_kind: str) -> Any:
    """Return the model for several ranks."""
    import torch

    if strategy == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100 if device_kind == "cuda" else 0.02)
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model)
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    return model


def competitor(device_kind: str) -> Callable[[], None]:
    """Slow this GPU by other work until the returned function is called. On a CPU, nothing competes."""
    import threading

    import torch

    stop = threading.Event()

    def compete() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.randn(4096, 4096, device="cuda")
            while not stop.is_set():
                x = (x @ x).clamp(-1, 1)
                stream.synchronize()

    thread = threading.Thread(target=compete)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


def steps_for(seconds: float, step: Callable[[], None], device_kind: str) -> int:
    """Return how many steps take about so long, the same number on all ranks. Runs some for that."""
    import torch
    import torch.distributed as dist

    for _ in range(3):
        step()
    begin = time.perf_counter()
    for _ in range(5):
        step()
    if device_kind == "cuda":
        torch.cuda.synchronize()
    taken = torch.tensor([(time.perf_counter() - begin) / 5], device=device_kind)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return max(int(seconds / float(taken)), 10)


def run_parallel(case: Case, device_kind: str, seconds: float) -> None:
    """Train with DDP or FSDP."""
    import torch

    from gpu_exporter.training import StepTimer

    rank = int(os.environ["RANK"])
    slow = case.cause if rank == SLOW_RANK else ""
    cost = COST_SECONDS[device_kind]
    layer = slow_layer(device_kind, cost * (slow == "forward"), cost * (slow == "backward"))
    plain, width = layers(device_kind, 8, layer)
    model = wrapped(plain, case.strategy, device_kind)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(4096 if device_kind == "cuda" else 16, width, device=device_kind)
    # FSDP exchanges parameters in both passes: only the rest of a step is certainly a rank's own.
    timer = StepTimer(case.name, waits_in=() if case.strategy == "ddp" else ("forward", "backward", "optimizer"))
    timer.watch(model)

    def load() -> Any:
        if slow == "data":
            time.sleep(cost)
        return batch

    def step() -> None:
        with timer.step(samples=len(batch)):
            with timer.phase("forward"):
                loss = model(current).square().mean()
            with timer.phase("backward"):
                loss.backward()
            with timer.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    current = batch
    end = competitor(device_kind) if slow == "gpu" and device_kind == "cuda" else None
    with timer.compile():
        count = steps_for(seconds, step, device_kind)
    for number, current in enumerate(timer.data(load() for _ in range(count)), 1):  # noqa: B007
        step()
        if case.cause == "evaluation" and rank == 0 and number % (count // 3) == 0:
            with timer.evaluation(), torch.no_grad():
                pause(device_kind, 10 * cost)
    finish(timer, device_kind)
    if end:
        end()


def finish(timer: Any, device_kind: str) -> None:
    """Wait for the GPU, so that the last message has all steps."""
    import torch

    if device_kind == "cuda":
        torch.cuda.synchronize()
    timer.close()


def run_pipeline(case: Case, device_kind: str, seconds: float) -> None:
    """Train a pipeline with one stage per rank and four micro-batches, in which SLOW_RANK has twice the layers."""
    import torch
    import torch.distributed as dist

    from gpu_exporter.training import StepTimer

    rank, size = dist.get_rank(), dist.get_world_size()
    cost = COST_SECONDS[device_kind] / 8 if device_kind == "cpu" and rank == SLOW_RANK else 0.0
    model, width = layers(device_kind, 8 if rank == SLOW_RANK else 4, slow_layer(device_kind, cost, cost))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(2048 if device_kind == "cuda" else 4, width, device=device_kind)
    timer = StepTimer(case.name)

    def micro_batches() -> list[tuple[Any, Any]]:
        done = []
        for _ in range(4):
            x = batch.clone()
            if rank > 0:
                with timer.waiting():
                    dist.recv(x, rank - 1)
            x.requires_grad_()
            with timer.phase("forward"):
                y = model(x)
            if rank < size - 1:
                with timer.waiting():
                    dist.send(y.detach(), rank + 1)
            done.append((x, y))
        return done

    def step() -> None:
        with timer.step(samples=4 * len(batch)):
            for x, y in micro_batches():
                gradient = torch.ones_like(y) / y.numel()
                if rank < size - 1:
                    with timer.waiting():
                        dist.recv(gradient, rank + 1)
                with timer.phase("backward"):
                    y.backward(gradient)
                if rank > 0:
                    with timer.waiting():
                        dist.send(x.grad, rank - 1)
            with timer.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    with timer.compile():
        count = steps_for(seconds, step, device_kind)
    for _ in range(count):
        step()
    finish(timer, device_kind)


# --- the receiver -----------------------------------------------------------------------------------------------------


def collect(cases: Sequence[Case], ranks: int, device_kind: str, seconds: float) -> dict[tuple[str, int], Any]:
    """Run the ranks, and return the last message of each case and rank. Raises RuntimeError if a rank fails."""
    latest: dict[tuple[str, int], Any] = {}
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        path = os.path.join(folder, "jobs.sock")
        receiver.bind(path)
        receiver.settimeout(0.2)
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


def _receive(receiver: socket.socket, latest: dict[tuple[str, int], Any]) -> bool:
    """Keep a message that arrives; False if none does."""
    try:
        message = json.loads(receiver.recv(65536))
    except TimeoutError:
        return False
    latest[message["job_id"], message["rank"]] = message
    return True


def result(case: Case, messages: Mapping[int, Any]) -> dict[str, Any]:
    """Return truth, times by rank in ms, and what the comparison says of a case."""
    parts = {rank: parts_of(message) for rank, message in sorted(messages.items())}
    rank, cause = verdict(parts)
    is_right = cause in case.right and (rank is None or rank == SLOW_RANK)
    return {
        "case": case.name,
        "truth": {"rank": None if case.cause in ("balanced", "evaluation") else SLOW_RANK, "cause": case.cause},
        "named": {"rank": rank, "cause": cause},
        "right": is_right,
        "steps": {rank: message["steps"] for rank, message in sorted(messages.items())},
        "milliseconds": {
            rank: {name: None if value != value else round(value * 1e3, 3) for name, value in of_rank.items()}
            for rank, of_rank in parts.items()
        },
    }


def show(found: Mapping[str, Any]) -> None:
    """Print a result."""
    named = found["named"]
    said = "no straggler" if named["rank"] is None else f"rank {named['rank']}: {named['cause']}"
    print(f"{'ok   ' if found['right'] else 'WRONG'} {found['case']:<18} named: {said}", flush=True)
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
