"""Cuts a Chrome trace of any size into chunks of whole events, so that memory stays bounded."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.traces.content import Content

CHUNK_BYTES = 4 << 20
# The start of the array is within so many bytes; what is longer is no trace, or is no event.
MOST_HEADER_BYTES = MOST_EVENT_BYTES = MOST_TAIL_BYTES = 64 << 20
ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
# Between two events. Verified on 35 traces of four layouts: a quote inside a string is escaped, so it never matches.
CUT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|args|ts|pid|tid)"\s*:)')
# How far from its end a buffer is searched first.
NEAR_END = 64 << 10


class Chunks:
    """The events of a trace as chunks of JSON: objects with commas between them, without the brackets.

    `header` is the text before the array. The last chunk also has the end of the array and what follows it.
    """

    def __init__(self, content: Content) -> None:
        self.header = b""
        self._content = content

    def __iter__(self) -> Iterator[tuple[bytes, bool]]:
        """Yield each chunk, and whether it is the last. Raises OSError and GpuExporterError."""
        blocks = iter(self._content)
        buffer = self._begin(blocks)
        for block in blocks:
            buffer += block
            if len(buffer) < CHUNK_BYTES:
                continue
            cut = last_cut(buffer)
            if cut is not None:
                yield buffer[: cut[0]], False
                buffer = buffer[cut[1] :]
            elif len(buffer) > MOST_EVENT_BYTES:
                raise GpuExporterError("one event is larger than 64 MiB: this is no trace of the PyTorch profiler")
        yield buffer, True

    def _begin(self, blocks: Iterator[bytes]) -> bytes:
        """Read the header. Returns what follows the bracket that opens the array."""
        buffer = b""
        for block in blocks:
            buffer += block
            text = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text.startswith(b"["):
                first = text[1:].lstrip()[:1]
                if first not in (b"", b"{", b"]"):
                    break  # an array of something else, or no JSON
                return text[1:]
            if match := ARRAY.search(buffer):
                self.header = buffer[: match.start()]
                return buffer[match.end() :]
            if len(buffer) > MOST_HEADER_BYTES or (text and not text.startswith(b"{")):
                break
        if not buffer.strip():
            raise GpuExporterError(self._content.problem or "the file is empty")
        raise GpuExporterError("no list of traceEvents: this is no Chrome trace of the PyTorch profiler")


def last_cut(buffer: bytes) -> tuple[int, int] | None:
    """Return the end of the last but one event and the start of the last, or None if there is only one."""
    for start in (max(0, len(buffer) - NEAR_END), 0):
        if found := deque(CUT.finditer(buffer, start), maxlen=1):
            return found[0].start() + 1, found[0].end()
        if not start:
            break
    return None


def pieces(chunk: bytes) -> list[bytes]:
    """Return the events of a chunk as they stand, each a JSON object if it is intact."""
    cuts = [(match.start() + 1, match.end()) for match in CUT.finditer(chunk)]
    starts = [0, *(start for _, start in cuts)]
    ends = [*(end for end, _ in cuts), len(chunk)]
    return [chunk[start:end] for start, end in zip(starts, ends, strict=True)]


def metadata(header: bytes, tail: bytes, key: str) -> Any:
    """Return the value of a key of the root object, which may be damaged elsewhere; None if it has none."""
    for text in (header, tail):
        match = re.search(rb'"%s"\s*:\s*' % key.encode(), text)
        if match:
            try:
                rest = text[match.end() :].decode(errors="replace")
                return json.JSONDecoder(strict=False).raw_decode(rest)[0]
            except (ValueError, RecursionError):
                continue
    return None
