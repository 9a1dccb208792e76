"""Workloads of the ranks of a job. The docstring of each says how it provokes its phase.

Each function prepares one rank and returns a step; all ranks run the same number of steps. The last rank is
the one that is late. A step with the attribute `once` runs for the whole phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.phases.single import NOTHING, Injected, Once, Step, graphed, injecting, products, repeated

MIB = 2**20


class Rank:
    """This process as a rank of `ranks`, and how long the phase is."""

    def __init__(self, rank: int, ranks: int, seconds: float) -> None:
        self.rank, self.ranks, self.seconds = rank, ranks, seconds

    @property
    def is_last(self) -> bool:
        return self.rank == self.ranks - 1


def _buffer(size: int) -> Any:
    import torch

    return torch.zeros(max(1, size // 2), device="cuda", dtype=torch.bfloat16)


def _reduce(data: Any) -> None:
    import torch

    torch.distributed.all_reduce(data)


def _ddp(rank: Rank, batch: int = 16384, width: int = 4096, layers: int = 8) -> Callable[[], None]:
    """Return a step of data-parallel training."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to("cuda", torch.bfloat16)
    model: Any = DistributedDataParallel(net)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        model(data).float().pow(2).mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        torch.cuda.synchronize()

    return step


def _late(rank: Rank, step: Callable[[], None], seconds: float, *, everyone: bool = False) -> Step:
    """Return the step with a pause first: the last rank sleeps, the others wait for it."""

    def late() -> Injected:
        if rank.is_last or everyone:
            with injecting("host") as injected:
                time.sleep(seconds)
        else:
            injected = {"peers": seconds}
        step()
        return injected

    return late


def _plain(step: Callable[[], object]) -> Step:
    def plain() -> Injected:
        step()
        return NOTHING

    return plain


def ddp_balanced(rank: Rank) -> Step:
    """Data-parallel training of a multilayer perceptron, the same on all ranks."""
    return _plain(_ddp(rank))


def ddp_late_5ms(rank: Rank) -> Step:
    """The same; the last rank sleeps 5 ms in each step."""
    return _late(rank, _ddp(rank), 0.005)


def ddp_late_20ms(rank: Rank) -> Step:
    """The same; the last rank sleeps 20 ms in each step."""
    return _late(rank, _ddp(rank), 0.020)


def ddp_late_100ms(rank: Rank) -> Step:
    """The same; the last rank sleeps 100 ms in each step."""
    return _late(rank, _ddp(rank), 0.100)


def ddp_all_late(rank: Rank) -> Step:
    """The same; all ranks sleep 20 ms in each step."""
    return _late(rank, _ddp(rank), 0.020, everyone=True)


def ddp_jitter(rank: Rank) -> Step:
    """The same; one rank after another sleeps 10 ms."""
    step, count = _ddp(rank), iter(range(10**9))

    def jitter() -> Injected:
        if next(count) % rank.ranks == rank.rank:
            time.sleep(0.010)
        step()
        return NOTHING

    return jitter


def ddp_launch_bound(rank: Rank) -> Step:
    """Data-parallel training with a batch of 8: all ranks are bound by launches."""
    return _plain(_ddp(rank, batch=8, width=512, layers=24))


def ddp_launch_bound_late(rank: Rank) -> Step:
    """The same; the last rank sleeps 2 ms in each step."""
    return _late(rank, _ddp(rank, batch=8, width=512, layers=24), 0.002)


def _with_more(rank: Rank, share: float) -> Step:
    """The last rank computes more in each step, as a slower chip would: `share` of the time of a step without it."""
    import torch

    step, work = _ddp(rank), products()
    for _ in range(5):
        step()
    begin = time.perf_counter()
    for _ in range(10):
        step()
    took = torch.tensor([(time.perf_counter() - begin) / 10], device="cuda")
    torch.distributed.broadcast(took, 0)
    seconds = share * float(took)

    def slow() -> Injected:
        if rank.is_last:
            work(seconds)
        step()
        return NOTHING

    return slow


def ddp_slow_15(rank: Rank) -> Step:
    """The last rank computes 15 % more in each step, as a GPU does that is 15 % slower."""
    return _with_more(rank, 0.15)


def ddp_slow_40(rank: Rank) -> Step:
    """The last rank computes 40 % more in each step."""
    return _with_more(rank, 0.40)


def ddp_slow_150(rank: Rank) -> Step:
    """The last rank computes 150 % more in each step."""
    return _with_more(rank, 1.5)


