"""One rank of the job of `benchmarks.job_peers`: DDP with one known cause of slowness, seen by one tool.

The launcher sets RANK, WORLD_SIZE and so on. Needs PyTorch and the tool. Rank 0 writes its step time, and what the
tool found if the tool says it in the job, to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.job_training import (
    BY_NAME,
    COST_SECONDS,
    LOADER_COSTS,
    SIZES,
    SLOW_RANK,
    USUAL,
    competitor,
    layers,
    slow_layer,
    steps_for,
    wrapped,
)


class Plain:
    """No tool. The others measure the same sections."""

    def __init__(self, job: str, model: Any, device_kind: str) -> None:
        self.model = model

    def section(self, name: str) -> AbstractContextManager[Any]:
        """Measure data, forward, backward or optimizer."""
        return nullcontext()

    def step(self) -> AbstractContextManager[Any]:
        """Measure a step, without its data."""
        return nullcontext()

    def finding(self) -> Any:
        """Return what the tool says at the end; None if it says it elsewhere."""
        return None


class Ours(Plain):
    """`StepTimer`, whose messages the parent compares."""

    def __init__(self, job: str, model: Any, device_kind: str) -> None:
        super().__init__(job, model, device_kind)
        from gpu_exporter.training import StepTimer

        self._timer = StepTimer(job)
        self._timer.watch(model)

    def section(self, name: str) -> AbstractContextManager[Any]:
        return _Data(self._timer) if name == "data" else self._timer.phase(name)

    def step(self) -> AbstractContextManager[Any]:
        return self._timer.step()

    def finding(self) -> Any:
        self._timer.close()


class _Data:
    def __init__(self, timer: Any) -> None:
        self._timer = timer

    def __enter__(self) -> None:
        self._timer.recorder.start()
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._timer.add_data(time.perf_counter() - self._begin)


class Nvrx(Plain):
    """The straggler detector of NVIDIA's Resiliency Extension, with kernels (CUPTI) on a GPU."""

    def __init__(self, job: str, model: Any, device_kind: str) -> None:
        super().__init__(job, model, device_kind)
        self._on_gpu = device_kind == "cuda"
        if not self._on_gpu:
            _without_cupti()
        from nvidia_resiliency_ext.attribution.straggler import Detector

        self._detector = Detector
        Detector.initialize(scores_to_compute="all", gather_on_rank0=True)

    def section(self, name: str) -> AbstractContextManager[Any]:
        on_gpu = self._on_gpu and name in ("forward", "backward")
        found: AbstractContextManager[Any] = self._detector.detection_section(name, profile_cuda=on_gpu)
        return found

    def finding(self) -> Any:
        report = self._detector.generate_report()
        self._detector.shutdown()
        if os.environ["RANK"] != "0":
            return None
        found = report.identify_stragglers()
        gpus = {"gpu": found["straggler_gpus_relative"], **found["straggler_sections_relative"]}
        return {name: sorted(straggler.rank for straggler in who) for name, who in gpus.items() if who}


def _without_cupti() -> None:
    """Let NVRx run on a CPU, where it has only the times of sections."""
    import torch

    stub: Any = ModuleType("nvrx_cupti_module")
    stub.CuptiProfiler = type(
        "CuptiProfiler",
        (),
        {
            "__init__": lambda self, **_: None,
            "get_stats": lambda self: {},
            **dict.fromkeys(("initialize", "shutdown", "start", "stop", "reset"), lambda self: None),
        },
    )
    sys.modules["nvrx_cupti_module"] = stub
    torch.cuda.synchronize = lambda: None


class TraceMl(Plain):
    """TraceML in its automatic mode, launched by `traceml run`, which writes a summary."""

    def __init__(self, job: str, model: Any, device_kind: str) -> None:
        super().__init__(job, model, device_kind)
        import traceml_ai

        traceml_ai.init(mode="auto")
        self._traceml = traceml_ai

    def step(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._traceml.trace_step(self.model)
        return found


TOOLS = {"none": Plain, "gpu-exporter": Ours, "nvrx": Nvrx, "traceml": TraceMl}


def loader(batch: Any, seconds: float) -> Any:
    """Return a loader whose batches take so long, for ever."""
    from torch.utils.data import DataLoader, IterableDataset

    class Batches(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            while True:
                time.sleep(seconds)
                yield 0

    return DataLoader(Batches(), batch_size=None, collate_fn=lambda _: batch)


def train(tool_name: str, case_name: str, device_kind: str, seconds: float) -> dict[str, Any]:
    """Train, and return the mean step time and what the tool found."""
    import torch
    import torch.distributed as dist

    case, cost = BY_NAME[case_name], COST_SECONDS[device_kind]
    slow = case.cause if dist.get_rank() == SLOW_RANK else ""
    layer = slow_layer(device_kind, cost * (slow == "forward"), cost * (slow == "backward"))
    width, count, size = SIZES[device_kind][USUAL]
    model = wrapped(layers(device_kind, count, layer, width), case.strategy, device_kind)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(size, width, device=device_kind)
    tool = TOOLS[tool_name](case.name, model, device_kind)
    batches = iter(loader(batch, LOADER_COSTS * cost if slow == "data" else 0.0))

    def step() -> None:
        with tool.step():
            with tool.section("data"):
                current = next(batches)
            with tool.section("forward"):
                loss = model(current).square().mean()
            with tool.section("backward"):
                loss.backward()
            with tool.section("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    with ExitStack() as stack:
        if slow == "gpu" and device_kind == "cuda":
            stack.callback(competitor(device_kind))
        count = steps_for(seconds, step, device_kind)
        begin = time.perf_counter()
        for _ in range(count):
            step()
        if device_kind == "cuda":
            torch.cuda.synchronize()
        taken = (time.perf_counter() - begin) / count
        finding = tool.finding()
    return {"steps": count, "step_seconds": taken, "finding": finding}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", choices=TOOLS, required=True)
    parser.add_argument("--case", choices=BY_NAME, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    result = train(options.tool, options.case, options.device, options.seconds)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
