"""The workloads of `benchmarks.host_causes`. Needs PyTorch with CUDA.

    python -m benchmarks.host_workloads NAME

Prints `ready` when it runs steadily, and runs until it is killed.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SIDE = 4096
# Products per step: about 9 ms on an H200, so that a step of Python of 6 ms is hidden behind it.
PRODUCTS = 40
PYTHON_SECONDS = 0.006
WARM_STEPS = 20
FILE_BYTES, READ_BYTES, READS = 1 << 30, 4096, 24
Step = Callable[[], None]


def spin(seconds: float) -> None:
    """Use a CPU for this time, of the thread's own clock: what others use of the CPU does not count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Gpu:
    """Matrix products on GPU 0, at most one step ahead of the GPU."""

    def __init__(self, side: int = SIDE) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._a, self._b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._c = torch.empty_like(self._a)
        self._previous: Any = None

    def step(self, products: int) -> None:
        """Queue some products, and wait, without using a CPU, until those of the step before are done."""
        for _ in range(products):
            self._torch.mm(self._a, self._b, out=self._c)
        event = self._torch.cuda.Event(blocking=True)
        event.record()
        if self._previous is not None:
            self._previous.synchronize()
        self._previous = event


def train() -> Iterator[Step]:
    """Yield steps that keep the GPU busy."""
    gpu = Gpu()
    while True:
        yield lambda: gpu.step(PRODUCTS)


def python_hidden() -> Iterator[Step]:
    """Yield steps of Python that take less time than the GPU, if the thread has a CPU."""
    gpu = Gpu()

    def step() -> None:
        spin(PYTHON_SECONDS)
        gpu.step(PRODUCTS)

    while True:
        yield step


def python_busy() -> Iterator[Step]:
    """Yield steps of Python that take several times as long as the GPU."""
    gpu = Gpu()

    def step() -> None:
        spin(5 * PYTHON_SECONDS)
        gpu.step(PRODUCTS)

    while True:
        yield step


def python_paced() -> Iterator[Step]:
    """Yield steps that sleep most of the time: no cause but where the process runs."""
    gpu = Gpu()

    def step() -> None:
        time.sleep(0.02)
        gpu.step(PRODUCTS)

    while True:
        yield step


def tiny() -> Iterator[Step]:
    """Yield steps of many tiny kernels."""
    import torch

    value = torch.zeros(16, device="cuda")

    def step() -> None:
        for _ in range(2000):
            value.add_(1)
        torch.cuda.synchronize()

    while True:
        yield step


def hold() -> Iterator[Step]:
    """Yield steps that do nothing, after memory was allocated."""
    Gpu()
    while True:
        yield lambda: time.sleep(0.5)


def _loader(item: Callable[[int], bytes], workers: int, products: int, batch: int = 8) -> Iterator[Step]:
    """Yield steps that wait for a batch of PyTorch's DataLoader."""
    import torch

    class Items(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, index: int) -> Any:
            item(index)
            return torch.zeros(1024)

    gpu = Gpu()
    loader = iter(torch.utils.data.DataLoader(Items(), batch_size=batch, num_workers=workers, prefetch_factor=2))

    def step() -> None:
        next(loader).to("cuda", non_blocking=True)
        gpu.step(products)

    while True:
        yield step


def _computed(seconds: float) -> Callable[[int], bytes]:
    def item(index: int) -> bytes:
        spin(seconds)
        return b""

    return item


def loader_light() -> Iterator[Step]:
    """Yield steps whose loader is much faster than the GPU."""
    yield from _loader(_computed(0.0002), 8, PRODUCTS)


def loader_cpu() -> Iterator[Step]:
    """Yield steps that wait for workers on nearly all CPUs: a batch takes each 0.5 s of CPU time."""
    workers = max(2, len(os.sched_getaffinity(0)) - 2)
    yield from _loader(_computed(0.5 / 8), workers, PRODUCTS)


def loader_one() -> Iterator[Step]:
    """Yield steps that wait for one worker: a batch takes it 40 ms."""
    yield from _loader(_computed(0.04 / 8), 1, PRODUCTS)


def loader_storage() -> Iterator[Step]:
    """Yield steps that wait for workers that read single blocks of a file past the page cache."""
    path = f"{os.environ['HOST_DATA']}/data"
    with open(path, "wb") as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())

    opened: dict[int, tuple[int, mmap.mmap]] = {}

    def item(index: int) -> bytes:
        if os.getpid() not in opened:
            opened[os.getpid()] = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, READ_BYTES)
        descriptor, buffer = opened[os.getpid()]
        for _ in range(READS * 8):
            os.preadv(descriptor, [buffer], random.randrange(FILE_BYTES // READ_BYTES) * READ_BYTES)
        return b""

    yield from _loader(item, 8, 10)


WORKLOADS: Mapping[str, Callable[[], Iterator[Step]]] = {
    "train": train,
    "python_hidden": python_hidden,
    "python_busy": python_busy,
    "python_paced": python_paced,
    "tiny": tiny,
    "hold": hold,
    "loader_light": loader_light,
    "loader_cpu": loader_cpu,
    "loader_one": loader_one,
    "loader_storage": loader_storage,
}


def main() -> None:
    """Run a workload until killed."""
    begin = time.monotonic()
    for count, step in enumerate(WORKLOADS[sys.argv[1]]()):
        step()
        if count == WARM_STEPS or (count > 2 and time.monotonic() - begin > 30):
            print("ready", flush=True)
            begin = float("inf")


if __name__ == "__main__":
    main()
