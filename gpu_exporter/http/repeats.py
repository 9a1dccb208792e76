"""Requests that repeat: a Prometheus sends the same bytes with each scrape, so they are parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# As many scrape configurations as an exporter may have, and what the headers of Prometheus' longest are twice.
MOST_REQUESTS, MOST_BYTES = 32, 2048
# What scrapers send with each request, and no secrets. Whoever sends other headers has them parsed each time.
NAMES = frozenset({"Host", "User-Agent", "Accept", "Accept-Encoding", "X-Prometheus-Scrape-Timeout-Seconds"})


class Request(NamedTuple):
    """The path and the headers of a request. Nobody can change them, because later requests have the same."""

    path: str
    headers: Mapping[str, str]


class Repeats:
    """Requests by their heads: the request line and the headers as they were received. The oldest is forgotten first.

    They are valid GET requests without a body.
    """

    def __init__(self) -> None:
        self._requests: dict[bytes, Request] = {}
        self.get = self._requests.get

    def keep(self, head: bytes, path: str, headers: Mapping[str, str]) -> None:
        """Keep a request, unless it is long or may contain a secret."""
        if len(head) > MOST_BYTES or "?" in path or not NAMES.issuperset(headers):
            return
        if len(self._requests) >= MOST_REQUESTS:
            del self._requests[next(iter(self._requests))]
        self._requests[head] = Request(path, MappingProxyType(dict(headers)))
