"""Other GPU exporters, and how to run those that are installed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Peer:
    """Another exporter: its name, whether it is installed, and the command that serves on a port of 127.0.0.1."""

    name: str
    present: Callable[[], bool]
    command: Callable[[int], Sequence[str]]


def _on_path(*programs: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, programs))


NVITOP = Peer(
    "nvitop-exporter",
    lambda: find_spec("nvitop_exporter") is not None,
    lambda port: [sys.executable, "-m", "nvitop_exporter", "--bind-address", "127.0.0.1", "--port", str(port)],
)
PEERS = (
    NVITOP,
    Peer(
        "dcgm-exporter",
        _on_path("dcgm-exporter"),
        lambda port: ["dcgm-exporter", "--address", f"127.0.0.1:{port}", "--collect-interval", "1000"],
    ),
    Peer(
        "nvidia_gpu_exporter",
        _on_path("nvidia_gpu_exporter", "nvidia-smi"),
        lambda port: ["nvidia_gpu_exporter", f"--web.listen-address=127.0.0.1:{port}"],
    ),
)
