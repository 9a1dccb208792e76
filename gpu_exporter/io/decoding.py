"""Decoding of untrusted content: its size, depth and types are checked before anything uses it.

Every function raises ValueError with one line that says what is wrong, without quoting the content at length.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import msgspec

T = TypeVar("T")
# How content begins that gzip has compressed.
GZIP = b"\x1f\x8b"
# msgspec crashes if two threads prepare the same type for the first time.
PREPARING = threading.Lock()
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def json_as(kind: type[T], content: bytes | str) -> T:
    """Decode JSON as `kind`, which is a dataclass, a TypedDict or any type that msgspec supports.

    Unknown fields are ignored. Every number is finite: JSON has no other, and one that does not fit is an error.
    """
    import msgspec  # imported only when there is something to decode, which saves its memory

    with PREPARING:
        if kind not in _DECODERS:
            _DECODERS[kind] = msgspec.json.Decoder(kind)
    try:
        decoded: T = _DECODERS[kind].decode(content)
        return decoded
    except msgspec.ValidationError as error:
        raise ValueError(printable(str(error), 200)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {printable(str(error), 200)}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None


def gunzip(content: bytes, most: int) -> bytes:
    """Decompress gzip of at most `most` bytes when unpacked."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacker.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from None
    if len(unpacked) > most:
        raise ValueError(f"larger than {most >> 20} MiB when unpacked")
    if not unpacker.eof:
        raise ValueError("not gzip: it ends too early")
    return unpacked


def printable(text: str, most: int) -> str:
    """Return the text as one line of at most `most` characters, without control characters for terminals."""
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text
        )
    return text if len(text) <= most else f"{text[: most - 1]}…"