def _bulk(rank: Rank, *, more: float = 1.0, late: float = 0.0) -> Step:
    """Each rank works for 20 ms, then waits for the others in an all-reduce of 1 MiB, and measures how long.

    The last rank has `more` times the work, or sleeps first.
    """
    import torch

    work, data = products(), _buffer(MIB)

    def step() -> Injected:
        begin = time.perf_counter()
        if rank.is_last and late:
            time.sleep(late)
        slept = time.perf_counter() - begin
        work(0.020 * (more if rank.is_last else 1.0))
        with injecting("peers") as waited:
            _reduce(data)
            torch.cuda.synchronize()
        return {**waited, "host": slept}

    return step


def bulk_even(rank: Rank) -> Step:
    """Bulk-synchronous steps: 20 ms of products, then an all-reduce of 1 MiB."""
    return _bulk(rank)


def bulk_slow_50(rank: Rank) -> Step:
    """The same; the last rank has 1.5 times the work."""
    return _bulk(rank, more=1.5)


def bulk_slow_200(rank: Rank) -> Step:
    """The same; the last rank has 3 times the work."""
    return _bulk(rank, more=3.0)


def bulk_late_10ms(rank: Rank) -> Step:
    """The same; the last rank sleeps 10 ms first."""
    return _bulk(rank, late=0.010)


def _tensor_parallel(batch: int, layers: int = 8, width: int = 8192) -> Callable[[], object]:
    import torch

    weights = [torch.randn(width, width // 2, device="cuda", dtype=torch.bfloat16) / width for _ in range(layers)]
    state = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)

    def forward() -> object:
        hidden = state
        for weight in weights:
            hidden = (hidden @ weight) @ weight.t()
            _reduce(hidden)
        return hidden

    return forward


def _synchronous(run: Callable[[], object]) -> Step:
    import torch

    def step() -> Injected:
        run()
        torch.cuda.synchronize()
        return NOTHING

    return step


def tensor_parallel(rank: Rank) -> Step:
    """Tensor parallelism with 4096 tokens: two products, then an all-reduce of 64 MiB for each layer."""
    return _synchronous(_tensor_parallel(4096))


def tensor_parallel_decode(rank: Rank) -> Step:
    """Tensor parallelism with 1 token, launched one kernel at a time: all-reduces of 16 KiB."""
    return _synchronous(_tensor_parallel(1))


def tensor_parallel_graph(rank: Rank) -> Step:
    """The same in a CUDA graph."""
    return graphed(_tensor_parallel(1), 4)


def tensor_parallel_serving(rank: Rank) -> Step:
    """The same in a CUDA graph, with 30 ms of sleep after twenty: requests arrive slowly."""
    replay = graphed(_tensor_parallel(1), 4)

    def step() -> Injected:
        replay()
        with injecting("host") as injected:
            time.sleep(0.030)
        return injected

    return step


def _pipeline(rank: Rank, work: float, *, uneven: float = 1.0) -> Step:
    """Each rank computes and sends 32 MiB to the next; then the gradients come back. The first has `uneven` times the
    work."""
    import torch

    compute, data = products(), _buffer(32 * MIB)
    seconds = work * (uneven if rank.rank == 0 else 1.0)

    def step() -> Injected:
        for direction in (1, -1):
            before, after = rank.rank - direction, rank.rank + direction
            for _ in range(4):
                if 0 <= before < rank.ranks:
                    torch.distributed.recv(data, before)
                compute(seconds)
                if 0 <= after < rank.ranks:
                    torch.distributed.send(data, after)
        torch.cuda.synchronize()
        return NOTHING

    return step


def pipeline_even(rank: Rank) -> Step:
    """A pipeline with 4 microbatches and 5 ms of work per stage."""
    return _pipeline(rank, 0.005)


def pipeline_uneven(rank: Rank) -> Step:
    """The same; the first stage has three times the work."""
    return _pipeline(rank, 0.005, uneven=3.0)


def expert_parallel(rank: Rank) -> Step:
    """Expert parallelism: an all-to-all of 128 MiB, a product, an all-to-all back."""
    import torch

    tokens, received = _buffer(128 * MIB), _buffer(128 * MIB)
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def run() -> None:
        torch.distributed.all_to_all_single(received, tokens)
        torch.mm(received.view(-1, 4096), weight)
        torch.distributed.all_to_all_single(tokens, received)

    return _synchronous(run)


def fsdp(rank: Rank) -> Step:
    """Fully sharded training of a multilayer perceptron (FSDP2)."""
    import torch
    from torch.distributed.fsdp import fully_shard

    net = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192) for _ in range(8))).to("cuda", torch.bfloat16)
    for layer in net:
        fully_shard(layer)
    model: Any = fully_shard(net)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def step() -> Injected:
        model(data).float().pow(2).mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        torch.cuda.synchronize()
        return NOTHING

    return step


