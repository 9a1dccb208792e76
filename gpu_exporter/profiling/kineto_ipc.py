"""The messages between PyTorch's profiler (Kineto) and the daemon that requests traces from it. Pure.

A datagram is a size, a type of 32 bytes and a body, in the byte order of the machine. Structures and names are those of
`ipcfabric/FabricManager.h`, `IpcFabricConfigClient.cpp` and `Config.cpp` of libkineto.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpu_exporter.io.decoding import printable

_HEAD = struct.Struct("=Q32s")
_CONTEXT = struct.Struct("=iiq")
_REQUEST = struct.Struct("=iiq")
# A process names itself and its ancestors.
MOST_PIDS = 64
MOST_BYTES = _HEAD.size + _REQUEST.size + 4 * MOST_PIDS
CONTEXT, REQUEST = "ctxt", "req"
# The bit of a request that asks for a trace. It is missing while the process is being profiled already.
_ACTIVITIES = 2


@dataclass(frozen=True, slots=True)
class Registration:
    """A process says that its profiler is ready to be asked; the reply is how many processes have done so."""

    gpu: int
    pid: int


@dataclass(frozen=True, slots=True)
class Poll:
    """A process asks for a configuration, every few seconds. Its PIDs are of its own PID namespace."""

    pids: tuple[int, ...]
    accepts: bool


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What to record: for how many seconds, and what of the options of `torch.profiler`.

    `activities` are types of Kineto, such as `kernel` and `cuda_runtime`; none means its defaults. The profiler is
    switched on `warm_up` seconds before the recording, a whole number.
    """

    seconds: float = 0.5
    stacks: bool = True
    shapes: bool = False
    activities: tuple[str, ...] = ()
    warm_up: int = 2


def decode(datagram: bytes) -> Registration | Poll:
    """Return the message in a datagram. Raises ValueError if it is none that libkineto sends."""
    if len(datagram) < _HEAD.size:
        raise ValueError(f"{len(datagram)} bytes are too few for a message")
    size, name = _HEAD.unpack_from(datagram)
    body = datagram[_HEAD.size :]
    if size != len(body):
        raise ValueError(f"its size is {len(body)} bytes, not {size} as it says")
    kind = name.partition(b"\0")[0]
    if kind == CONTEXT.encode() and len(body) == _CONTEXT.size:
        gpu, pid, _ = _CONTEXT.unpack(body)
        return Registration(gpu, pid)
    if kind == REQUEST.encode() and len(body) >= _REQUEST.size:
        wanted, count, _ = _REQUEST.unpack_from(body)
        if not 0 <= count <= MOST_PIDS or len(body) != _REQUEST.size + 4 * count:
            raise ValueError(f"it names {count} PIDs in {len(body)} bytes")
        return Poll(struct.unpack_from(f"={count}i", body, _REQUEST.size), bool(wanted & _ACTIVITIES))
    raise ValueError(f"a message of type {printable(kind.decode('ascii', 'replace'), 32)!r} has {len(body)} bytes")


def encode(kind: str, body: bytes) -> bytes:
    """Return a datagram with this type and body."""
    return _HEAD.pack(len(body), kind.encode()) + body


def registered(count: int) -> bytes:
    """Return the reply to a registration."""
    return encode(CONTEXT, struct.pack("=i", count))


def configuration(text: str) -> bytes:
    """Return the reply to a poll: a configuration, or nothing to do if it is empty."""
    return encode(REQUEST, text.encode())


def trace_configuration(options: TraceOptions, path: str, start: float | None = None) -> str:
    """Return the configuration that requests a trace.

    `path` ends in .json, before which the process inserts its PID. `start` is in seconds of Unix time; without it the
    recording begins after the warm-up.
    """
    lines = [
        f"ACTIVITIES_LOG_FILE={path}",
        f"PROFILE_START_TIME={round(start * 1000) if start else 0}",
        f"ACTIVITIES_DURATION_MSECS={max(1, round(options.seconds * 1000))}",
        f"ACTIVITIES_WARMUP_PERIOD_SECS={options.warm_up}",
        f"PROFILE_WITH_STACK={_boolean(options.stacks)}",
        f"PROFILE_REPORT_INPUT_SHAPES={_boolean(options.shapes)}",
    ]
    if options.activities:
        lines.append(f"ACTIVITY_TYPES={','.join(options.activities)}")
    return "\n".join(lines) + "\n"


def _boolean(value: bool) -> str:
    return "true" if value else "false"
