"""Profiles in pprof's format (google/pprof, proto/profile.proto), which Pyroscope, Parca and `go tool pprof` read.

The encoding is that of protocol buffers: a field is its number and type, then a varint or a length and bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_exporter.traces.frames import PYTHON_FRAME

# Numbers of fields in profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS, _TIME, _DURATION, _PERIOD_TYPE, _PERIOD = (
    1,
    2,
    4,
    5,
    6,
    9,
    10,
    11,
    12,
)
_TYPE, _UNIT = 1, 2
_LOCATION_IDS, _VALUES, _LABELS, _LABEL_KEY, _LABEL_TEXT = 1, 2, 3, 1, 2
_ID, _LINES, _LINE_FUNCTION, _LINE_NUMBER, _NAME, _FILE = 1, 4, 1, 2, 2, 4
NS = 1e9


@dataclass(frozen=True, slots=True)
class LabelledStacks:
    """Folded stacks, from the outermost frame to the innermost, with seconds. `labels` are those of their samples."""

    stacks: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Times:
    """How many seconds were profiled, when that began (unix seconds), and the seconds between two samples.

    0 if the latter are not known.
    """

    seconds: float
    at: float = 0.0
    period: float = 0.0


def profile(stacks: Mapping[str, Mapping[str, float]], seconds: float) -> bytes:
    """Return a profile, compressed with gzip: a sample type for each name, such as `gpu_time`, in nanoseconds.

    Stacks are folded, from the outermost frame to the innermost, with seconds. `seconds` is how long was profiled.
    """
    return labelled({name: [LabelledStacks(of_type)] for name, of_type in stacks.items()}, Times(seconds))


def labelled(types: Mapping[str, Sequence[LabelledStacks]], times: Times) -> bytes:
    """Return a profile as `profile` does, whose samples have labels."""
    encoder = _Encoder()
    parts = [
        _message(_SAMPLE_TYPE, (_TYPE, encoder.text(name)), (_UNIT, encoder.text("nanoseconds"))) for name in types
    ]
    for column, groups in enumerate(types.values()):
        for group in groups:
            parts += encoder.samples(group, column, len(types))
    first = encoder.text(next(iter(types)))
    parts.append(_message(_PERIOD_TYPE, (_TYPE, first), (_UNIT, encoder.text("nanoseconds"))))
    parts += encoder.frames()
    parts += [_bytes(_STRINGS, string.encode(errors="replace")) for string in encoder.strings]
    numbers = {_TIME: times.at, _DURATION: times.seconds, _PERIOD: times.period}
    parts += [_field(number, round(value * NS)) for number, value in numbers.items() if value > 0]
    return gzip.compress(b"".join(parts), mtime=0)


class _Encoder:
    """Numbers strings, functions, and frames. A frame is a location: a function, and the line that runs in it."""

    def __init__(self) -> None:
        self.strings: dict[str, int] = {"": 0}
        self._frames: dict[str, int] = {}

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings))

    def samples(self, group: LabelledStacks, column: int, columns: int) -> Iterable[bytes]:
        """Yield the samples of a group, whose values belong to one of several sample types."""
        pairs = [(self.text(key), self.text(value)) for key, value in group.labels.items()]
        labels = b"".join(_message(_LABELS, (_LABEL_KEY, key), (_LABEL_TEXT, value)) for key, value in pairs)
        for stack, spent in group.stacks.items():
            frames = [self._frames.setdefault(frame, len(self._frames) + 1) for frame in reversed(stack.split(";"))]
            values = [0] * columns
            values[column] = max(0, round(spent * NS))
            yield _bytes(_SAMPLE, _packed(_LOCATION_IDS, frames) + _packed(_VALUES, values) + labels)

    def frames(self) -> Iterable[bytes]:
        """Yield the locations and functions. All lines of a function of Python, in one file, are of one function."""
        functions: dict[tuple[str, str], int] = {}
        for frame, number in self._frames.items():
            python = PYTHON_FRAME.match(frame)
            name, path, line = (python["function"], python["path"], int(python["line"])) if python else (frame, "", 0)
            function = functions.setdefault((name, path), len(functions) + 1)
            place = _message(_LINES, (_LINE_FUNCTION, function), (_LINE_NUMBER, line))
            yield _bytes(_LOCATION, _field(_ID, number) + place)
        for (name, path), number in functions.items():
            yield _message(_FUNCTION, (_ID, number), (_NAME, self.text(name)), (_FILE, self.text(path)))


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
