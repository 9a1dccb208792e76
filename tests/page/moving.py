"""Moving pictures: PNG files of the same size -> one animated PNG, which browsers show without a script."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each chunk of a PNG file."""
    place = len(SIGNATURE)
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        yield kind, png[place + 8 : place + 8 + length]
        place += 12 + length


def moving(frames: Sequence[bytes], seconds: int) -> bytes:
    """Return PNG files of the same size and colours as one that shows each for some seconds, again and again."""
    headers = {next(content for kind, content in chunks(frame) if kind == b"IHDR") for frame in frames}
    if len(headers) != 1:
        raise ValueError("the frames differ in size or colours")
    (header,) = headers
    width, height = struct.unpack_from(">II", header)
    parts = [SIGNATURE, _chunk(b"IHDR", header), _chunk(b"acTL", struct.pack(">II", len(frames), 0))]
    number = 0
    for place, frame in enumerate(frames):
        parts.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, width, height, 0, 0, seconds, 1, 0, 0)))
        number += 1
        pixels = zlib.decompress(b"".join(content for kind, content in chunks(frame) if kind == b"IDAT"))
        data = zlib.compress(pixels, 9)
        if place == 0:
            parts.append(_chunk(b"IDAT", data))
            continue
        parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
        number += 1
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
