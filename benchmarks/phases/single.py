"""Workloads of one GPU. The docstring of each says how it provokes its phase.

Each function prepares a workload on the current device and returns a step. A step returns how many seconds it spent on
each cause that it provokes on purpose, such as `host` for sleep; the rest of its time is work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Injected = Mapping[str, float]
Step = Callable[[], Injected]
NOTHING: Injected = {}
SIDE = 8192
GIB = 2**30
# Blocks of kernels that fill a part of the SMs: as many as NCCL uses channels.
FEW_BLOCKS = 24


@dataclass(frozen=True, slots=True)
class Once:
    """A step that lasts for the whole phase."""

    step: Step

    def __call__(self) -> Injected:
        return self.step()


@contextmanager
def injecting(cause: str) -> Iterator[dict[str, float]]:
    """Measure the seconds of the block as injected time of a cause."""
    injected: dict[str, float] = {}
    begin = time.perf_counter()
    yield injected
    injected[cause] = time.perf_counter() - begin


def matrices(side: int = SIDE, dtype: str = "bfloat16") -> tuple[Any, Any]:
    """Return two random square matrices."""
    import torch

    kind = getattr(torch, dtype)
    return (
        torch.randn(side, side, device="cuda", dtype=kind),
        torch.randn(side, side, device="cuda", dtype=kind),
    )


def products() -> Callable[[float], None]:
    """Return a function that keeps the GPU busy with bf16 products for about as many seconds as it is given."""
    import torch

    a, b = matrices()
    c = torch.empty_like(a)

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(a, b, out=c)
        torch.cuda.synchronize()

    run(50)
    begin = time.perf_counter()
    run(100)
    each = (time.perf_counter() - begin) / 100
    return lambda seconds: run(max(1, round(seconds / each)))


def repeated(kernel: Callable[[], object], times: int = 20) -> Step:
    """Return a step that runs a kernel several times and waits for it."""
    import torch

    def step() -> Injected:
        for _ in range(times):
            kernel()
        torch.cuda.synchronize()
        return NOTHING

    return step


def graphed(kernel: Callable[[], object], kernels: int) -> Step:
    """Return a step that replays a CUDA graph of a kernel, so that there are no gaps between launches."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            kernel()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(kernels):
            kernel()
    return repeated(graph.replay)


def idle_context() -> Step:
    """A process holds 4 GiB and does nothing."""
    import torch

    held = torch.empty(4 * GIB, device="cuda", dtype=torch.uint8)
    return lambda: _sleep(0.2, held)


def idle_after_load() -> Step:
    """A process that has just worked at full power does nothing: clocks and temperature are still high."""
    work = products()
    work(3.0)
    return lambda: _sleep(0.2, work)


def _sleep(seconds: float, *_held: object) -> Injected:
    with injecting("host") as injected:
        time.sleep(seconds)
    return injected


def gemm_bf16() -> Step:
    """Products of 8192 x 8192 in bf16."""
    return _product("bfloat16")


