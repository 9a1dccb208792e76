"""Content negotiation: which form of the /metrics response a client accepts (RFC 9110, section 12.5). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

OPENMETRICS = "application/openmetrics-text"
# Headers repeat with every scrape of a client.
REMEMBERED = 32


@lru_cache(REMEMBERED)
def accepts_openmetrics(header: str) -> bool:
    """Return whether an Accept header asks for OpenMetrics 1, and for no form of text/plain more than for that."""
    wanted = {OPENMETRICS: 0.0, "text/plain": 0.0}
    for name, parameters in _items(header):
        version = parameters.get("version", "").strip('"')
        if name == "text/plain" or (name == OPENMETRICS and (not version or re.fullmatch(r"1(\.\d+)*", version))):
            wanted[name] = max(wanted[name], _quality(parameters))
    return 0 < wanted[OPENMETRICS] >= wanted["text/plain"]


@lru_cache(REMEMBERED)
def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip: by its name, or else by `*`."""
    wanted = {name: _quality(parameters) for name, parameters in _items(header)}
    return wanted.get("gzip", wanted.get("x-gzip", wanted.get("*", 0.0))) > 0


def _items(header: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for item in header.lower().split(","):
        name, *parameters = item.split(";")
        pairs = (parameter.partition("=") for parameter in parameters)
        yield name.strip(), {key.strip(): value.strip() for key, _, value in pairs}


def _quality(parameters: Mapping[str, str]) -> float:
    """Return the weight from 0 (not accepted) to 1; a malformed one is 0."""
    text = parameters.get("q", "1")
    return min(1.0, float(text)) if re.fullmatch(r"\d{1,9}(\.\d{0,9})?|\.\d{1,9}", text) else 0.0
