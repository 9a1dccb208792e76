"""The committed counts: one table for each interpreter, in counts.json."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypedDict

PATH = Path(__file__).with_name("counts.json")
TOLERANCE = 0.03
# Packages whose versions change the counts.
PACKAGES = (
    "bcrypt",
    "click",
    "grpcio",
    "msgspec",
    "nvidia-ml-py",
    "prometheus-client",
    "protobuf",
    "pyyaml",
    "tornado",
)


class Table(TypedDict):
    """The counts of one interpreter: instructions and bytes by setup and step, the names of modules by feature.

    `why` is the reason of the last change, `packages` are the versions with which it was counted.
    """

    why: str
    packages: Mapping[str, str]
    instructions: Mapping[str, int]
    bytes: Mapping[str, int]
    modules: Mapping[str, Sequence[str]]


def interpreter() -> str:
    """Return which interpreter this is: another build of the same version needs other instructions."""
    return f"{sys.version} {platform.machine()}"


def packages() -> Mapping[str, str]:
    """Return the versions of the packages that are counted, too."""
    return {name: version(name) for name in PACKAGES}


def load() -> dict[str, Table]:
    """Return the committed tables by interpreter."""
    tables: dict[str, Table] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return tables


def store(table: Table) -> None:
    """Replace the table of this interpreter."""
    PATH.write_text(json.dumps({**load(), interpreter(): table}, indent=1, sort_keys=True) + "\n")


def differences(committed: Table, counted: Table) -> Sequence[str]:
    """Return a line for each count that differs by more than the tolerance, and for each that is new or missing."""
    lines = [
        *_of_numbers("instructions", committed["instructions"], counted["instructions"]),
        *_of_numbers("bytes", committed["bytes"], counted["bytes"]),
        *_of_modules(committed["modules"], counted["modules"]),
    ]
    upgraded = [
        f"{name} is {counted['packages'].get(name)}, was {before}"
        for name, before in committed["packages"].items()
        if counted["packages"].get(name) != before
    ]
    return [*lines, *upgraded] if lines else []


def _of_numbers(what: str, before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if name not in before or name not in now:
            yield f"{what}, {name}: {'new' if name in now else 'missing'}"
        elif _differ(before[name], now[name]):
            yield f"{what}, {name}: {now[name]:,}, was {before[name]:,} ({now[name] / before[name] - 1:+.1%})"


def _of_modules(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        old, new = set(before.get(name, ())), set(now.get(name, ()))
        if _differ(len(old), len(new)):
            names = [*(f"+{added}" for added in sorted(new - old)), *(f"-{gone}" for gone in sorted(old - new))]
            yield f"modules, {name}: {len(new)}, was {len(old)}: {' '.join(names)}"


def _differ(before: int, now: int) -> bool:
    return abs(now - before) > TOLERANCE * before
