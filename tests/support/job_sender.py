"""A rank of a training job that sends messages, without a training loop."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpu_exporter.model.job_message import AMOUNTS, STEP_BUCKETS, VERSION

AMOUNTS_OF_STEP = {"tokens": 4096, "samples": 8, "flops": 1e15}


def message(steps: int = 3, step_seconds: float = 0.25, **changes: Any) -> dict[str, Any]:
    """Return the message of a rank after some equally long steps; `changes` replace keys."""
    counts = [0] * (len(STEP_BUCKETS) + 1)
    counts[next((n for n, edge in enumerate(STEP_BUCKETS) if step_seconds <= edge), len(STEP_BUCKETS))] = steps
    seconds = steps * step_seconds
    times = {"sum": seconds, "counts": counts}
    return {
        "version": VERSION,
        "job_id": "llm-7b",
        "attempt": "a",
        "rank": 0,
        "world_size": 2,
        "activity": "training",
        "elapsed": seconds + 1,
        "since_step": 0.5,
        "steps": steps,
        "step": times,
        "self": times,
        "self_squares": steps * step_seconds**2,
        "data_seconds": seconds / 10,
        "activity_seconds": {"training": seconds, "evaluation": 0},
        "phase_seconds": {"forward": seconds / 2, "backward": seconds / 4},
        **{name: steps * AMOUNTS_OF_STEP.get(name, 1) for name in AMOUNTS},
        **changes,
    }


def encoded(content: Mapping[str, Any]) -> bytes:
    """Return the packet of a message."""
    return json.dumps(content).encode()


def send(path: Path, packet: bytes) -> bool:
    """Send a packet as training loops do: without waiting. Return whether the exporter's queue took it."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as sender,
        suppress(BlockingIOError, BrokenPipeError),
    ):
        sender.connect(str(path))
        sender.send(packet)
        return True
    return False
