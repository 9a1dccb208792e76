"""Measures what StepTimer costs a training loop: time of a 20 ms GPU step, and CPU per step.

    PYTHONPATH=. python3 benchmarks/step_timer.py --json step_timer.json

Blocks of steps alternate between the plain loop and the one with a timer, in one process, in a random order. Each pair
is one measurement; the result is the mean slowdown with the upper end of its 95 % confidence interval. The timer sends
to a socket that is read, to one that is absent (a dead exporter), and to one whose queue is full. The last row is a
loop with 80 collectives per step, whose waiting the timer measures. Needs PyTorch with a GPU; without one, only the CPU
per step is measured.

    python3 benchmarks/step_timer.py --fake-cuda

counts the calls of the driver per step, and measures the Python above them, without PyTorch and a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.job_receiver import Receiver
from benchmarks.paired import slowdown
from gpu_exporter.model.job_message import SEND_SECONDS
from gpu_exporter.training import StepTimer

STEP_SECONDS, BLOCK_STEPS, BLOCKS, KERNELS = 0.020, 20, 18, 40
CPU_STEPS, CPU_ROUNDS, FAKE_STEPS = 20_000, 5, 400
# The project's limits.
MOST_SHARE, MOST_CPU_SECONDS = 0.0005, 30e-6
SOCKETS = ("reads", "dead", "full")


@contextmanager
def receiver(kind: str) -> Iterator[str]:
    """Offer the socket of an exporter that reads, is dead, or does not keep up; yields its path."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path, stop = os.path.join(folder, "jobs.sock"), threading.Event()
        if kind != "dead":
            receiver = stack.enter_context(closing(Receiver(path, backlog=0)))
        if kind == "full":
            _fill(path, stack)
        if kind == "reads":
            reader = threading.Thread(target=_read, args=(receiver, stop))
            reader.start()
            stack.callback(reader.join)
            stack.callback(stop.set)
        yield path


def _fill(path: str, stack: ExitStack) -> None:
    """Connect until no connection fits into the queue of those that wait."""
    with suppress(BlockingIOError):
        while True:
            sender = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            stack.enter_context(sender)
            sender.connect(path)


def _read(receiver: Receiver, stop: threading.Event) -> None:
    while not stop.is_set():
        receiver.receive(0.05)


def timed_step(step_timer: StepTimer, forward: Callable[[], Any], backward: Callable[[], Any]) -> None:
    """Run a step as the docs show it: data, two phases, waiting."""
    for _ in step_timer.data((None,)):
        with step_timer.step(tokens=4096, flops=1e12):
            with step_timer.phase("forward"):
                forward()
            with step_timer.phase("backward"):
                backward()
                with step_timer.waiting():
                    pass
            with step_timer.phase("optimizer"):
                pass


def gpu_step(*, collectives: bool = False) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return two functions that queue half a step each: kernels that spin, STEP_SECONDS together.

    With `collectives`, each is followed by an all-reduce of this rank alone.

    They need little power, so the GPU's clock does not change. With matrix products at the power limit, the time of a
    step varied by 1 %, ten times the effect to be measured.
    """
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(1, device="cuda")

    def spin(cycles: int) -> None:
        for _ in range(KERNELS):
            torch.cuda._sleep(cycles)
            if collectives:
                dist.all_reduce(tensor)

    probe = 1_000_000
    spin(probe)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    spin(probe)
    torch.cuda.synchronize()
    cycles = int(probe * STEP_SECONDS / 2 / (time.perf_counter() - begin))
    return lambda: spin(cycles), lambda: spin(cycles)


@contextmanager
def process_group() -> Iterator[None]:
    """Let this process be the only rank of PyTorch's process group."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def paired_blocks(path: str, *, synced: bool = False, collectives: bool = False) -> dict[str, Any]:
    """Return the slowdown of a GPU step, and the seconds of a step without the timer.

    A loop that reads its loss waits for the GPU: after each step if `synced`, so that no cost on the CPU is hidden,
    else after each block.
    """
    import torch

    forward, backward = gpu_step(collectives=collectives)
    step_timer = StepTimer("benchmark", socket=path, rank=0, world_size=2)
    if collectives:
        step_timer.watch(torch.nn.Linear(1, 1))

    def plain() -> None:
        for _ in (None,):
            forward()
            backward()

    def block(step: Callable[[], None]) -> float:
        begin = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            step()
            if synced:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / BLOCK_STEPS

    def timed() -> None:
        timed_step(step_timer, forward, backward)

    block(plain), block(timed)
    order, pairs = random.Random(1), []
    for _ in range(BLOCKS):
        first_is_plain = order.random() < 0.5
        seconds = {step: block(step) for step in ((plain, timed) if first_is_plain else (timed, plain))}
        pairs.append((seconds[plain], seconds[timed]))
    step_timer.close()
    found = slowdown(pairs)
    return {
        "step_seconds": sum(alone for alone, _ in pairs) / len(pairs),
        "slowdown": found.mean,
        "slowdown_upper": found.upper,
        "pairs": found.pairs,
        "measured_step_seconds": step_timer.summary().get("step_seconds"),
    }


