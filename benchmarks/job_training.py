"""Trains as one rank of a job, with one known cause of slowness at a time. Needs PyTorch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SLOW_RANK = 1
# What the cause costs the slow rank, in seconds per step.
COST_SECONDS = {"cuda": 0.02, "cpu": 0.03}
# As a multiple of that cost: a loader that takes less than the GPU's work of a step hides behind it, and slows nobody.
LOADER_COSTS = 4
# FSDP of the usual size keeps the GPU busy for longer than the CPU needs: else a slower GPU would slow nobody.
# Width, number of layers and batch by size: usual, of kernels so small that the host is the limit, large.
USUAL, LAUNCH_BOUND, LARGE = "", "launch-bound", "large"
SIZES = {
    "cuda": {USUAL: (4096, 8, 16384), LAUNCH_BOUND: (256, 48, 32), LARGE: (8192, 12, 8192)},
    # Ranks that share a GPU each have a part of it, and exchange gradients through sockets.
    "shared": {USUAL: (2048, 8, 16384), LAUNCH_BOUND: (256, 48, 32), LARGE: (2048, 12, 32768)},
    "cpu": {USUAL: (64, 8, 16), LAUNCH_BOUND: (16, 24, 4), LARGE: (256, 8, 64)},
}
# Causes of which no rank is slow.
NOBODY = ("balanced", "evaluation")
# A slow GPU is slow in all that it computes.
OF_GPU = ("forward", "backward", "optimizer")


class Case(NamedTuple):
    """A way to train, what slows SLOW_RANK, and the phases that may be named.

    `telling` is False where a step timer cannot know the self time; then it has to say so.
    """

    strategy: str
    cause: str
    right: tuple[str, ...] = ()
    size: str = USUAL
    telling: bool = True

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.strategy, self.cause, self.size) if part)

    @property
    def slow(self) -> int | None:
        """The rank that is slow, None if none is."""
        return None if self.cause in NOBODY else SLOW_RANK


CASES = (
    *(
        Case(strategy, cause, right)
        for strategy in ("ddp", "fsdp", "tensor")
        for cause, right in (
            ("balanced", ()),
            ("data", ("data",)),
            ("forward", ("forward",)),
            ("backward", ("backward",)),
            ("gpu", OF_GPU),
        )
    ),
    Case("ddp", "evaluation"),
    # DDP beside other waiting: for buffers, and in the loop's own reduction of its loss.
    Case("batchnorm", "balanced"),
    Case("batchnorm", "data", ("data",)),
    Case("batchnorm", "forward", ("forward",)),
    Case("pipeline", "balanced"),
    Case("pipeline", "uneven", ("forward", "backward")),
    Case("pipeline", "gpu", OF_GPU),
    # Collectives of DTensor are not seen.
    Case("dtensor", "balanced", telling=False),
    Case("dtensor", "forward", ("forward",), telling=False),
)
# Of these, no run may have a straggler.
REPEATED = tuple(
    Case(strategy, "balanced", size=size) for strategy in ("ddp", "fsdp") for size in (LAUNCH_BOUND, LARGE)
)
BY_NAME = {case.name: case for case in (*CASES, *REPEATED)}
# Those that were wrong before, and the first to be run.
FIRST = (
    "ddp-balanced-launch-bound",
    "fsdp-balanced-launch-bound",
    "fsdp-balanced-large",
    "tensor-balanced",
    "fsdp-forward",
    "fsdp-gpu",
    "pipeline-uneven",
    "pipeline-gpu",
)


def possible(case: Case, device_kind: str) -> bool:
    """Return whether a case can run on a device with this version of PyTorch. On a CPU, nothing competes."""
    if device_kind == "cpu" and case.cause == "gpu":
        return False
    if case.strategy in ("fsdp", "dtensor"):
        import torch

        return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
    return True


def ranks_share_gpus(ranks: int, device_kind: str) -> bool:
    """Return whether there are more ranks than GPUs."""
    import torch

    return device_kind == "cuda" and ranks > torch.cuda.device_count()


def shared_environment(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment of a rank that shares its GPU.

    NCCL refuses two ranks on one GPU of one host, so each pretends to be on another host. Start MPS before, or the
    ranks take turns on the GPU, and those that wait slow those that work.
    """
    import torch

    each = -(-ranks // torch.cuda.device_count())
    return {
        "NCCL_HOSTID": f"host-of-rank-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_SOCKET_IFNAME": "lo",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // each),
    }


def size_of(case: Case, device_kind: str) -> tuple[int, int, int]:
    """Return the width, the number of layers and the batch of a case."""
    if device_kind == "cpu" or "NCCL_HOSTID" not in os.environ:
        return SIZES[device_kind][case.size]
    width, count, batch = SIZES["shared"][case.size]
    # Activations go through sockets: of a whole batch, they would take ten times as long as the computation.
    return width, count, batch // 8 if case.strategy in ("tensor", "pipeline", "dtensor") else batch


def made_up_uuid(rank: int | str) -> str:
    """Return the UUID that stands for the GPU of a rank without one of its own."""
    return f"GPU-of-rank-{rank}"


def timer_of(job_id: str) -> Any:
    """Return the step timer of this rank. The UUID of a shared GPU would not tell its ranks apart."""
    from gpu_exporter.training import StepTimer

    return StepTimer(job_id, uuid=made_up_uuid(os.environ["RANK"]) if "NCCL_HOSTID" in os.environ else "")


def rank_main(names: Sequence[str], device_kind: str, seconds: float) -> None:
    """Train cases as one rank, which the environment describes as torchrun does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    local = int(os.environ["LOCAL_RANK"])
    if device_kind == "cuda":
        torch.cuda.set_device(local % torch.cuda.device_count())
        torch.set_float32_matmul_precision("high")  # TF32: else a step takes so long that the causes hardly matter
    dist.init_process_group("nccl" if device_kind == "cuda" else "gloo")
    for name in names:
        # A case that is repeated has several names.
        case = BY_NAME[name.partition("#")[0]]
        run = run_pipeline if case.strategy == "pipeline" else run_parallel
        run(case, name, device_kind, seconds)
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


def layers(device_kind: str, count: int, slow: Any, width: int) -> Any:
    """Return a model of linear layers, with the slow layer in the middle."""
    import torch

    # On the GPU: to fill large layers takes one CPU many seconds.
    parts = [torch.nn.Linear(width, width, device=device_kind) for _ in range(count)]
    parts.insert(count // 2, slow)
    return torch.nn.Sequential(*parts)


def tensor_layers(device_kind: str, count: int, slow: Any, width: int) -> Any:
    """Return the same with the weights divided among the ranks: an all-reduce after each two layers, in both passes."""
    import torch
    import torch.distributed as dist

    def total(tensor: Any) -> Any:
        tensor = tensor.contiguous().clone()
        dist.all_reduce(tensor)
        return tensor

    class Copy(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return total(gradient)

    class Sum(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return total(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    class Pair(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            part = width // dist.get_world_size()
            self.columns = torch.nn.Linear(width, part, device=device_kind)
            self.rows = torch.nn.Linear(part, width, bias=False, device=device_kind)

        def forward(self, x: Any) -> Any:
            return Sum.apply(self.rows(self.columns(Copy.apply(x))))

    parts = [Pair() for _ in range(count // 2)]
    parts.insert(len(parts) // 2, slow)
    return torch.nn.Sequential(*parts)


def wrapped(model: Any, strategy: str, device_kind: str) -> Any:
    """Return the model for several ranks."""
    import torch
    import torch.distributed as dist

    if strategy in ("ddp", "batchnorm"):
        return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100 if device_kind == "cuda" else 0.02)
    if strategy == "tensor":
        return model
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device_kind, (dist.get_world_size(),))
    if strategy == "dtensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        linear = [name for name, layer in model.named_children() if any(True for _ in layer.parameters())]
        plan = {name: (RowwiseParallel() if at % 2 else ColwiseParallel()) for at, name in enumerate(linear)}
        return parallelize_module(model, mesh, plan)
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def competitor(device_kind: str) -> Callable[[], None]:
    """Slow this GPU by other work until the returned function is called. On a CPU, nothing competes."""
    import threading

    import torch

    stop, device = threading.Event(), torch.cuda.current_device()

    def compete() -> None:
        torch.cuda.set_device(device)  # in a new thread, it is the first GPU
        stream = torch.cuda.Stream(priority=-1)  # at the usual priority, it may get what is left only
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

    for _ in range(5):
        step()
    if device_kind == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        step()
    if device_kind == "cuda":
        torch.cuda.synchronize()
    taken = torch.tensor([(time.perf_counter() - begin) / 5], device=device_kind)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return max(int(seconds / float(taken)), 10)


def run_parallel(case: Case, job_id: str, device_kind: str, seconds: float) -> None:
    """Train with data or tensor parallelism."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    slow = case.cause if rank == SLOW_RANK else ""
    cost = COST_SECONDS[device_kind]
    width, count, size = size_of(case, device_kind)
    layer = slow_layer(device_kind, cost * (slow == "forward"), cost * (slow == "backward"))
    make = tensor_layers if case.strategy == "tensor" else layers
    if case.strategy == "batchnorm":
        layer = torch.nn.Sequential(layer, torch.nn.BatchNorm1d(width, device=device_kind))
    model = wrapped(make(device_kind, count, layer, width), case.strategy, device_kind)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(size, width, device=device_kind)
    timer = timer_of(job_id)
    timer.watch(model)

    def load() -> Any:
        if slow == "data":
            time.sleep(LOADER_COSTS * cost)
        return batch

    def step() -> None:
        with timer.step(samples=len(batch)):
            with timer.phase("forward"):
                loss = model(current).square().mean()
            if case.strategy == "batchnorm":
                dist.all_reduce(loss.detach().clone())
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
    """Wait for the GPU, so that the last message has all steps. Print how long the CPU needs for a step."""
    import torch

    if device_kind == "cuda":
        torch.cuda.synchronize()
    timer.close()
    host = timer.recorder._host
    if host._shortest:
        text = ", ".join(f"{seconds * 1e3:.2f}" for seconds in host._shortest)
        lead = (host._ahead - host._lowest) * 1e3
        name = f"{timer.place.job_id} rank {timer.place.rank}"
        print(f"  {name}: shortest steps of the CPU {text} ms, lead at the end {lead:.1f} ms", file=sys.stderr)


def run_pipeline(case: Case, job_id: str, device_kind: str, seconds: float) -> None:
    """Train a pipeline with one stage per rank and four micro-batches. If it is uneven, SLOW_RANK has more layers."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    is_long = case.cause == "uneven" and rank == SLOW_RANK
    cost = COST_SECONDS[device_kind] / 8 if device_kind == "cpu" and is_long else 0.0
    width, count, samples = size_of(case, device_kind)
    slow = slow_layer(device_kind, cost, cost)
    model = layers(device_kind, count if is_long else count // 2, slow, width)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(samples // 2, width, device=device_kind)
    timer = timer_of(job_id)
    timer.watch(model)

    def micro_batches() -> list[tuple[Any, Any]]:
        done = []
        for _ in range(4):
            x = batch.clone()
            if rank > 0:
                dist.recv(x, rank - 1)
            x.requires_grad_()
            with timer.phase("forward"):
                y = model(x)
            if rank < size - 1:
                dist.send(y.detach(), rank + 1)
            done.append((x, y))
        return done

    def step() -> None:
        with timer.step(samples=4 * len(batch)):
            for x, y in micro_batches():
                gradient = torch.ones_like(y) / y.numel()
                if rank < size - 1:
                    dist.recv(gradient, rank + 1)
                with timer.phase("backward"):
                    y.backward(gradient)
                if rank > 0:
                    dist.send(x.grad, rank - 1)
            with timer.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    end = competitor(device_kind) if case.cause == "gpu" and rank == SLOW_RANK else None
    with timer.compile():
        number = steps_for(seconds, step, device_kind)
    for _ in range(number):
        step()
    finish(timer, device_kind)
    if end:
        end()
