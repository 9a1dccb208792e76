"""A finding of `gpu-exporter doctor`: the result of one check, and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class FindingLevel(Enum):
    """How bad a finding is. Only FAIL means that nothing can be read."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. `topic` is a stable name of what was checked; the texts may change."""

    topic: str
    level: FindingLevel
    what: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.level.value:<5} {self.what}" + (f"\n      -> {self.cure}" if self.cure else "")


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return findings for JSON; `ok` agrees with the exit code."""
    return {
        "ok": all(finding.level is not FindingLevel.FAIL for finding in findings),
        "findings": [
            {
                "topic": finding.topic,
                "level": finding.level.name.lower(),
                "what": finding.what,
                "cure": finding.cure,
            }
            for finding in findings
        ],
    }
