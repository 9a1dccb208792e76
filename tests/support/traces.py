"""Writes synthetic traces of the PyTorch profiler, whose times are known. All times are microseconds."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 200
PROCESS = 100


class SyntheticTrace:
    """A trace in the making. Kernels get a launch of their own unless they are told which one they have."""

    def __init__(self, *, rank: int | None = None, world_size: int = 1, multiprocessors: int = 132) -> None:
        self.events: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": 0, "name": "NVIDIA H200", "numSms": multiprocessors, "totalGlobalMem": 1 << 37}
            ],
        }
        if rank is not None:
            self.header["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
        self._correlation = 0

    def host(
        self,
        name: str,
        start: float,
        duration: float,
        category: str = "python_function",
        thread: int = MAIN,
        **args: Any,
    ) -> None:
        """Add an event of the host."""
        event = {"ph": "X", "cat": category, "name": name, "pid": PROCESS, "tid": thread, "ts": start, "dur": duration}
        self.events.append({**event, "args": args})

    def launch(self, start: float, duration: float = 5, name: str = "cudaLaunchKernel", thread: int = MAIN) -> int:
        """Add a launch. Returns its correlation number."""
        self._correlation += 1
        self.host(name, start, duration, "cuda_runtime", thread, correlation=self._correlation)
        return self._correlation

    def device(
        self,
        start: float,
        duration: float,
        name: str = "sm90_gemm",
        *,
        category: str = "kernel",
        launched: float | None = None,
        correlation: int | None = None,
        device: int = 0,
        stream: int = 7,
        thread: int = MAIN,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an event of the GPU. It is launched 10 us before its start, at `launched`, or has that correlation."""
        if correlation is None:
            correlation = self.launch(start - 10 if launched is None else launched, thread=thread)
        event = {"ph": "X", "cat": category, "name": name, "pid": device, "tid": stream, "ts": start, "dur": duration}
        known = {"device": device, "stream": stream, "correlation": correlation, "grid": [1320, 1, 1]}
        self.events.append({**event, "args": {**known, **(args or {})}})

    def step(self, number: int, start: float, duration: float) -> None:
        """Add a step of the training loop."""
        self.host(f"ProfilerStep#{number}", start, duration, "user_annotation")

    def content(self, base: int | None = None) -> dict[str, Any]:
        """Return the root of the trace. With `base`, times are relative to it, ns."""
        relative = {} if base is None else {"baseTimeNanoseconds": base}
        return {**self.header, **relative, "traceEvents": self.events, "traceName": "trace.json"}

    def write(self, path: Path, *, indent: int | None = None, base: int | None = None) -> Path:
        """Write the trace; compressed if the name ends in .gz."""
        text = json.dumps(self.content(base), indent=indent).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path
