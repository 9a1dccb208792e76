"""GPU workloads for the other benchmarks. Needs PyTorch with CUDA.

    python -m benchmarks.workloads stall
    python -m benchmarks.workloads gemm [RANK RANKS PORT]

`stall` alternates 0.5 s of matrix products and 0.5 s of sleep, and prints the times of each busy phase. The others read
a number of steps from each line of input, run them and print the seconds they took.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[], None]
SIDE = 8192
STALL_SECONDS = 0.5
TRAINING_SECONDS = 0.03
TINY_KERNELS = 2000


def gemm() -> Step:
    """Return a step that queues one bf16 matrix product of 8192 x 8192."""
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=c)


def launches() -> Step:
    """Return a step of many tiny kernels, bound by the launches. Pins to one CPU because migrations are noise."""
    import torch

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    value = torch.zeros(1, device="cuda")

    def step() -> None:
        for _ in range(TINY_KERNELS):
            value.add_(1)

    return step


def training() -> Step:
    """Return a synchronous training step of a transformer. The batch size is chosen so that it takes about 30 ms."""
    import torch

    def model(batch: int) -> Step:
        net = torch.nn.Sequential(
            *(
                torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0, activation="gelu")
                for _ in range(8)
            )
        ).to("cuda", torch.bfloat16)
        optimiser = torch.optim.AdamW(net.parameters(), lr=1e-5)
        data = torch.randn(batch, 256, 1024, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            loss: Any = net(data).float().pow(2).mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            torch.cuda.synchronize()

        return step

    batch = 8
    while True:
        step = model(batch)
        for _ in range(5):
            step()
        took = statistics.median(timed(step) for _ in range(10))
        if took > TRAINING_SECONDS * 0.8:
            return step
        batch = max(batch + 1, int(batch * TRAINING_SECONDS / took))


def all_reduce() -> Step:
    """Return a step that sums 256 MiB over all ranks, each with one GPU."""
    import torch

    data = torch.zeros(256 * 2**20 // 2, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.distributed.all_reduce(data)


def hashing() -> Step:
    """Return a step without a GPU, to test the benchmarks."""
    data = bytes(2**20)
    return lambda: hashlib.sha256(data).update(data)


STEPS: Mapping[str, Callable[[], Step]] = {
    "gemm": gemm,
    "launches": launches,
    "training": training,
    "all_reduce": all_reduce,
    "hashing": hashing,
}


def serve(name: str, rank: int = 0, ranks: int = 1, port: int = 0) -> None:
    """For each line of input, run that number of steps to completion; print the seconds."""
    synchronise: Step = _connected(rank, ranks, port) if name != "hashing" else lambda: None
    step = STEPS[name]()
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        synchronise()
        print(f"{time.perf_counter() - begin:.9f}", flush=True)


def _connected(rank: int, ranks: int, port: int) -> Step:
    import torch

    torch.cuda.set_device(rank)
    if ranks > 1:
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # some virtual machines lack NVLink multicast
        url = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("nccl", init_method=url, rank=rank, world_size=ranks)
    return lambda: torch.cuda.synchronize()


def timed(step: Step) -> float:
    """Run a step; return the seconds it took."""
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def stall() -> None:
    """Alternate between work and sleep; print the unix times of the start and end of each busy phase."""
    import torch

    product = gemm()
    product()
    torch.cuda.synchronize()
    while True:
        begin = time.time()
        while time.time() - begin < STALL_SECONDS:
            for _ in range(4):
                product()
            torch.cuda.synchronize()
        print(f"{begin:.6f} {time.time():.6f}", flush=True)
        time.sleep(STALL_SECONDS)


def main(name: str, *numbers: str) -> None:
    """Run a workload until killed."""
    if name == "stall":
        stall()
    serve(name, *map(int, numbers))


if __name__ == "__main__":
    main(*sys.argv[1:])
