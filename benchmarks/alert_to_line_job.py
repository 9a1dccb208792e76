"""A training loop without any code of gpu-exporter, for `benchmarks.alert_to_line`.

    python alert_to_line_job.py FOLDER

It imports torch, waits for the file `go` in FOLDER, and trains until it is killed; after each step it creates `trains`
and its rank. While the file `slow` exists, the loader takes longer. RANK and WORLD_SIZE are those of torchrun. While
`stuck` exists, the last rank waits in its own code, and never enters the next collective.
"""

import itertools
import os
import sys
import time

import torch
import torch.distributed

FOLDER = sys.argv[1]
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
# The batch is small, and the products are large: without `slow`, the GPU hardly waits.
FEATURES, WIDTH, BATCH = (512, 8192, 2048) if torch.cuda.is_available() else (64, 256, 64)
# A slow batch takes so many times as long as the computation.
SLOWER = 3


def requested(name: str) -> bool:
    """Return whether somebody has created this file."""
    return os.path.exists(os.path.join(FOLDER, name))


def load_batch(device: str, seconds: float) -> torch.Tensor:
    """Return a batch; on request, slowly."""
    if requested("slow"):
        time.sleep(SLOWER * seconds)
    return torch.rand(BATCH, FEATURES).to(device)


def next_shard() -> None:
    """Return when the next shard is there. On request, it never is."""
    while requested("stuck"):
        time.sleep(0.2)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """Train one step, and average the gradients of all ranks."""
    loss = model(batch).square().mean()
    loss.backward()
    if RANK == RANKS - 1:
        next_shard()
    if RANKS > 1:
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.item())


def train() -> None:
    """Train with matrix products that fill the GPU."""
    while not requested("go"):
        time.sleep(0.02)
    cuda = torch.cuda.is_available()
    device = f"cuda:{RANK}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(RANK)
    if RANKS > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
    widths = (FEATURES, *[WIDTH] * 5)
    layers = (torch.nn.Linear(*pair, bias=False, device=device) for pair in itertools.pairwise(widths))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seconds = 0.05
    while True:
        batch = load_batch(device, seconds)
        begin = time.monotonic()
        train_step(model, optimizer, batch)
        seconds = min(0.2, time.monotonic() - begin)
        open(os.path.join(FOLDER, f"trains{RANK}"), "w").close()


train()
