"""Reads profiles of JAX: `<host>.xplane.pb`, which `jax.profiler.trace` and TensorFlow's profiler write.

The messages are those of XLA's public `xplane.proto`. They are decoded with protobuf alone: JAX's own `ProfileData`
needs jaxlib, and xprof brings a web server, both of hundreds of megabytes. A plane is a GPU or the host, a line of a
GPU is a stream, and one of the host a thread. Names of planes, lines and stats are those of XLA's `xplane_schema.cc`
and of its collectors for CUDA and ROCm.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_exporter.io.decoding import printable
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.assemble import Parts, assemble
from gpu_exporter.traces.content import Content
from gpu_exporter.traces.model import (
    UNKNOWN,
    DeviceEvents,
    DeviceKind,
    DeviceProperties,
    HostEvents,
    HostKind,
    Trace,
    TraceRecorder,
    contained,
    distinct,
)

EXTRA = "JAX's profiles need the extra xplane: pip install protobuf"
MOST_NAME = 100
# Strings are bytes: protobuf refuses a whole file for one name that is not valid UTF-8.
MESSAGES = {
    "XSpace": {"planes": (1, "XPlane*")},
    "XPlane": {
        "name": (2, "bytes"),
        "lines": (3, "XLine*"),
        "event_metadata": (4, "EventEntry*"),
        "stat_metadata": (5, "StatEntry*"),
        "stats": (6, "XStat*"),
    },
    "EventEntry": {"key": (1, "int64"), "value": (2, "Metadata")},
    "StatEntry": {"key": (1, "int64"), "value": (2, "Metadata")},
    "Metadata": {"name": (2, "bytes")},
    "XLine": {"id": (1, "int64"), "name": (2, "bytes"), "timestamp_ns": (3, "int64"), "events": (4, "XEvent*")},
    "XEvent": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "XStat*"),
    },
    "XStat": {
        "metadata_id": (1, "int64"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "bytes"),
        "ref_value": (7, "uint64"),
    },
}
# The fields of XSpace have these tags: all are messages or strings.
_TAGS = (0x0A, 0x12, 0x1A, 0x22)
_XSPACE = re.compile(rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f][\x08\x12]", re.DOTALL)
_HOST_PLANES = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")
_GPU = re.compile(r"/device:GPU:(\d{1,9})")
_STREAM = re.compile(r"Stream #(-?\d{1,18})")
_COPY = re.compile(r"Memcpy(\w*)|Copy(\w)\w*To(\w)|\w*_copyBuffer")
_MEMSET = re.compile(r"Memset|\w*_fillBuffer")
_ROCM_SUFFIX = re.compile(r" \[clone \.kd\]$|\.kd$")
_CALL = re.compile(r"(?:cu|cuda|hip)[A-Z]\w+$")
# Names of the Python tracer: `$train.py:12 step` and `$time sleep`.
_FRAME = re.compile(r"\$(?P<file>[^:]+\.py):(?P<line>\d+) (?P<function>.+)$", re.DOTALL)
# The Python tracer leaves out folders. These files are JAX's; its others have names that programs use, too.
_OF_JAX = frozenset(
    (
        *(
            "api.py",
            "api_util.py",
            "array.py",
            "array_methods.py",
            "dispatch.py",
            "lax.py",
            "lax_numpy.py",
            "linear_util.py",
        ),
        *("mlir.py", "named_sharding.py", "partial_eval.py", "pjit.py", "prng.py", "profiler.py", "pxla.py"),
        *(
            "sharding_impls.py",
            "source_info_util.py",
            "traceback_util.py",
            "tree_util.py",
            "ufuncs.py",
            "xla_bridge.py",
        ),
    )
)
_BUILTIN = re.compile(r"\$(?P<module>\S+) (?P<function>.+)$", re.DOTALL)
_GRID = re.compile(r"\bgrid:(\d{1,9}),(\d{1,9}),(\d{1,9})")
_SIZE = re.compile(r"\b(?:size|num_bytes):(\d{1,18})")
_KINDS = re.compile(r"\bkind_src:(\w+) kind_dst:(\w+)")
_PS = 1000
MOST_NS = 2**62
NO_TIME = "without a valid time"


def is_xplane(head: bytes) -> bool:
    """Return whether these first bytes are those of an XSpace: a plane that begins with its number or name."""
    return _XSPACE.match(head) is not None


def read(content: Content) -> Trace:
    """Return the trace in a profile. The whole file is in memory meanwhile, and some five times its size.

    Raises OSError, and GpuExporterError if the file is damaged, or no GPU was profiled.
    """
    try:
        from google.protobuf.message import DecodeError

        from gpu_exporter.io.protobuf import message_classes
    except ImportError:
        raise GpuExporterError(EXTRA) from None
    text = content.read()
    if content.problem:
        raise GpuExporterError(content.problem)
    _check_length(text)
    try:
        space = message_classes("gpu_exporter.xplane", MESSAGES)["XSpace"].FromString(text)
    except DecodeError:
        raise GpuExporterError("damaged: its contents are not those of an XSpace of JAX's profiler") from None
    return _Profile().trace(space)


def _check_length(text: bytes) -> None:
    """Raise GpuExporterError if the last message of the file is longer than the file."""
    at = 0
    while at < len(text) and text[at] in _TAGS:
        length = shift = 0
        while True:
            at += 1
            if at >= len(text):
                raise GpuExporterError(f"truncated after {len(text)} bytes: copy it again")
            length |= (text[at] & 0x7F) << shift
            shift += 7
            if not text[at] & 0x80 or shift > 63:
                break
        at += 1 + length
    if at > len(text):
        raise GpuExporterError(f"truncated: it has {len(text)} of at least {at} bytes: copy it again")


class _Plane:
    """A plane with its tables of names."""

    def __init__(self, plane: Any) -> None:
        self.lines = plane.lines
        self.events = {entry.key: _text(entry.value.name) for entry in plane.event_metadata}
        self._stats = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
        self.stats = self.stats_of(plane)

    def stats_of(self, event: Any) -> dict[str, int | str]:
        """Return the stats of an event or a plane by name; those that are neither a number nor a text are 0."""
        found: dict[str, int | str] = {}
        for stat in event.stats:
            if name := self._stats.get(stat.metadata_id):
                text = self._stats.get(stat.ref_value, "") if stat.ref_value else _text(stat.str_value)
                found[name] = text or stat.int64_value or stat.uint64_value
        return found


class _Profile:
    """One profile while it is read."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._threads: dict[str, int] = {}
        self._devices: dict[int, DeviceProperties] = {}
        self._dropped: Counter[str] = Counter()

    def trace(self, space: Any) -> Trace:
        """Return the trace. Raises GpuExporterError if no GPU was profiled."""
        device: list[DeviceEvents] = []
        host: list[HostEvents] = []
        planes, base = [], 0
        for plane in space.planes:
            name = _text(plane.name)
            planes.append(name)
            if match := _GPU.match(name):
                device += self._gpu(int(match[1]), _Plane(plane))
            elif name in _HOST_PLANES:
                host += self._host(_Plane(plane))
            else:
                base = _number(_Plane(plane).stats.get("profile_start_time")) or base
        if not device:
            found = ", ".join(name for name in planes if name.startswith("/device:")) or "none"
            raise GpuExporterError(
                f"no GPU events in this profile of JAX (devices: {printable(found, MOST_NAME)}): profile a step that"
                " runs on a GPU"
            )
        return assemble(
            Parts(tuple(self._names), tuple(self._threads), [_launched(table, host) for table in device], host),
            devices=self._devices,
            dropped=+self._dropped,
            base=base if 0 <= base < MOST_NS else 0,
            recorder=TraceRecorder.JAX,
        )

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _times(self, line: Any) -> tuple[Sequence[Any], Sequence[int], Sequence[int]]:
        """Return the events of a line that have valid times, their starts and their ends, ns."""
        begin, kept, starts, ends = line.timestamp_ns, [], [], []
        for event in line.events:
            start = begin + event.offset_ps // _PS
            end = begin + (event.offset_ps + event.duration_ps) // _PS
            if 0 <= start <= end < MOST_NS:
                kept.append(event)
                starts.append(start)
                ends.append(end)
        self._dropped[NO_TIME] += len(line.events) - len(kept)
        return kept, starts, ends

    def _gpu(self, number: int, plane: _Plane) -> Iterator[DeviceEvents]:
        """Yield what the streams of a GPU executed. Other lines repeat it by step, module and operation."""
        about = plane.stats
        self._devices[number] = DeviceProperties(
            str(about.get("device_type_string") or about.get("device_vendor") or ""),
            _number(about.get("core_count")),
            _number(about.get("memory_size")),
        )
        for line in plane.lines:
            if not (stream := _STREAM.match(_text(line.name))):
                continue
            events, starts, ends = self._times(line)
            names, kinds, correlations, sizes, blocks = [], [], [], [], []
            for event in events:
                stats = plane.stats_of(event)
                name, kind = _work(plane.events.get(event.metadata_id, ""), stats)
                details = str(stats.get("memcpy_details") or stats.get("Memset_details") or "")
                size = _SIZE.search(details)
                names.append(self._name(name))
                kinds.append(kind)
                correlations.append(_number(stats.get("correlation_id")) or UNKNOWN)
                sizes.append(int(size[1]) if size else UNKNOWN)
                blocks.append(_blocks(str(stats.get("kernel_details") or "")))
            if events:
                yield DeviceEvents.from_lists(
                    {
                        "start": starts,
                        "end": ends,
                        "name": names,
                        "device": np.full(len(events), min(number, 2**15 - 1)),
                        "stream": np.full(len(events), int(stream[1])),
                        "kind": kinds,
                        "correlation": correlations,
                        "bytes": sizes,
                        "blocks": blocks,
                    }
                )

    def _host(self, plane: _Plane) -> Iterator[HostEvents]:
        """Yield what the threads of the host did: calls of the runtime, Python, steps and what XLA annotates."""
        meanings = {key: _meaning(name) for key, name in plane.events.items()}
        for line in plane.lines:
            thread = self._threads.setdefault(f"{_text(line.name)}/{line.id}", len(self._threads))
            events, starts, ends = self._times(line)
            names, kinds, correlations = [], [], []
            for event in events:
                name, kind = meanings.get(event.metadata_id, ("unnamed", HostKind.OPERATOR))
                correlation = UNKNOWN
                if kind is HostKind.RUNTIME:
                    correlation = _number(plane.stats_of(event).get("correlation_id")) or UNKNOWN
                elif event.stats and "step_num" in (stats := plane.stats_of(event)):
                    name, kind = f"ProfilerStep#{_number(stats['step_num'])}", HostKind.ANNOTATION
                names.append(self._name(name))
                kinds.append(kind)
                correlations.append(correlation)
            if events:
                yield HostEvents.from_lists(
                    {
                        "start": starts,
                        "end": ends,
                        "thread": np.full(len(events), thread),
                        "correlation": correlations,
                        "name": names,
                        "kind": kinds,
                    }
                )


