"""Decode and check a message of a rank. Its sender may be any program on the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any

from gpu_exporter.io.decoding import json_as
from gpu_exporter.model.job_message import (
    ACTIVITIES,
    AMOUNT,
    FACT,
    HISTOGRAM,
    KEYS,
    MOST_BYTES,
    MOST_PHASES,
    PARTS,
    STEP_BUCKETS,
    SUM,
    VERSION,
)

MOST_TEXT = 128
MOST_RANKS = 1 << 20
# No process has run for longer than this.
MOST_SECONDS = 10 * 365.25 * 86400
MOST_COUNT = 2.0**53
MOST_FLOPS = 1e30
# The time by activity is measured with the clocks of CPU and GPU, the time since the start with that of the CPU.
CLOCKS_DIFFER, CLOCKS_LATE = 1.01, 1.0

# A cumulative value: the key of the message, and its part: a phase, an activity, a bucket, or "sum".
Sums = Mapping[tuple[str, str], float]


class UnknownVersion(ValueError):
    """The message is of another version of the training library."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message that passed all checks. `elapsed` and `since_step` are in seconds; `sums` has all cumulative values."""

    job_id: str
    attempt: str
    rank: int
    world_size: int
    uuid: str
    pod_uid: str
    dtype: str
    clock: str
    activity: str
    elapsed: float
    since_step: float
    sums: Sums


@dataclass(frozen=True, slots=True)
class _Times:
    sum: float
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """The keys that say what is true at the moment, and the sums by key."""

    version: int
    job_id: str
    attempt: str
    rank: int
    world_size: int
    activity: str
    elapsed: float
    since_step: float
    uuid: str | None = None
    pod_uid: str | None = None
    dtype: str | None = None
    clock: str | None = None

    def sums(self, kind: str) -> Mapping[str, Any]:
        """Return the values of a kind by key, without those that are missing."""
        return {name: value for name in _NAMES[kind] if (value := getattr(self, name)) is not None}


_NAMES = {kind: [name for name, key in KEYS.items() if key.kind == kind] for kind in (SUM, AMOUNT, PARTS, HISTOGRAM)}
_TYPES: Mapping[str, Any] = {SUM: float, AMOUNT: float, PARTS: dict[str, float], HISTOGRAM: _Times}
_SENT = {
    name: (int if key.unit == "steps" else _TYPES[key.kind], key.may_miss)
    for name, key in KEYS.items()
    if key.kind != FACT
}
# All keys of `model/job_message.py`.
_Content: type[_Facts] = make_dataclass(
    "_Content",
    [(name, type | None, None) if may_miss else (name, type) for name, (type, may_miss) in _SENT.items()],
    bases=(_Facts,),
    frozen=True,
    slots=True,
    kw_only=True,
)


@dataclass(frozen=True, slots=True)
class _Version:
    version: int


def decode(content: bytes) -> Message:
    """Return the message in a packet. Raises UnknownVersion, or ValueError that names the faulty key."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES} bytes")
    version = json_as(_Version, content).version
    if version != VERSION:
        raise UnknownVersion(f"version {version}, but this exporter reads version {VERSION}")
    message = json_as(_Content, content)
    _check_identity(message)
    _check_names(message)
    sums = dict(_sums(message))
    for key, value in sums.items():
        name = ".".join(filter(None, key))
        _check_range(name, value, _most(key))
    _check_range("elapsed", message.elapsed, MOST_SECONDS)
    _check_range(
        "activity_seconds",
        sum(message.sums(PARTS)["activity_seconds"].values()),
        message.elapsed * CLOCKS_DIFFER + CLOCKS_LATE,
    )
    _check_range("since_step", message.since_step, MOST_SECONDS)
    return Message(
        message.job_id,
        message.attempt,
        message.rank,
        message.world_size,
        message.uuid or "",
        message.pod_uid or "",
        message.dtype or "",
        message.clock or "",
        message.activity,
        message.elapsed,
        message.since_step,
        sums,
    )


def _check_identity(message: _Facts) -> None:
    for name in ("job_id", "attempt", "uuid", "pod_uid", "dtype", "clock"):
        text = getattr(message, name)
        if text is None and name not in ("job_id", "attempt"):
            continue
        _check_text(name, text)
    if not 1 <= message.world_size <= MOST_RANKS:
        raise ValueError(f"world_size: must be 1 to {MOST_RANKS}")
    if not 0 <= message.rank < message.world_size:
        raise ValueError("rank: must be from 0 to world_size - 1")


def _check_names(message: _Facts) -> None:
    parts = message.sums(PARTS)
    if not {message.activity, *parts["activity_seconds"]} <= set(ACTIVITIES):
        raise ValueError(f"activity: must be one of {', '.join(ACTIVITIES)}")
    for key, names in parts.items():
        if len(names) > MOST_PHASES:
            raise ValueError(f"{key}: more than {MOST_PHASES} names")
        for name in names:
            _check_text(key, name)
    for name, times in message.sums(HISTOGRAM).items():
        if len(times.counts) != len(STEP_BUCKETS) + 1:
            raise ValueError(f"{name}.counts: must have {len(STEP_BUCKETS) + 1} values")


def _check_text(name: str, text: str) -> None:
    if not 0 < len(text) <= MOST_TEXT or not text.isprintable():
        raise ValueError(f"{name}: must be 1 to {MOST_TEXT} printable characters")


def _check_range(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:  # NaN is not, either
        raise ValueError(f"{name}: must be 0 to {most:g}")


def _most(key: tuple[str, str]) -> float:
    name, part = key
    if KEYS[name].kind == HISTOGRAM and part != "sum":
        return MOST_COUNT
    return {"seconds": MOST_SECONDS, "flops": MOST_FLOPS}.get(KEYS[name].unit, MOST_COUNT)


def _sums(message: _Facts) -> Iterator[tuple[tuple[str, str], float]]:
    for name, value in (*message.sums(SUM).items(), *message.sums(AMOUNT).items()):
        yield (name, ""), value
    for name, parts in message.sums(PARTS).items():
        yield from (((name, part), value) for part, value in parts.items())
    for name, times in message.sums(HISTOGRAM).items():
        yield (name, "sum"), times.sum
        yield from (((name, str(bucket)), count) for bucket, count in enumerate(times.counts))