def reduce_4k(rank: Rank) -> Step:
    """All-reduces of 4 KiB in a loop: bound by latency."""
    data = _buffer(4096)
    return repeated(lambda: _reduce(data), 200)


def reduce_1m(rank: Rank) -> Step:
    """All-reduces of 1 MiB in a loop."""
    data = _buffer(MIB)
    return repeated(lambda: _reduce(data), 200)


def reduce_1g(rank: Rank) -> Step:
    """All-reduces of 1 GiB in a loop."""
    data = _buffer(1024 * MIB)
    return repeated(lambda: _reduce(data), 5)


def _hang(rank: Rank, collective: Callable[[], object]) -> Step:
    """All ranks but the last enter a collective; the last enters it at the end of the phase."""
    import torch

    for _ in range(3):
        collective()
    torch.cuda.synchronize()

    def hang() -> Injected:
        if rank.is_last:
            time.sleep(rank.seconds)
        collective()
        torch.cuda.synchronize()
        return NOTHING

    return Once(hang)


def _hang_reduce(rank: Rank, size: int) -> Step:
    data = _buffer(size)
    return _hang(rank, lambda: _reduce(data))


def hang_4k(rank: Rank) -> Step:
    """All ranks but the last wait in an all-reduce of 4 KiB."""
    return _hang_reduce(rank, 4096)


def hang_1m(rank: Rank) -> Step:
    """All ranks but the last wait in an all-reduce of 1 MiB."""
    return _hang_reduce(rank, MIB)


def hang_64m(rank: Rank) -> Step:
    """All ranks but the last wait in an all-reduce of 64 MiB."""
    return _hang_reduce(rank, 64 * MIB)


def hang_1g(rank: Rank) -> Step:
    """All ranks but the last wait in an all-reduce of 1 GiB."""
    return _hang_reduce(rank, 1024 * MIB)


def hang_gather(rank: Rank) -> Step:
    """All ranks but the last wait in an all-gather of 64 MiB."""
    import torch

    data, gathered = _buffer(64 * MIB), _buffer(64 * MIB * rank.ranks)
    return _hang(rank, lambda: torch.distributed.all_gather_into_tensor(gathered, data))


def hang_receive(rank: Rank) -> Step:
    """The first rank waits for data that the last does not send: a pipeline that stands still."""
    import torch

    data = _buffer(16 * MIB)

    def exchange() -> None:
        if rank.rank == 0:
            torch.distributed.recv(data, rank.ranks - 1)
        elif rank.is_last:
            torch.distributed.send(data, 0)

    return _hang(rank, exchange)


def evaluation_on_last(rank: Rank) -> Step:
    """The last rank evaluates on its GPU for the whole phase; the others wait in an all-reduce."""
    import torch

    work, data = products(), _buffer(MIB)
    _reduce(data)
    torch.cuda.synchronize()

    def evaluate() -> Injected:
        if rank.is_last:
            work(rank.seconds)
        _reduce(data)
        torch.cuda.synchronize()
        return NOTHING

    return Once(evaluate)


def two_jobs(rank: Rank) -> Step:
    """Two jobs on one node: products on the first GPU; on the others, products with 70 % of sleep."""
    work = products()

    def step() -> Injected:
        if rank.rank == 0:
            work(0.1)
            return NOTHING
        work(0.03)
        with injecting("host") as injected:
            time.sleep(0.07)
        return injected

    return step


def peer_copies(rank: Rank) -> Step:
    """The first rank copies 1 GiB from the last GPU to its own over NVLink, without a kernel."""
    import torch

    if rank.rank:
        return lambda: _pause(0.05)
    origin = torch.empty(1024 * MIB, device=f"cuda:{rank.ranks - 1}", dtype=torch.uint8)
    target = torch.empty(1024 * MIB, device="cuda:0", dtype=torch.uint8)

    def step() -> Injected:
        for _ in range(17):
            target.copy_(origin)
        torch.cuda.synchronize()
        return NOTHING

    return step


def _pause(seconds: float) -> Injected:
    time.sleep(seconds)
    return NOTHING


def hang_crossed(rank: Rank) -> Step:
    """The first half of the ranks enters another collective than the rest: all wait, for ever."""
    import torch

    groups = [torch.distributed.new_group() for _ in range(2)]
    data = _buffer(MIB)
    for group in groups:
        torch.distributed.all_reduce(data, group=group)
    torch.cuda.synchronize()

    def crossed() -> Injected:
        torch.distributed.all_reduce(data, group=groups[rank.rank * 2 >= rank.ranks])
        time.sleep(rank.seconds)
        return NOTHING

    return Once(crossed)
