"""A stand-in for NVIDIA's CUDA driver, which active checks load in child processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_exporter.active_checks import kernels
from tests.support.fakes.driver import Value

LIBRARY = "libcuda.so.1"
SOURCE = Path(__file__).with_name("cuda.c")
CONSTANTS = (
    *("FP32_WORK", "FP32_CHAINS", "FP32_STEPS", "SYNC_WORK", "SYNC_TILES", "SYNC_STEPS"),
    *("GROUP_WORK", "GROUP_ACCUMULATORS", "GROUP_STEPS", "MULTIPLIER", "MOST_ERRORS"),
)


@cache
def _library() -> bytes:
    defined = [f"-D{name}={getattr(kernels, name)}" for name in CONSTANTS]
    with TemporaryDirectory() as scratch:
        built = Path(scratch) / LIBRARY
        options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", *defined]
        subprocess.run(["cc", *options, str(SOURCE), "-o", str(built)], check=True)
        return built.read_bytes()


class FakeCuda:
    """Controls the stand-in through its file; cuda.c describes the keys. Its GPUs are those of `FakeDriver`."""

    def __init__(self, directory: Path, gpus: int = 1) -> None:
        self.directory = directory.absolute()
        self._control = self.directory / "cuda"
        self._contexts = self.directory / "contexts"
        self._contexts.mkdir(parents=True)
        (self.directory / LIBRARY).write_bytes(_library())
        self._lines: dict[tuple[int | None, str], Value] = {}
        self.set("Count", gpus)
        self.set("Contexts", str(self._contexts))

    def environment(self, driver: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process that loads this library and the one of a `FakeDriver`."""
        path = os.pathsep.join((str(self.directory), driver["LD_LIBRARY_PATH"]))
        return {**driver, "LD_LIBRARY_PATH": path, "FAKE_CUDA": str(self._control)}

    def set(self, key: str, value: Value, gpu: int | None = None) -> None:
        """Set a key on one GPU, or on all GPUs without a value of their own."""
        self._lines[gpu, key] = value
        lines = (f"{'*' if gpu is None else gpu} {key} {value}" for (gpu, key), value in self._lines.items())
        self._control.write_text("\n".join(lines) + "\n")

    def contexts(self) -> list[str]:
        """Return the contexts of processes that still exist, as `pid.gpu`. The driver releases those of others."""
        names = (path.name for path in self._contexts.iterdir())
        return [name for name in names if Path("/proc", name.partition(".")[0]).exists()]