def gemm_fp32() -> Step:
    """Products of 8192 x 8192 in FP32, without tensor cores."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    return _product("float32", 4)


def gemm_fp64() -> Step:
    """Products of 8192 x 8192 in FP64."""
    return _product("float64", 4)


def _product(dtype: str, times: int = 20) -> Step:
    import torch

    a, b = matrices(dtype=dtype)
    c = torch.empty_like(a)
    return repeated(lambda: torch.mm(a, b, out=c), times)


def copy() -> Step:
    """Copies of 4 GiB within the GPU."""
    import torch

    origin = torch.empty(4 * GIB, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(origin)
    return repeated(lambda: target.copy_(origin))


def elementwise() -> Step:
    """Additions of tensors of 4 GiB."""
    import torch

    value = torch.zeros(2**30, device="cuda")
    return repeated(lambda: value.add_(1.0))


def softmax() -> Step:
    """Softmax over rows of 1024 numbers."""
    import torch

    value = torch.randn(2**18, 1024, device="cuda", dtype=torch.bfloat16)
    return repeated(lambda: torch.softmax(value, 1))


def gather() -> Step:
    """Reads rows of 64 bytes at random places of 16 GiB."""
    import torch

    table = torch.empty(2**28, 16, device="cuda")
    places = torch.randint(2**28, (2**24,), device="cuda")
    return repeated(lambda: table[places])


def one_thread() -> Step:
    """One thread in a busy loop."""
    import torch

    return repeated(lambda: torch.cuda._sleep(20_000_000), 5)


def tiny_kernels() -> Step:
    """Additions of 1024 numbers, launched one by one."""
    import torch

    value = torch.zeros(1024, device="cuda")
    return repeated(lambda: value.add_(1.0), 1000)


def h2d_pinned() -> Step:
    """Copies of 4 GiB from pinned memory."""
    return _copied(4 * GIB, pinned=True, to_gpu=True)


def d2h_pinned() -> Step:
    """Copies of 4 GiB to pinned memory."""
    return _copied(4 * GIB, pinned=True, to_gpu=False)


def gemm_small() -> Step:
    """Products of 1024 x 1024 in a CUDA graph."""
    import torch

    a, b = matrices(1024)
    c = torch.empty_like(a)
    return graphed(lambda: torch.mm(a, b, out=c), 200)


def gemm_fp8() -> Step:
    """Products of 8192 x 8192 in fp8."""
    import torch

    a, b = (matrix.to(torch.float8_e4m3fn) for matrix in matrices())
    one = torch.ones((), device="cuda")
    b = b.t()
    return repeated(lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))


def gemm_int8() -> Step:
    """Products of 8192 x 8192 in int8."""
    import torch

    a, b = (torch.randint(-9, 9, (SIDE, SIDE), device="cuda", dtype=torch.int8) for _ in range(2))
    return repeated(lambda: torch._int_mm(a, b))


def gemm_tf32() -> Step:
    """Products of 8192 x 8192 in TF32."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    return _product("float32", 10)


def duty(work_seconds: float, sleep_seconds: float) -> Step:
    """Products, then sleep, in turn."""
    work = products()

    def step() -> Injected:
        work(work_seconds)
        return _sleep(sleep_seconds)

    return step


def duty_25() -> Step:
    """Products for 50 ms, then 150 ms of sleep."""
    return duty(0.05, 0.15)


def duty_50() -> Step:
    """Products for 100 ms, then 100 ms of sleep."""
    return duty(0.1, 0.1)


def duty_75() -> Step:
    """Products for 150 ms, then 50 ms of sleep."""
    return duty(0.15, 0.05)


def duty_seconds() -> Step:
    """Products for 0.7 s, then 0.3 s of sleep."""
    return duty(0.7, 0.3)


def short_gaps() -> Step:
    """Products for 9 ms, then 1 ms of sleep."""
    return duty(0.009, 0.001)


def _copied(size: int, *, pinned: bool, to_gpu: bool) -> Callable[[], Injected]:
    import torch

    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    host.fill_(1)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    target, origin = (device, host) if to_gpu else (host, device)

    def copy() -> Injected:
        with injecting("copies") as injected:
            target.copy_(origin)
            torch.cuda.synchronize()
        return injected

    return copy


def copy_then_compute() -> Step:
    """A copy of 4 GiB from pinned memory (about 75 ms), then products for 100 ms."""
    work, copy = products(), _copied(4 * GIB, pinned=True, to_gpu=True)

    def step() -> Injected:
        work(0.1)
        return copy()

    return step


def copy_sleep_compute() -> Step:
    """A copy of 2 GiB from pinned memory, sleep of 50 ms, products for 60 ms."""
    work, copy = products(), _copied(2 * GIB, pinned=True, to_gpu=True)

    def step() -> Injected:
        work(0.06)
        return {**copy(), **_sleep(0.05)}

    return step


def copy_back() -> Step:
    """Products for 150 ms, then a copy of 4 GiB to pinned memory (about 75 ms), as a checkpoint does."""
    work, copy = products(), _copied(4 * GIB, pinned=True, to_gpu=False)

    def step() -> Injected:
        work(0.15)
        return copy()

    return step


