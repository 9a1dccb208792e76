"""Details of XIDs 144 to 150, which the driver reports of NVLink 5: which unit failed, on which link, how severely.

The message names unit, severity and link, and lists registers: `NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 …)`.
The data is `nvlink5.csv`: the sheet "XID 144-150 Decode" of NVIDIA's Xid catalog, as of 2025-10-29. `unit` has the
names that drivers give a unit. `reason` is in bits 20 to 25 of the first register, `status` the second register. An
empty `action` means that the XID 154 that follows names it, an empty `severity` that NVIDIA itself is not certain.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpu_exporter.model.verdict import Action

PACKAGED = Path(__file__).with_name("nvlink5.csv")
CODES = range(144, 151)
_MESSAGE = re.compile(
    r"(?P<unit>[A-Z0-9_/]{1,64}) +(?P<severity>Fatal|Nonfatal) +XC[0-9]+ +i[0-9]+ +Link +(?P<link>-?[0-9]{1,3}) +"
    r"\((?P<reason>0x[0-9a-fA-F]{1,8})(?: +(?P<status>0x[0-9a-fA-F]{1,8}))?"
)
LINK_FATAL = "link fatal"
Key = tuple[int, str, int, int]


@dataclass(frozen=True, slots=True)
class Rule:
    """What NVIDIA says about a unit's error: `action` is None if the next XID 154 names it."""

    severity: str
    action: Action | None
    advice: str


@dataclass(frozen=True, slots=True)
class LinkError:
    """What the message of an XID says. `rule` is None if NVIDIA's table has no row for these registers."""

    unit: str
    fatal: bool
    link: int
    rule: Rule | None

    @property
    def words(self) -> str:
        """The error as the continuation of a sentence."""
        where = f"link {self.link}" if self.link >= 0 else "no single link"
        severity = "fatal" if self.fatal else "not fatal"
        if self.rule and self.rule.severity == LINK_FATAL and self.fatal:
            severity = "fatal for the link"
        advice = f"; {self.rule.advice}" if self.rule and self.rule.advice else ""
        return f"{where}, unit {self.unit}, {severity}{advice}"


def decode(code: int, message: str) -> LinkError | None:
    """Return what the message of an XID says about an NVLink; None for other codes and forms."""
    if code not in CODES:
        return None
    found = _MESSAGE.match(message)
    if not found:
        return None
    reason, status = int(found["reason"], 16) >> 20 & 0x3F, int(found["status"] or "0", 16)
    rules = (rules_by_key().get((code, unit, reason, status)) for unit in found["unit"].split("/"))
    return LinkError(
        found["unit"], found["severity"] == "Fatal", int(found["link"]), next((rule for rule in rules if rule), None)
    )


@cache
def rules_by_key() -> Mapping[Key, Rule]:
    """Return the table by code, unit, reason and status. Units that share a name share their rules."""
    rules: dict[Key, Rule] = {}
    with PACKAGED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rule = Rule(row["severity"], Action(row["action"]) if row["action"] else None, row["advice"])
            for unit in row["unit"].split("/"):
                rules[int(row["xid"]), unit, int(row["reason"]), int(row["status"], 16)] = rule
    return rules
