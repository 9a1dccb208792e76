"""A machine with stand-ins for both drivers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.conftest import run
from tests.support.fakes.cuda import FakeCuda
from tests.support.fakes.driver import FakeDriver

UUID = "GPU-00000000-0000-0000-0000-{:012d}"


@dataclass(frozen=True, slots=True)
class Machine:
    """The two drivers of a machine, which has the same GPUs in both."""

    nvml: FakeDriver
    cuda: FakeCuda

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process on this machine."""
        return self.cuda.environment(self.nvml.environment)

    def check(self, *arguments: str) -> tuple[int, str, str]:
        """Run a check. Returns exit code, stdout and stderr; fails if a context is left."""
        ended = run("check", "--active", *arguments, env=self.environment)
        assert self.cuda.contexts() == []
        return ended.returncode, ended.stdout, ended.stderr


def machine(directory: Path, gpus: int = 1) -> Machine:
    """Return a machine with H200s that are as fast as they should be."""
    made = Machine(FakeDriver(directory, gpus=gpus), FakeCuda(directory, gpus=gpus))
    made.cuda.set("Rate.memory_copy", 4.3e12)
    made.cuda.set("Rate.memory_read", 4.4e12)
    return made
