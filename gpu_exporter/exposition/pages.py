"""A rendered page in its four variants, and the latest one, shared between the collection loop and the server."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

# A variant that nobody asked for in this time is no longer made in advance.
WARM_SECONDS = 60.0


# Who asks again within this time follows what happens, and a page a second is too old for them.
FOLLOWED_SECONDS = 0.5


class Variant(NamedTuple):
    """One of the four forms of a page."""

    openmetrics: bool
    gzip: bool


class Page:
    """One snapshot, rendered: the sample lines of each family, with its header in either format.

    Lines are shared with the pages before and after. Joined are only the variants that somebody asks for.
    """

    def __init__(self, families: Sequence[tuple[bytes, bytes, Sequence[bytes]]]) -> None:
        self._families = families
        self._bodies: dict[Variant, bytes] = {}
        self._lock = threading.Lock()

    def body(self, variant: Variant) -> bytes:
        """The bytes to send, made at the first call."""
        body = self._bodies.get(variant)
        if body is None:
            with self._lock:
                body = self._bodies.get(variant) or self._make(variant)
                self._bodies[variant] = body
        return body

    def _make(self, variant: Variant) -> bytes:
        parts = ((om if variant.openmetrics else text, *lines) for text, om, lines in self._families)
        body = b"".join(chain.from_iterable(parts)) + (b"# EOF\n" if variant.openmetrics else b"")
        return _gzip(body) if variant.gzip else body


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(level=1, wbits=31)
    return compressor.compress(body) + compressor.flush()


class Pages:
    """The latest page, shared between the collection loop that makes it and the server that sends it."""

    def __init__(self) -> None:
        self.made = threading.Event()
        self._page = Page([])
        self._wanted: dict[Variant, float] = {}
        self._made_at = self._asked_at = self._asked_before = -float("inf")

    def publish(self, page: Page) -> None:
        """Put a new page up, with the variants made that scrapers asked for lately."""
        now = time.monotonic()
        for variant, asked in list(self._wanted.items()):
            if now - asked < WARM_SECONDS:
                page.body(variant)
        self._page, self._made_at = page, now
        self.made.set()

    def followed(self) -> bool:
        """Whether somebody has this page already, and asks for pages more often than each half a second."""
        return self._asked_at > self._made_at and self._asked_at - self._asked_before < FOLLOWED_SECONDS

    def get(self, variant: Variant) -> bytes:
        """The latest page."""
        now = self._wanted[variant] = time.monotonic()
        self._asked_before, self._asked_at = self._asked_at, now
        return self._page.body(variant)
