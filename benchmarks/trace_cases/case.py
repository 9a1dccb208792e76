"""A profiler trace with one built-in cause, and what the analysis is expected to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

STEPS = 5
Step = Callable[[int], None]


@dataclass(frozen=True)
class Case:
    """One cause. `make` prepares a model by name and returns a step; `culprit` is the function that is to be named.

    A cause of "" means that nothing stands out, a class of "" that it may be any.
    """

    make: Callable[[str], Step]
    expected: str
    cause: str = ""
    culprit: Callable[..., Any] | None = None
    models: tuple[str, ...] = ("layers", "attention")

    def truth(self) -> Mapping[str, Any]:
        """Return what the analysis is expected to say."""
        code = self.culprit.__code__ if self.culprit else None
        line = {"function": code.co_name, "line": code.co_firstlineno} if code else {}
        return {"class": self.expected, "cause": self.cause, **line}
