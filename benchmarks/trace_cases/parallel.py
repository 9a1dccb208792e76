"""One step of training in each kind of parallelism, on all ranks of the job.

A size is chosen so that a step is bound by the GPU, by transfer or by launches: profiling with stacks slows down the
host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from benchmarks.trace_cases.case import DEVICE
from benchmarks.trace_cases.single import model_of

Train: TypeAlias = Callable[[], None]


def ranks_of_job() -> tuple[int, int]:
    """Return the rank of this process, and the number of ranks."""
    import torch

    return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())


def optimiser_of(net: Any) -> Any:
    """Return an optimiser without state."""
    import torch

    return torch.optim.SGD(net.parameters(), lr=1e-6)


def _backward(net: Any, batch: Any) -> Train:
    optimiser = optimiser_of(net)

    def train() -> None:
        net(batch).float().pow(2).mean().backward()
        optimiser.step()
        optimiser.zero_grad()

    return train


def data_parallel(name: str, width: int, accumulates: int = 4) -> Train:
    """Train with DDP, whose communication overlaps the last of the backward passes."""
    import torch

    net, batch = model_of(name, width)
    model: Any = torch.nn.parallel.DistributedDataParallel(net)
    last = _backward(model, batch)

    def train() -> None:
        for _ in range(accumulates):
            with model.no_sync():
                model(batch).float().pow(2).mean().backward()
        last()

    return train


def fully_sharded(name: str, width: int, tokens: int = 8192) -> Train:
    """Train with FSDP2, each layer of which is gathered before its use."""
    from torch.distributed.fsdp import fully_shard

    net, batch = model_of(name, width)
    for layer in net:
        fully_shard(layer)
    fully_shard(net)
    return _backward(net, batch[:tokens])


def tensor_parallel(width: int, hidden: int, tokens: int, blocks: int = 4) -> Train:
    """Train with tensor parallelism: the first product of a block by column, the second by row, then an all-reduce."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with torch.device(DEVICE):
        net = torch.nn.Sequential(
            *(
                torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width))
                for _ in range(blocks)
            )
        ).bfloat16()
        batch = torch.randn(tokens, width, dtype=torch.bfloat16)
    mesh = init_device_mesh(DEVICE, (ranks_of_job()[1],))
    for block in net:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return _backward(net, batch)


def stage_of(width: int, layers: int, inner: int = 0) -> Any:
    """Return the layers of one stage of a pipeline; with `inner`, each is narrow between two products."""
    import torch

    def layer() -> Any:
        if inner:
            return torch.nn.Sequential(torch.nn.Linear(width, inner), torch.nn.Linear(inner, width))
        return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU())

    with torch.device(DEVICE):
        return torch.nn.Sequential(*(layer() for _ in range(layers))).bfloat16()


def scheduled_pipeline(net: Any, width: int, tokens: int, batches: int) -> Train:
    """Train with PyTorch's pipeline, by the 1F1B schedule: messages of both directions are sent together."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = ranks_of_job()
    optimiser = optimiser_of(net)
    stage = PipelineStage(net, rank, ranks, next(net.parameters()).device)
    # A loss that costs nothing: the last stage has no more work than the others.
    schedule = Schedule1F1B(stage, batches, loss_fn=lambda output, _: output.mean())
    whole = (
        torch.randn(batches * tokens, width, device=DEVICE, dtype=torch.bfloat16) if rank in (0, ranks - 1) else None
    )

    def train() -> None:
        given = (whole,) if rank == 0 else ()
        schedule.step(*given, **({"target": whole} if rank == ranks - 1 else {}))
        optimiser.step()
        optimiser.zero_grad()

    return train


def message_pipeline(net: Any, width: int, tokens: int, batches: int) -> Train:
    """Train a pipeline with a `send` and a `recv` for each message: all batches forward, then all backward."""
    import torch

    rank, ranks = ranks_of_job()
    optimiser = optimiser_of(net)
    first = torch.randn(tokens, width, device=DEVICE, dtype=torch.bfloat16)

    def train() -> None:
        passed = []
        for _ in range(batches):
            given = first.clone()
            if rank > 0:
                torch.distributed.recv(given, rank - 1)
                given.requires_grad_()
            output = net(given)
            if rank < ranks - 1:
                torch.distributed.send(output.detach(), rank + 1)
            passed.append((given, output))
        for given, output in reversed(passed):
            if rank < ranks - 1:
                gradient = torch.empty_like(output)
                torch.distributed.recv(gradient, rank + 1)
                output.backward(gradient)
            else:
                output.mean().backward()
            if rank > 0:
                torch.distributed.send(given.grad, rank - 1)
        optimiser.step()
        optimiser.zero_grad()

    return train
