"""Events of Chrome traces as typed structs, and the repair of those that are not valid JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gpu_exporter.traces.chunks import pieces
from gpu_exporter.traces.model import TRUNCATED, UNKNOWN

# Below so many events, a part that is not valid is decoded event by event; above, it is halved.
FEW = 32
# An object in `args` may look like the start of an event: so many pieces are tried as one.
MOST_JOINED = 4
NOT_JSON = "not valid JSON"
_NAME_START = re.compile(r'"name"\s*:\s*"')
_NAME_END = re.compile(r'"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args|id)"\s*:|"\s*\}\s*$')
_NOT_A_NUMBER = re.compile(r"(:\s*)(?:-?nan|-?inf|-?Infinity|NaN|N/A)(?=\s*[,}\]])", re.IGNORECASE)
_UNESCAPED = re.compile(r'(?<!\\)(?:\\\\)*"')
_CONTROL = re.compile(r"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrtu])|\\u(?![0-9a-fA-F]{4})')
_DECODER = json.JSONDecoder()
_RAW = ("Input Dims", "Input type", "Concrete Inputs")


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that the analysis needs. Types are checked where they are used."""

    correlation: Any = UNKNOWN
    external: Any = msgspec.field(default=UNKNOWN, name="External id")  # old versions on ROCm have only this
    device: Any = None
    stream: Any = UNKNOWN
    bytes: Any = UNKNOWN
    grid: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=UNKNOWN, name="In msg nelems")
    elements_out: Any = msgspec.field(default=UNKNOWN, name="Out msg nelems")
    dtype: Any = None
    ranks: Any = msgspec.field(default=UNKNOWN, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    sequence: Any = msgspec.field(default=UNKNOWN, name="Seq")
    source: Any = msgspec.field(default=UNKNOWN, name="Src Rank")
    destination: Any = msgspec.field(default=UNKNOWN, name="Dst Rank")
    address: Any = msgspec.field(default=None, name="Addr")
    size: Any = msgspec.field(default=None, name="Bytes")
    device_id: Any = msgspec.field(default=UNKNOWN, name="Device Id")
    allocated: Any = msgspec.field(default=UNKNOWN, name="Total Allocated")
    reserved: Any = msgspec.field(default=UNKNOWN, name="Total Reserved")
    # Of operators; as text, because most of them are not needed.
    dimensions: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")


class TraceEvent(msgspec.Struct, gc=False):
    """One event. `ts` and `dur` are microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: float | None = None
    dur: float | None = 0.0
    args: Args | None = None


_EVENTS = msgspec.json.Decoder(list[TraceEvent])
_EVENT = msgspec.json.Decoder(TraceEvent)


class Decoder:
    """Decodes chunks. `dropped` counts events by reason, `tail` is what follows the array, None before its end."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.repaired = 0
        self.tail: bytes | None = None

    def decode(self, chunk: bytes, is_last: bool) -> list[TraceEvent]:
        """Return the events of a chunk, as many as are intact or can be repaired."""
        if self.tail is not None:  # the array ended in an earlier chunk
            self.tail += chunk
            return []
        if not is_last:
            try:
                return _EVENTS.decode(b"[%b]" % chunk)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
        return [event for part in self._parts(pieces(chunk), is_last) for event in part]

    def _parts(self, parts: Sequence[bytes], is_last: bool) -> Iterator[list[TraceEvent]]:
        """Yield the events of parts of a chunk: together if they are valid, otherwise by halves."""
        pending = [parts]
        while pending:
            parts = pending.pop()
            if self.tail is not None:
                self.tail += b",".join(parts)
                continue
            try:
                yield _EVENTS.decode(b"[%b]" % b",".join(parts))
                continue
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            if len(parts) > FEW:
                half = len(parts) // 2
                pending += [parts[half:], parts[:half]]
            else:
                yield list(self._singly(parts, is_last and not pending))

    def _singly(self, parts: Sequence[bytes], is_last: bool) -> Iterator[TraceEvent]:
        """Yield the events of a few parts, repaired if needed."""
        at = 0
        while at < len(parts):
            for count in range(1, MOST_JOINED + 1):
                event = self._event(b",".join(parts[at : at + count]))
                if event is not None or self.tail is not None or at + count >= len(parts):
                    break
            if event is None and self.tail is None:
                count = 1
                event = self._repair(parts[at])
                if event is None:
                    truncated = is_last and at + 1 == len(parts)
                    if parts[at].strip(b" \t\r\n,]}"):
                        self.dropped[TRUNCATED if truncated else NOT_JSON] += 1
            if event is not None:
                yield event
            at += count
            if self.tail is not None:
                self.tail += b",".join(parts[at:])
                return

    def _event(self, part: bytes) -> TraceEvent | None:
        """Return the event of a part that is valid JSON, which may be followed by the end of the array."""
        try:
            return _EVENT.decode(part)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            return self._split(part.decode())
        except UnicodeDecodeError:
            return None

    def _split(self, text: str) -> TraceEvent | None:
        """Return the event at the start of a text, and keep what follows it as the tail if the array ends there."""
        stripped = text.lstrip()
        if stripped.startswith("]"):  # an empty array
            self.tail = stripped[1:].encode()
            return None
        try:
            content, end = _DECODER.raw_decode(stripped)
        except (ValueError, RecursionError):
            return None
        rest = stripped[end:].lstrip(" \t\r\n,")
        if rest and not rest.startswith("]"):
            return None
        event = _lenient(content)
        if rest:
            self.tail = rest[1:].encode()
        return event

    def _repair(self, part: bytes) -> TraceEvent | None:
        """Return an event that is not valid JSON: quotes in its name, control characters, N/A as a number."""
        text = _CONTROL.sub(" ", part.decode(errors="replace"))
        text = _NOT_A_NUMBER.sub(r"\1null", text)
        text = _BAD_ESCAPE.sub(r"\\\\", text)
        event = self._split(_with_quoted_name(text))
        self.repaired += event is not None
        return event


def _with_quoted_name(text: str) -> str:
    """Return an event with the quotes in its name escaped. Two searches, not one pattern: that takes quadratic time."""
    start = _NAME_START.search(text)
    end = _NAME_END.search(text, start.end()) if start else None
    if not start or not end:
        return text
    name = _UNESCAPED.sub(lambda match: match[0][:-1] + '\\"', text[start.end() : end.start()])
    return f"{text[: start.end()]}{name}{text[end.start() :]}"


def _lenient(content: Any) -> TraceEvent | None:
    """Return the event of decoded JSON, with numbers in quotes accepted; None if it is none."""
    if not isinstance(content, dict):
        return None
    if not isinstance(content.get("args"), dict):
        content.pop("args", None)
    for name in _RAW:
        content.get("args", {}).pop(name, None)
    try:
        return msgspec.convert(content, TraceEvent, strict=False)
    except (msgspec.ValidationError, RecursionError, ValueError, OverflowError):
        return None
