"""Profiles in pprof's format (google/pprof, proto/profile.proto), which Pyroscope, Parca and `go tool pprof` read.

The encoding is that of protocol buffers: a field is its number and type, then a varint or a length and bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence

# Numbers of fields in profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS, _DURATION = 1, 2, 4, 5, 6, 10
_TYPE, _UNIT = 1, 2
_LOCATION_IDS, _VALUES = 1, 2
_ID, _LINES, _LINE_FUNCTION, _NAME = 1, 4, 1, 2
NS = 1e9


def profile(stacks: Mapping[str, Mapping[str, float]], seconds: float) -> bytes:
    """Return a profile, compressed with gzip: a sample type for each name, such as `gpu_time`, in nanoseconds.

    Stacks are folded, from the outermost frame to the innermost, with seconds. `seconds` is how long was profiled.
    """
    strings: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    functions: dict[str, int] = {}
    types = [_message(_SAMPLE_TYPE, (_TYPE, text(name)), (_UNIT, text("nanoseconds"))) for name in stacks]
    samples = []
    for column, of_type in enumerate(stacks.values()):
        for stack, spent in of_type.items():
            frames = [functions.setdefault(frame, len(functions) + 1) for frame in reversed(stack.split(";"))]
            values = [0] * len(stacks)
            values[column] = max(0, round(spent * NS))
            samples.append(_bytes(_SAMPLE, _packed(_LOCATION_IDS, frames) + _packed(_VALUES, values)))
    locations = [
        _bytes(_LOCATION, _field(_ID, number) + _message(_LINES, (_LINE_FUNCTION, number)))
        for number in functions.values()
    ]
    defined = [_message(_FUNCTION, (_ID, number), (_NAME, text(name))) for name, number in functions.items()]
    table = [_bytes(_STRINGS, string.encode(errors="replace")) for string in strings]
    parts = [*types, *samples, *locations, *defined, *table, _field(_DURATION, max(0, round(seconds * NS)))]
    return gzip.compress(b"".join(parts), mtime=0)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _packed(number: int, values: Iterable[int]) -> bytes:
    return _bytes(number, b"".join(map(_varint, values)))


def _message(number: int, *fields: Sequence[int]) -> bytes:
    return _bytes(number, b"".join(_field(each, value) for each, value in fields))