def cpu_per_step(path: str, *, gpu: bool) -> float:
    """Return the CPU seconds that the timer takes per step, of all threads: the best of some rounds."""
    step_timer = StepTimer("benchmark", socket=path, gpu=gpu)

    def nothing() -> None:
        return

    def rounds(step: Callable[[], None]) -> float:
        best = float("inf")
        count = CPU_STEPS // 10 if gpu else CPU_STEPS
        for _ in range(CPU_ROUNDS):
            begin = time.process_time()
            for _ in range(count):
                step()
            best = min(best, (time.process_time() - begin) / count)
        return best

    def plain() -> None:
        for _ in (None,):
            nothing()
            nothing()

    seconds = rounds(lambda: timed_step(step_timer, nothing, nothing)) - rounds(plain)
    step_timer.close()
    return seconds


def fake_cuda_costs() -> dict[str, float]:
    """Return the CPU seconds and the calls of the driver per step of 1 ms, with a driver whose calls cost nothing."""
    from benchmarks import fake_cuda

    fake_cuda.install()

    def half() -> None:
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass

    step_timer = StepTimer("benchmark")
    for warm_up in (True, False):
        fake_cuda.CALLS.clear()
        for _ in range(100 if warm_up else FAKE_STEPS):
            timed_step(step_timer, half, half)
    calls = {name: count / FAKE_STEPS for name, count in fake_cuda.CALLS.items()}
    return {"cpu_seconds_per_step": cpu_per_step("", gpu=True), **calls}


def cuda_is_there() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--fake-cuda", action="store_true", help="count calls of the driver, without a GPU")
    options = parser.parse_args()
    if options.fake_cuda:
        for name, value in fake_cuda_costs().items():
            print(f"{name:<24} {value:.3g}")
        return 0
    on_gpu, results, is_good = cuda_is_there(), {}, True
    for kind in SOCKETS:
        with receiver(kind) as path:
            found: dict[str, Any] = {"cpu_seconds_per_step": cpu_per_step(path, gpu=False)}
            if on_gpu:
                found |= paired_blocks(path)
                found["cpu_seconds_per_step_with_events"] = cpu_per_step(path, gpu=True)
                if kind == "reads":
                    found["synced"] = paired_blocks(path, synced=True)
        results[kind] = found
        cpu = max(found["cpu_seconds_per_step"], found.get("cpu_seconds_per_step_with_events", 0.0))
        ok = cpu <= MOST_CPU_SECONDS and found.get("slowdown", 0.0) <= MOST_SHARE
        is_good = is_good and ok
        print(f"{'ok  ' if ok else 'MISS'} {kind:<6} CPU {found['cpu_seconds_per_step'] * 1e6:.1f} µs per step", end="")
        if on_gpu:
            with_events = found["cpu_seconds_per_step_with_events"] * 1e6
            share, upper = found["slowdown"] * 100, found["slowdown_upper"] * 100
            print(f", {with_events:.1f} µs with CUDA events; step {found['step_seconds'] * 1e3:.2f} ms", end="")
            print(f" {share:+.3f} % (upper {upper:+.3f} %, {found['pairs']} pairs)", end="")
            if "synced" in found:
                print(f"; synced every step {found['synced']['slowdown']:+.3%}", end="")
        print(flush=True)
    if on_gpu:
        with receiver("reads") as path, process_group():
            found = results["collectives"] = paired_blocks(path, collectives=True)
        ok = found["slowdown"] <= MOST_SHARE
        is_good = is_good and ok
        print(f"{'ok  ' if ok else 'MISS'} collectives, step {found['step_seconds'] * 1e3:.2f} ms", end=" ")
        print(f"{found['slowdown']:+.3%} (upper {found['slowdown_upper']:+.3%}, {found['pairs']} pairs)", flush=True)
    print(f"limits: {MOST_CPU_SECONDS * 1e6:.0f} µs, {MOST_SHARE:.2%}; messages every {SEND_SECONDS:g} s")
    if options.json:
        options.json.write_text(json.dumps({"python": sys.version.split()[0], "gpu": on_gpu, **results}, indent=2))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
