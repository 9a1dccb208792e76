"""Cases of jobs. The last rank is the slow one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.trace_cases.case import Case, Step
from benchmarks.trace_cases.single import model_of, score_in_python, training


def is_last() -> bool:
    """Return whether this is the last rank, which is the slow one."""
    import torch

    rank, ranks = int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())
    return rank == ranks - 1


# So wide that a step takes the GPU longer than a profiled host takes to launch it.
GPU_BOUND = 8192


def parallel(name: str, width: int) -> Callable[[], Any]:
    """Return one step of data-parallel training, whose communication overlaps the backward pass."""
    import torch

    net, batch = model_of(name, width)
    model: Any = torch.nn.parallel.DistributedDataParallel(net)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)

    def train() -> None:
        for _ in range(4):
            with model.no_sync():
                model(batch).float().pow(2).mean().backward()
        model(batch).float().pow(2).mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    return train


def balanced(name: str) -> Step:
    """Equal ranks."""
    train = parallel(name, GPU_BOUND)
    return lambda number: train()


def sum_after_backward(buffer: Any) -> None:
    """Sum over all ranks when nothing else runs."""
    import torch

    for _ in range(4):
        torch.distributed.all_reduce(buffer)


def exposed(name: str) -> Step:
    """Communication that nothing overlaps."""
    import torch

    train = training(name, GPU_BOUND // 2)
    buffer = torch.zeros(1 << 30, device="cuda", dtype=torch.bfloat16)

    def step(number: int) -> None:
        train()
        sum_after_backward(buffer)

    return step


def augment(late: bool) -> None:
    """Prepare a batch on the CPU; on the last rank, it takes long."""
    score_in_python(1_000_000 if late else 1_000)


def late_host(name: str) -> Step:
    """One rank whose host is slow."""
    train = parallel(name, GPU_BOUND // 4)

    def step(number: int) -> None:
        augment(is_last())
        train()

    return step


def late_gpu(name: str) -> Step:
    """One rank whose GPU has more to do."""
    train, more = parallel(name, GPU_BOUND), training(name, GPU_BOUND)

    def step(number: int) -> None:
        for _ in range(2 if is_last() else 0):
            more(None)
        train()

    return step


JOBS: Mapping[str, Case] = {
    "balanced": Case(balanced, "compute-bound"),
    "exposed": Case(exposed, "communication-bound", "communication", sum_after_backward),
    "late_host": Case(late_host, "straggler", "host", score_in_python),
    "late_gpu": Case(late_gpu, "straggler", "gpu"),
}
