"""Cases of one GPU. The culprit of each is a function of its own."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.trace_cases.case import DEVICE, STEPS, Case, Step


def model_of(name: str, width: int = 2048) -> tuple[Any, Any]:
    """Return a model and a batch: some layers, or an encoder with attention."""
    import torch

    with torch.device(DEVICE):
        if name == "layers":
            layers = (torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(6))
            return torch.nn.Sequential(*layers).bfloat16(), torch.randn(8192, width, dtype=torch.bfloat16)
        layer = torch.nn.TransformerEncoderLayer(width // 2, 8, width * 2, batch_first=True)
        net = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        return net.bfloat16(), torch.randn(16, 512, width // 2, dtype=torch.bfloat16)


def training(name: str, width: int = 2048) -> Callable[..., Any]:
    """Return one step of training, which returns the loss; its batch is the model's own unless one is given."""
    import torch

    net, batch = model_of(name, width)
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-6)

    def train(given: Any = None) -> Any:
        loss = net(batch if given is None else given).float().pow(2).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss

    train.__dict__.update(net=net, batch=batch)
    return train


def decode_sample(seed: int) -> list[float]:
    """Do the work of a slow loader: decode a sample in Python."""
    value, sample = seed, []
    for _ in range(60_000):
        value = (1103515245 * value + 12345) % 2**31
        sample.append(value / 2**31)
    return sample


def slow_loader(name: str) -> Step:
    """A loader in the main process."""
    import torch

    train = training(name)

    class Samples:
        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(decode_sample(index)[:64])

    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=2))

    def step(number: int) -> None:
        next(batches).cuda()
        train()

    return step


def log_statistics(net: Any) -> float:
    """Read a number of each parameter from the GPU, one after another."""
    return float(sum(parameter.abs().max().item() for parameter in net.parameters()))


def items(name: str) -> Step:
    """Numbers that are read from the GPU in the loop."""
    train: Any = training(name, 512)

    def step(number: int) -> None:
        train()
        for _ in range(10):
            log_statistics(train.net)

    return step


def update_averages(averages: list[Any]) -> None:
    """Launch one small kernel for each of many small tensors."""
    for average in averages:
        average.mul_(0.99)


def small_kernels(name: str) -> Step:
    """Kernels that are shorter than their launch."""
    import torch

    train = training(name, 256)
    averages = [torch.ones(256, device="cuda") for _ in range(1500)]

    def step(number: int) -> None:
        train()
        update_averages(averages)

    return step


def move_batch(batch: Any) -> Any:
    """Copy pageable memory to the GPU."""
    return batch.to("cuda")


def pageable(name: str) -> Step:
    """Batches in pageable memory."""
    import torch

    train = training(name, 512)
    batch = torch.ones(64 << 20)

    def step(number: int) -> None:
        move_batch(batch)
        train()

    return step


def save_checkpoint(net: Any) -> None:
    """Write a checkpoint while the GPU waits."""
    import torch

    with tempfile.NamedTemporaryFile() as file:
        for _ in range(6):
            torch.save(net.state_dict(), file.name)


def checkpoint(name: str) -> Step:
    """A checkpoint in one step."""
    train: Any = training(name, 4096)

    def step(number: int) -> None:
        train()
        if number == STEPS:
            save_checkpoint(train.net)

    return step


def collect_garbage(kept: list[Any]) -> None:
    """Run the garbage collector over many objects."""
    gc.collect()


def garbage(name: str) -> Step:
    """A garbage collection in each step."""
    train, kept = training(name, 1024), [{number: [number]} for number in range(300_000)]

    def step(number: int) -> None:
        train()
        collect_garbage(kept)

    return step


def score_in_python(numbers: int) -> int:
    """Compute in Python while the GPU waits."""
    total = 0
    for number in range(numbers):
        total += number * number % 7
    return total


def slow_python(name: str) -> Step:
    """Python between two steps."""
    train = training(name, 1024)

    def step(number: int) -> None:
        train()
        score_in_python(400_000)

    return step


def graph_decode(name: str) -> Step:
    """Small kernels in a CUDA graph, which is replayed."""
    import torch

    net, batch = model_of(name, 1024)
    few = batch[:16]
    with torch.no_grad():
        for _ in range(3):
            net(few)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                net(few)

    def step(number: int) -> None:
        for _ in range(20):
            graph.replay()

    return step


def compute(name: str) -> Step:
    """Nothing but products of large matrices."""
    train = training(name, 4096)

    def step(number: int) -> None:
        for _ in range(4):
            train()

    return step


def wide_norm(batch: Any, precise: bool) -> Any:
    """Normalise, in 64 bits if `precise`."""
    import torch

    wide = batch.double() if precise else batch.float()
    for _ in range(20):
        wide = torch.nn.functional.layer_norm(wide, wide.shape[-1:])
    return wide.bfloat16()


def _normalised(name: str, precise: bool) -> Step:
    train: Any = training(name)

    def step(number: int) -> None:
        train(wide_norm(train.batch, precise))

    return step


def before(name: str) -> Step:
    """The first of a pair, in which one operator differs."""
    return _normalised(name, False)


def after(name: str) -> Step:
    """The second of a pair: one operator is slower."""
    return _normalised(name, True)


CASES: Mapping[str, Case] = {
    "slow_loader": Case(slow_loader, "data-loading-bound", "data_loading", decode_sample),
    "items": Case(items, "sync-bound", "synchronisation", log_statistics),
    "small_kernels": Case(small_kernels, "launch-bound", "launch_overhead", update_averages),
    "pageable": Case(pageable, "copy-bound", "copies", move_batch),
    "checkpoint": Case(checkpoint, "checkpoint-bound", "checkpoint", save_checkpoint),
    "garbage": Case(garbage, "mixed", "garbage_collection", collect_garbage),
    "python": Case(slow_python, "mixed", "python", score_in_python),
    "graph_decode": Case(graph_decode, "compute-bound"),
    "compute": Case(compute, "compute-bound"),
    "before": Case(before, "", models=("attention",)),
    "after": Case(after, "", models=("attention",)),
}
