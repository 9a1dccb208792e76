"""Syntax trees of PromQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nodes(expression: Any) -> Iterator[Any]:
    """Yield all nodes of a parsed expression."""
    yield expression
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        child = getattr(expression, name, None)
        if child is not None and not isinstance(child, str):
            yield from nodes(child)
    for child in getattr(expression, "args", None) or ():
        yield from nodes(child)