def copy_pageable() -> Step:
    """A copy of 256 MiB from pageable memory (about 40 ms), then products for 40 ms."""
    work, copy = products(), _copied(GIB // 4, pinned=False, to_gpu=True)

    def step() -> Injected:
        work(0.04)
        return copy()

    return step


def copy_overlapped() -> Step:
    """Copies from pinned memory on another stream while products run: no time is lost to them."""
    import torch

    work = products()
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    device, stream = torch.empty(GIB, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()

    def step() -> Injected:
        with torch.cuda.stream(stream):
            for _ in range(3):
                device.copy_(host, non_blocking=True)
        work(0.1)
        return NOTHING

    return step


def train() -> Step:
    """Training steps of a transformer of 8 layers, synchronous."""
    from benchmarks.workloads import training

    run = training()

    def step() -> Injected:
        run()
        return NOTHING

    return step


def train_loader_30() -> Step:
    """The same training with 13 ms of sleep for each step of 30 ms, as a late loader does."""
    from benchmarks.workloads import training

    run = training()

    def step() -> Injected:
        run()
        return _sleep(0.013)

    return step


def checkpoint_pauses() -> Step:
    """Work for 0.6 s, then 0.3 s in which the CPU serialises a checkpoint."""
    return duty(0.6, 0.3)


def evaluation_items() -> Step:
    """Small kernels, each followed by `.item()`."""
    import torch

    value = torch.randn(256, 256, device="cuda")

    def step() -> Injected:
        for _ in range(200):
            (value @ value).sum().item()
        return NOTHING

    return step


def _decoder(layers: int = 24, width: int = 4096, batch: int = 1) -> Callable[[], object]:
    """Return one token of decoding: a chain of matrix-vector products with the weights of a model."""
    import torch

    weights = [torch.randn(width, 4 * width, device="cuda", dtype=torch.bfloat16) / width for _ in range(layers)]
    state = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)

    def token() -> object:
        hidden = state
        for weight in weights:
            hidden = torch.nn.functional.gelu(hidden @ weight) @ weight.t()
        return hidden

    return token


def serving(busy: float) -> Step:
    """Requests of 32 tokens, decoded by a CUDA graph, with pauses such that the GPU is busy for this share of time."""
    request = graphed(_decoder(), 1)

    def step() -> Injected:
        begin = time.perf_counter()
        request()
        took = time.perf_counter() - begin
        return _sleep(took * (1 - busy) / busy) if busy < 1 else NOTHING

    return step


def serving_10() -> Step:
    """Decoding for 10 % of the time."""
    return serving(0.1)


def serving_50() -> Step:
    """Decoding for 50 % of the time."""
    return serving(0.5)


def serving_100() -> Step:
    """Decoding without a pause, batch 1: weights are read for each token."""
    return serving(1.0)


def decode_batch() -> Step:
    """Decoding with a batch of 64 in a CUDA graph."""
    return graphed(_decoder(batch=64), 1)


KERNELS = r"""
extern "C" __global__ void spin(long long ticks, unsigned *sink) {
    long long begin = clock64();
    volatile unsigned *flag = sink;
    while (clock64() - begin < ticks) { if (*flag == 77u) break; }
}
extern "C" __global__ void floats(int rounds, float *sink) {
    float a = threadIdx.x, b = 1.0001f, c = 0.5f, d = 0.25f;
    for (int i = 0; i < rounds; i++) { a = a * b + c; c = c * b + d; d = d * b + a; b = b * 0.99999f + 0.00001f; }
    if (a + c + d == 12345.0f) sink[0] = a;
}
extern "C" __global__ void integers(int rounds, unsigned *sink) {
    unsigned a = threadIdx.x, b = blockIdx.x + 7u;
    for (int i = 0; i < rounds; i++) { a = a * 1664525u + b; b ^= a >> 7; a += b << 3; b = b * 22695477u + 1u; }
    if (a + b == 12345u) sink[0] = a;
}
extern "C" __global__ void chase(int rounds, unsigned *next) {
    unsigned at = blockIdx.x * 1024u + threadIdx.x;
    for (int i = 0; i < rounds; i++) at = next[at];
    if (at == 4294967295u) next[0] = at;
}
"""


def _kernel(name: str, blocks: int, threads: int, amount: int, words: int = 1024) -> Step:
    import cupy

    kernel = cupy.RawKernel(KERNELS, name)
    data = cupy.arange(words, dtype=cupy.uint32)
    if name == "chase":
        data = (data * cupy.uint32(1103515245) + cupy.uint32(12345)) % cupy.uint32(words)
    count = cupy.int64(amount) if name == "spin" else cupy.int32(amount)

    def step() -> Injected:
        for _ in range(10):
            kernel((blocks,), (threads,), (count, data))
        cupy.cuda.Device().synchronize()
        return NOTHING

    return step


def polling_kernel() -> Step:
    """A kernel of 24 blocks polls a flag in memory and computes nothing, as a server does that waits for requests."""
    return _kernel("spin", FEW_BLOCKS, 512, 40_000_000)


def few_blocks_float() -> Step:
    """FP32 arithmetic on registers in 24 blocks."""
    return _kernel("floats", FEW_BLOCKS, 512, 2_000_000)


def few_blocks_integer() -> Step:
    """Integer arithmetic on registers in 24 blocks."""
    return _kernel("integers", FEW_BLOCKS, 512, 2_000_000)


def few_blocks_chase() -> Step:
    """24 blocks follow pointers in a table that fits into the L2 cache."""
    return _kernel("chase", FEW_BLOCKS, 512, 60_000, 2**21)


def all_blocks_integer() -> Step:
    """Integer arithmetic on registers in all SMs."""
    return _kernel("integers", 132 * 4, 512, 1_000_000)


def sort() -> Step:
    """Sorts 128 million numbers."""
    import torch

    numbers = torch.randn(2**27, device="cuda")
    return repeated(lambda: torch.sort(numbers), 2)


def scatter_add() -> Step:
    """Adds rows at random places of a table of 8 GiB."""
    import torch

    table = torch.zeros(2**22, 512, device="cuda")
    rows, places = torch.randn(2**18, 512, device="cuda"), torch.randint(2**22, (2**18,), device="cuda")
    return repeated(lambda: table.index_add_(0, places, rows))


def layer_norms() -> Step:
    """Layer norms and additions of large activations, not fused."""
    import torch

    value = torch.randn(2**16, 4096, device="cuda", dtype=torch.bfloat16)
    return repeated(lambda: torch.nn.functional.layer_norm(value + value, (4096,)))


def attention_prefill() -> Step:
    """Causal attention over 16 384 tokens."""
    import torch

    query = torch.randn(1, 32, 16384, 128, device="cuda", dtype=torch.bfloat16)
    return repeated(lambda: torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True), 5)


def convolutions() -> Step:
    """3 x 3 convolutions of 64 images of 56 x 56 with 256 channels, in bf16."""
    import torch

    net = torch.nn.Sequential(*(torch.nn.Conv2d(256, 256, 3, padding=1) for _ in range(6)))
    net = net.to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    image = torch.randn(64, 256, 56, 56, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        return repeated(lambda: net(image))


def alternating() -> Step:
    """0.25 s of batch-1 decoding, then 0.25 s of products, as reinforcement learning does."""
    work, request = products(), graphed(_decoder(), 1)

    def step() -> Injected:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.25:
            request()
        work(0.25)
        return NOTHING

    return step


def model_load() -> Step:
    """The start of a job: tensors of 256 MiB are made on the CPU and copied to the GPU, as weights are loaded."""
    import torch

    def step() -> Injected:
        weights = torch.full((64 * 2**20,), 0.5, dtype=torch.float32)
        weights.cuda()
        torch.cuda.synchronize()
        return NOTHING

    return step
