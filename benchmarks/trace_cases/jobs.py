"""Cases of jobs: each kind of parallelism with each cause. The slow rank is `slow_rank`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from benchmarks.trace_cases.case import DEVICE, STRAGGLER, Case, Step, slow_rank
from benchmarks.trace_cases.parallel import (
    Train,
    data_parallel,
    fully_sharded,
    message_pipeline,
    ranks_of_job,
    scheduled_pipeline,
    stage_of,
    tensor_parallel,
)
from benchmarks.trace_cases.single import score_in_python, training

# So wide that a step takes the GPU longer than a profiled host takes to launch it.
GPU_BOUND = 8192
WIDE, NARROW, TINY = 2 * GPU_BOUND, GPU_BOUND // 4, 256
LATE = 2_000_000  # numbers, which take Python about 0.1 s
MakeTrain: TypeAlias = Callable[[str], Train]
PIPELINES = {"pipeline": scheduled_pipeline, "send_recv": message_pipeline}


def is_slow() -> bool:
    """Return whether this is the slow rank."""
    rank, ranks = ranks_of_job()
    return rank == slow_rank(ranks)


def steps(of: MakeTrain) -> Callable[[str], Step]:
    """Return equal ranks that do nothing but train."""

    def make(name: str) -> Step:
        train = of(name)
        return lambda number: train()

    return make


def sum_after_backward(buffer: Any) -> None:
    """Sum over all ranks when nothing else runs."""
    import torch

    for _ in range(4):
        torch.distributed.all_reduce(buffer)


def exposed(name: str) -> Step:
    """Communication that nothing overlaps."""
    import torch

    train = training(name, GPU_BOUND // 2)
    buffer = torch.zeros(1 << 30, device=DEVICE, dtype=torch.bfloat16)

    def step(number: int) -> None:
        train()
        sum_after_backward(buffer)

    return step


def augment(late: bool) -> None:
    """Prepare a batch on the CPU; on the slow rank, it takes long."""
    score_in_python(LATE if late else 1_000)


def late_host(of: MakeTrain) -> Case:
    """Return one rank whose host is slow."""

    def make(name: str) -> Step:
        train = of(name)

        def step(number: int) -> None:
            augment(is_slow())
            train()

        return step

    return Case(make, STRAGGLER, "host", score_in_python, ("layers",))


def slow_gpu(of: MakeTrain) -> Case:
    """Return one rank whose GPU has more to do."""

    def make(name: str) -> Step:
        train, more = of(name), training(name, GPU_BOUND)

        def step(number: int) -> None:
            for _ in range(2 if is_slow() else 0):
                more(None)
            train()

        return step

    return Case(make, STRAGGLER, "gpu", models=("layers",))


def alike(of: MakeTrain, expected: str) -> Case:
    """Return a job whose ranks are equal, with the class that its sizes make."""
    return Case(steps(of), expected, models=("layers",))


def _pipeline(kind: str, width: int, tokens: int, batches: int, layers: int = 2, inner: int = 0) -> MakeTrain:
    """Return a pipeline with so many batches for each rank."""
    return lambda name: PIPELINES[kind](stage_of(width, layers, inner), width, tokens, batches * ranks_of_job()[1])


def _uneven(kind: str) -> Case:
    """Return a pipeline, one stage of which has more layers."""

    def of(name: str) -> Train:
        layers = 6 if is_slow() else 2
        return _pipeline(kind, GPU_BOUND, GPU_BOUND // 2, 4, layers)(name)

    return Case(steps(of), STRAGGLER, "gpu", models=("layers",))


def _one_batch(name: str) -> Train:
    """Return a pipeline in which only one rank works at a time: nobody is slow."""
    return message_pipeline(stage_of(GPU_BOUND, 6), GPU_BOUND, GPU_BOUND, 1)


def _of_pipelines() -> Mapping[str, Case]:
    found: dict[str, Case] = {}
    for kind in PIPELINES:
        found |= {
            f"{kind}_balanced": alike(_pipeline(kind, GPU_BOUND, GPU_BOUND // 2, 8, layers=4), "compute-bound"),
            f"{kind}_late_host": late_host(_pipeline(kind, NARROW, NARROW, 2)),
            f"{kind}_slow_gpu": _uneven(kind),
        }
    return found


BOTH = ("layers", "attention")
JOBS: Mapping[str, Case] = {
    "ddp_balanced": Case(steps(lambda name: data_parallel(name, GPU_BOUND)), "compute-bound", models=BOTH),
    "ddp_exposed": Case(exposed, "communication-bound", "communication", sum_after_backward),
    "ddp_late_host": late_host(lambda name: data_parallel(name, NARROW)),
    "ddp_slow_gpu": slow_gpu(lambda name: data_parallel(name, GPU_BOUND)),
    "ddp_tiny": alike(lambda name: data_parallel(name, TINY, 0), "launch-bound"),
    "fsdp_balanced": alike(lambda name: fully_sharded(name, WIDE), "compute-bound"),
    "fsdp_exposed": alike(lambda name: fully_sharded(name, WIDE, 64), "communication-bound"),
    "fsdp_late_host": late_host(lambda name: fully_sharded(name, NARROW)),
    "fsdp_slow_gpu": slow_gpu(lambda name: fully_sharded(name, GPU_BOUND)),
    "fsdp_tiny": alike(lambda name: fully_sharded(name, TINY, 64), "launch-bound"),
    "tensor_balanced": alike(lambda name: tensor_parallel(GPU_BOUND, 4 * GPU_BOUND, GPU_BOUND), "compute-bound"),
    "tensor_exposed": alike(lambda name: tensor_parallel(GPU_BOUND, 512, 4 * GPU_BOUND), "communication-bound"),
    "tensor_late_host": late_host(lambda name: tensor_parallel(NARROW, 4 * NARROW, 4 * NARROW)),
    "tensor_slow_gpu": slow_gpu(lambda name: tensor_parallel(GPU_BOUND, 2 * GPU_BOUND, GPU_BOUND)),
    "tensor_tiny": alike(lambda name: tensor_parallel(TINY, 2 * TINY, 64, 8), "launch-bound"),
    **_of_pipelines(),
    "pipeline_exposed": alike(_pipeline("pipeline", WIDE, WIDE, 4, layers=1, inner=64), "communication-bound"),
    "send_recv_one_batch": alike(_one_batch, "mixed"),
    "pipeline_tiny": alike(_pipeline("pipeline", TINY, 16, 4, layers=4), "launch-bound"),
}
