"""A finding: one thing that was looked at, in plain words, and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Level(Enum):
    """How bad a finding is. Only FAIL means that nothing can be read."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """`topic` is a stable name of what was looked at; the words may change."""

    topic: str
    level: Level
    what: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.level.value:<5} {self.what}" + (f"\n      -> {self.cure}" if self.cure else "")


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """For JSON; `ok` is what the exit code says."""
    return {
        "ok": all(finding.level is not Level.FAIL for finding in findings),
        "findings": [
            {"topic": each.topic, "level": each.level.name.lower(), "what": each.what, "cure": each.cure}
            for each in findings
        ],
    }
