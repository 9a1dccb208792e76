"""A profiler trace with one built-in cause, and what the analysis is expected to say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

STEPS = 5
DEVICE = "cuda"
Step = Callable[[int], None]


@dataclass(frozen=True)
class Case:
    """One cause. `make` prepares a model by name and returns a step; `culprit` is the function that is to be named.

    A cause of "" means that nothing stands out, a class of "" that it may be any. `slow_rank` is the straggler of a
    job whose class that is; any other job has none.
    """

    make: Callable[[str], Step]
    expected: str
    cause: str = ""
    culprit: Callable[..., Any] | None = None
    models: tuple[str, ...] = ("layers", "attention")

    def truth(self, ranks: int = 1) -> Mapping[str, Any]:
        """Return what the analysis is expected to say: of a job, also the rank of its straggler, or None."""
        code = self.culprit.__code__ if self.culprit else None
        line = {"function": code.co_name, "line": code.co_firstlineno} if code else {}
        rank = slow_rank(ranks) if self.expected == STRAGGLER else None
        return {"class": self.expected, "cause": self.cause, **line} | ({"straggler": rank} if ranks > 1 else {})


STRAGGLER = "straggler"


def slow_rank(ranks: int) -> int:
    """Return the slow rank of a job: neither the last one nor, of four, the first."""
    return (ranks - 1) // 2
