"""The pictures of the docs: each has a command that makes it, and moving ones are what browsers accept."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib

import pytest
from playwright.sync_api import Browser

from tests import ROOT
from tests.page.moving import SIGNATURE, chunks, moving
from tests.page.shoot import DOCS, OF_OTHERS, difference, in_docs


def png(colour: bytes, size: int = 2) -> bytes:
    """Return a picture of one colour."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    pixels = zlib.compress((b"\0" + colour * size) * size)
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


WHITE, BLACK = png(b"\xff" * 3), png(b"\0" * 3)


def test_every_picture_has_a_command() -> None:
    """`make pictures` calls all of them; a picture that no page shows is not kept."""
    there = {path.name for path in DOCS.iterdir()}
    assert there == in_docs() | OF_OTHERS.keys()
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^pictures:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert all(command in recipe for command in ("tests.page.shoot", *OF_OTHERS.values()))
    pages = "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    assert {name for name in there if f"images/{name}" not in pages} == set()


def test_committed_pictures_are_of_this_version() -> None:
    """One of the live page and one of a report; `make screenshots ARGS=--compare` compares all of them."""
    command = [sys.executable, "-m", "tests.page.shoot", "--compare", "live-page-phone", "trace-report"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}fix: run `make screenshots`, and look at the pictures"
    assert done.stdout.count("of the pixels differ") == 2


def test_a_moving_picture() -> None:
    """Frames come one after another, numbered without a gap, each for the same time."""
    made = list(chunks(moving([WHITE, BLACK], 4)))
    assert [kind for kind, _ in made] == [b"IHDR", b"acTL", b"fcTL", b"IDAT", b"fcTL", b"fdAT", b"IEND"]
    assert struct.unpack(">II", made[1][1]) == (2, 0)
    assert [struct.unpack_from(">I", content)[0] for kind, content in made if kind in (b"fcTL", b"fdAT")] == [0, 1, 2]
    assert struct.unpack_from(">HH", made[2][1], 20) == (4, 1)
    with pytest.raises(ValueError, match="differ in size"):
        moving([WHITE, png(b"\0" * 3, 3)], 4)


def test_what_differs(chromium: Browser) -> None:
    assert difference(chromium, WHITE, WHITE) == 0.0
    assert difference(chromium, WHITE, BLACK) == 1.0
    assert difference(chromium, WHITE, png(b"\xff" * 3, 3)) == 1.0
    assert difference(chromium, moving([WHITE, BLACK], 4), WHITE) == 0.0
