"""A training loop without any code of gpu-exporter, for `benchmarks.alert_to_line`.

    python alert_to_line_job.py FOLDER

It imports torch, waits for the file `go` in FOLDER, and trains until it is killed; after each step it creates `trains`
and its rank. While the file `slow` exists, the loader takes longer. RANK and WORLD_SIZE are those of torchrun. While
`stuck` exists, the last rank waits in its own code, and never enters the next collective. With more ranks than GPUs,
each set of ranks that fills the GPUs is a replica: NCCL, which refuses two ranks on one GPU, averages its gradients,
and Gloo the losses of all ranks.
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


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: torch.Tensor,
    replica: torch.distributed.ProcessGroup | None,
) -> float:
    """Train one step, and average the gradients of all ranks, or of those of a replica."""
    loss = model(batch).square().mean()
    loss.backward()
    if RANK == RANKS - 1:
        next_shard()
    if RANKS > 1:
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad, group=replica)
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().cpu()
    if replica:
        torch.distributed.all_reduce(mean)
    return float(mean.item())


def join(gpus: int) -> torch.distributed.ProcessGroup | None:
    """Join the process group of all ranks; return that of this replica if there are more ranks than GPUs."""
    if not gpus or gpus >= RANKS:
        torch.distributed.init_process_group("nccl" if gpus else "gloo")
        return None
    torch.distributed.init_process_group("gloo")
    replicas = [range(first, min(first + gpus, RANKS)) for first in range(0, RANKS, gpus)]
    groups = [torch.distributed.new_group(list(replica), backend="nccl") for replica in replicas]
    return groups[RANK // gpus]


def train() -> None:
    """Train with matrix products that fill the GPU."""
    while not requested("go"):
        time.sleep(0.02)
    gpus = torch.cuda.device_count()
    device = f"cuda:{RANK % gpus}" if gpus else "cpu"
    if gpus:
        torch.cuda.set_device(RANK % gpus)
    replica = join(gpus) if RANKS > 1 else None
    widths = (FEATURES, *[WIDTH] * 5)
    layers = (torch.nn.Linear(*pair, bias=False, device=device) for pair in itertools.pairwise(widths))
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seconds = 0.05
    while True:
        batch = load_batch(device, seconds)
        begin = time.monotonic()
        train_step(model, optimizer, batch, replica)
        seconds = min(0.2, time.monotonic() - begin)
        open(os.path.join(FOLDER, f"trains{RANK}"), "w").close()


train()