def _launched(table: DeviceEvents, host: Sequence[HostEvents]) -> DeviceEvents:
    """Return device events without the correlations that no launch has: tracers of ROCm leave out some launches."""
    launches = distinct(np.concatenate([part.correlation for part in host] or [np.empty(0, dtype=np.int64)]))
    return replace(table, correlation=np.where(contained(table.correlation, launches), table.correlation, UNKNOWN))


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _number(value: object) -> int:
    """Return a whole number that fits into a column; 0 if it is none."""
    return value if isinstance(value, int) and 0 <= value < MOST_NS else 0


def _work(name: str, stats: Mapping[str, int | str]) -> tuple[str, DeviceKind]:
    """Return the name and the kind of an event of a GPU. Copies are named as the profiler of PyTorch names them."""
    if _MEMSET.match(name):
        return "Memset", DeviceKind.MEMSET
    if match := _COPY.match(name):
        direction = f"{match[2]}to{match[3]}" if match[2] else (match[1] or "").replace("2", "to")
        kinds = _KINDS.search(str(stats.get("memcpy_details") or ""))
        places = f"({kinds[1].capitalize()} -> {kinds[2].capitalize()})" if kinds else ""
        return " ".join(filter(None, ("Memcpy", direction, places))), DeviceKind.COPY
    return _ROCM_SUFFIX.sub("", name) or "unnamed kernel", DeviceKind.COMPUTE


def _meaning(name: str) -> tuple[str, HostKind]:
    """Return the name and the kind of an event of the host. Frames are named as the profiler of PyTorch names them."""
    if match := _FRAME.match(name):
        folder = "jax/_src/" if match["file"] in _OF_JAX else ""
        return f"{folder}{match['file']}({match['line']}): {match['function']}", HostKind.PYTHON
    if match := _BUILTIN.match(name):
        return f"<built-in function {match['function']}>", HostKind.PYTHON
    return name or "unnamed", HostKind.RUNTIME if _CALL.match(name) else HostKind.OPERATOR


def _blocks(details: str) -> int:
    match = _GRID.search(details)
    return min(int(match[1]) * int(match[2]) * int(match[3]), 2**31 - 1) if match else UNKNOWN
