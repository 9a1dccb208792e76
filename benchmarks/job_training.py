"""Trains as one rank of a job, with one known cause of slowness at a time. Needs PyTorch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.job_verdict import UNKNOWN

SLOW_RANK = 1
# What the cause costs the slow rank, in seconds per step.
COST_SECONDS = {"cuda": 0.008, "cpu": 0.03}
# As a multiple of that cost: a loader that takes less than the GPU's work of a step hides behind it, and slows nobody.
LOADER_COSTS = 3
# Every so many steps of FSDP on GPUs, one is profiled; 0 for none.
SAMPLE_EVERY = int(os.environ.get("SAMPLE_EVERY", "20"))


class Case(NamedTuple):
    """A way to train, what slows SLOW_RANK, and the causes that may be named; "" is none."""

    strategy: str
    cause: str
    right: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.strategy}-{self.cause}"


# The rank must be named where one is slow: a miss is wrong, too. Of FSDP, the part may stay unknown.
CASES = (
    Case("ddp", "balanced", ("", UNKNOWN)),
    Case("ddp", "data", ("data",)),
    Case("ddp", "forward", ("forward",)),
    Case("ddp", "backward", ("backward",)),
    Case("ddp", "gpu", ("gpu", "forward", "backward")),
    Case("ddp", "evaluation", ("", UNKNOWN)),
    Case("fsdp", "balanced", ("", UNKNOWN)),
    Case("fsdp", "data", ("data",)),
    Case("fsdp", "forward", ("forward", UNKNOWN)),
    Case("fsdp", "backward", ("backward", UNKNOWN)),
    Case("fsdp", "gpu", ("gpu", "forward", "backward", UNKNOWN)),
    Case("pipeline", "uneven", ("forward", "backward", "gpu")),
)
BY_NAME = {case.name: case for case in CASES}


def rank_main(cases: Sequence[Case], device_kind: str, seconds: float) -> None:
    """Train all cases as one rank, which the environment describes as torchrun does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    local = int(os.environ["LOCAL_RANK"])
    if device_kind == "cuda":
        torch.cuda.set_device(local)
        torch.set_float32_matmul_precision("high")  # TF32: else a step takes so long that the causes hardly matter
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

    stop, device = threading.Event(), torch.cuda.current_device()

    def compete() -> None:
        torch.cuda.set_device(device)  # in a new thread, it is the first GPU
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
    # FSDP exchanges parameters in both passes: without samples, only the rest of a step is certainly a rank's own.
    is_sampled = case.strategy == "fsdp" and SAMPLE_EVERY > 0 and device_kind == "cuda"
    timer = StepTimer(case.name)
    timer.watch(model)
    if is_sampled:
        timer.sample_every(SAMPLE_EVERY)
    elif case.strategy == "fsdp":
        timer.mark_collectives("forward", "backward", "optimizer")

    def load() -> Any:
        if slow == "data":
            time.sleep(LOADER_COSTS * cost)
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
