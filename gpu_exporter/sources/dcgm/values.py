"""A sample of DCGM -> a value, or the reason why there is none. Pure functions.

DCGM has special values for "no value", most of them with the status OK, so both are checked. The numbers of these
blanks are from `dcgmvalue.h`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpu_exporter.sources.dcgm.errors import NO_DATA, OK, outcome

INT64_BLANK = 0x7FFFFFFFFFFFFFF0
INT32_BLANK = 0x7FFFFFF0
DOUBLE_BLANK = 2.0**47
# By their distance from the first blank; any other is a blank for an unknown reason.
BLANKS = ("no_value", "not_supported", "not_supported", "no_permission")
TEXT_BLANKS = {
    "<<<NULL>>>": "no_value",
    "<<<NOT_FOUND>>>": "not_supported",
    "<<<NOT_SUPPORTED>>>": "not_supported",
    "<<<NOT_PERM>>>": "no_permission",
}


class EntityGroup(IntEnum):
    """DCGM's kinds of entities."""

    NONE = 0
    GPU = 1
    VGPU = 2
    SWITCH = 3
    GPU_I = 4
    GPU_CI = 5
    LINK = 6
    CPU = 7
    CPU_CORE = 8
    CONNECTX = 9


class Entity(NamedTuple):
    """The object that a field belongs to, with DCGM's number."""

    group: EntityGroup
    id: int


def gpu(number: int) -> Entity:
    """Return the entity of a GPU."""
    return Entity(EntityGroup.GPU, number)


def link(owner: Entity, index: int) -> Entity:
    """Return an NVLink of a GPU or NVSwitch: kind, link and owner packed into one number (`dcgm_link_t`)."""
    return Entity(EntityGroup.LINK, owner.id << 24 | index << 8 | owner.group)


class FieldAnswer(NamedTuple):
    """A sample: its value, or the reason why there is none; DCGM's `status`, and `stamp`, its time in microseconds."""

    value: float | str | None
    reason: str
    status: int
    stamp: int


NO_ANSWER = FieldAnswer(None, "no_data", NO_DATA, 0)


def answer(status: int, kind: str, raw: float | str, stamp: int) -> FieldAnswer:
    """Interpret a sample. `kind` is DCGM's letter for the field's type."""
    if status != OK:
        return FieldAnswer(None, outcome(status), status, stamp)
    reason = _blank(kind, raw)
    return FieldAnswer(None if reason else raw, reason, status, stamp)


def _blank(kind: str, raw: float | str) -> str:
    if isinstance(raw, str):
        return TEXT_BLANKS.get(raw, "") if raw else "no_value"
    if kind == "d":
        return _kind_of(raw - DOUBLE_BLANK) if raw >= DOUBLE_BLANK else "" if raw == raw else "no_value"
    if kind not in "it":
        return "not_supported"  # neither a number nor a text
    if raw >= INT64_BLANK:
        return _kind_of(raw - INT64_BLANK)
    return _kind_of(raw - INT32_BLANK) if INT32_BLANK <= raw < INT32_BLANK + len(BLANKS) else ""


def _kind_of(distance: float) -> str:
    return BLANKS[int(distance)] if 0 <= distance < len(BLANKS) else BLANKS[0]
