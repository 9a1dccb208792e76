"""Exporters to compare with, and how to run those that are installed.

A program is found in PATH, or where a variable of the environment says: DCGM_EXPORTER, NV_HOSTENGINE,
NVIDIA_GPU_EXPORTER, NVIDIA_SMI, NVITOP_EXPORTER. DCGM_BINDINGS names the directory of DCGM's Python bindings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.exporter import HOST, exporter_command, free_port
from gpu_exporter.sources.dcgm.places import DCGM_3, DCGM_4, has_bindings

VERSION_SECONDS = 10.0


def program(name: str) -> str:
    """Return the path of a program; empty if there is none."""
    return os.environ.get(_variable(name)) or shutil.which(name) or ""


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def bindings() -> Path | None:
    """Return the directory of DCGM's Python bindings; None if there is none."""
    asked = os.environ.get("DCGM_BINDINGS")
    return next(
        (place.resolve() for place in ([Path(asked)] if asked else [DCGM_4, DCGM_3]) if has_bindings(place)), None
    )


@dataclass(frozen=True)
class Peer:
    """A row of another exporter, or of gpu-exporter with another source.

    `options` are its arguments for a port, and for the port of the host engine, if it needs one. `programs` are those
    that it needs, its own first. `seconds` is how long after its start it may read the GPUs for the first time.
    """

    name: str
    programs: Sequence[str]
    options: Callable[[int, int], Sequence[str]]
    engine: bool = False
    seconds: float = 0.0
    # The module of Python that it also is.
    module: str = ""

    def missing(self) -> str:
        """Return why it cannot run here; empty if it can."""
        if self.module and find_spec(self.module):
            return ""
        names = [*self.programs, *(("nv-hostengine",) if self.engine else ())]
        lacking = [f"{name} is not in PATH, and {_variable(name)} is not set" for name in names if not program(name)]
        return "; ".join(lacking)

    def present(self) -> bool:
        """Return whether it can run here."""
        return not self.missing()

    def commands(self, port: int) -> tuple[Sequence[str], Mapping[int, Sequence[str]]]:
        """Return the command that serves on a port of 127.0.0.1, and what must run beside it, by port."""
        engine = free_port() if self.engine else 0
        own = program(self.programs[0]) if self.programs else ""
        start = [own] if own else [sys.executable, "-m", self.module] if self.module else []
        beside = [program("nv-hostengine"), "-n", "-b", HOST, "-p", str(engine), "--log-level", "ERROR"]
        return [*start, *self.options(port, engine)], {engine: beside} if self.engine else {}

    def command(self, port: int) -> Sequence[str]:
        """Return the command alone."""
        return self.commands(port)[0]


def versions() -> dict[str, str]:
    """Return the versions of the programs of PEERS that are installed, as far as they say them."""
    names = {peer.programs[0] for peer in PEERS if peer.programs} | {"nv-hostengine"}
    found = {name: version(program(name)) for name in sorted(names) if program(name)}
    return {name: version for name, version in found.items() if version}


def version(path: str) -> str:
    """Return the version that a program says; empty if it says none."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"\d+\.\d+(?:\.\d+)?", done.stdout + done.stderr)
    return match[0] if match else ""


def _dcgm(interval: float) -> Callable[[int, int], Sequence[str]]:
    return lambda port, _: ["--address", f"{HOST}:{port}", "--collect-interval", f"{interval * 1000:.0f}"]


def _nvidia(*options: str) -> Callable[[int, int], Sequence[str]]:
    return lambda port, _: [f"--web.listen-address={HOST}:{port}", *options]


NVITOP = Peer(
    "nvitop-exporter",
    ("nvitop-exporter",),
    lambda port, _: ["--bind-address", HOST, "--port", str(port)],
    module="nvitop_exporter",
)
DCGM, NVIDIA, SMI = "dcgm-exporter", "nvidia_gpu_exporter", "nvidia-smi"
PEERS = (
    Peer(
        "gpu-exporter, DCGM",
        (),
        lambda port, engine: exporter_command(
            *(port, "--source", "dcgm", "--dcgm-hostengine", f"{HOST}:{engine}"),
            *(("--dcgm-bindings", str(found)) if (found := bindings()) else ()),
        ),
        engine=True,
    ),
    NVITOP,
    Peer("dcgm-exporter, 1 s", (DCGM,), _dcgm(1)),
    Peer(
        "dcgm-exporter, 1 s, and nv-hostengine",
        (DCGM,),
        lambda port, engine: [*_dcgm(1)(port, engine), "--remote-hostengine-info", f"{HOST}:{engine}"],
        engine=True,
    ),
    Peer(
        "nvidia_gpu_exporter, nvidia-smi",
        (NVIDIA, SMI),
        lambda port, _: [*_nvidia("--collect.backend=exec")(port, 0), f"--nvidia-smi-command={program(SMI)}"],
    ),
    Peer("nvidia_gpu_exporter, NVML", (NVIDIA,), _nvidia("--collect.backend=nvml")),
    Peer(
        "nvidia_gpu_exporter, NVML every second",
        (NVIDIA,),
        _nvidia("--collect.backend=nvml", "--collect.interval=1s"),
    ),
    # The one that takes longest to measure.
    Peer("dcgm-exporter, 30 s", (DCGM,), _dcgm(30), seconds=30),
)
