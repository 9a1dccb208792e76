"""The committed counts: one table for each interpreter, in counts.json.

Another build of Python, or another version of a package, needs other instructions for the same work. Then the counts
are compared relative to one of them, with a larger tolerance, and of the modules only those of this project.
"""

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
# Of counts relative to this one, where interpreter or packages are not those of the table.
BASE = "default, 1 GPU: collection"
RELATIVE_TOLERANCE = 0.25
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


def committed(tables: Mapping[str, Table]) -> Table:
    """Return the table of this interpreter, or the first of another."""
    return tables.get(interpreter()) or next(iter(tables.values()))


def differences(before: Table, now: Table, *, same_interpreter: bool) -> Sequence[str]:
    """Return a line for each count that differs by more than the tolerance, and for each that is new or missing."""
    if same_interpreter and before["packages"] == now["packages"]:
        return [*_lines(before, now, TOLERANCE)]
    return [*_lines(_relative(before), _relative(now), RELATIVE_TOLERANCE)]


def _relative(table: Table) -> Table:
    """Return the counts in millionths of the base, and the modules of this project."""
    numbers = {
        what: {name: count * 1_000_000 // table[what][BASE] for name, count in table[what].items()}
        for what in ("instructions", "bytes")
    }
    modules = {
        feature: [name for name in names if name.startswith("gpu_exporter")]
        for feature, names in table["modules"].items()
    }
    return {
        **table,
        "instructions": numbers["instructions"],
        "bytes": numbers["bytes"],
        "modules": modules,
    }


def _lines(before: Table, now: Table, tolerance: float) -> Iterator[str]:
    yield from _of_numbers("instructions", before["instructions"], now["instructions"], tolerance)
    yield from _of_numbers("bytes", before["bytes"], now["bytes"], tolerance)
    for name in sorted({*before["modules"], *now["modules"]}):
        old, new = set(before["modules"].get(name, ())), set(now["modules"].get(name, ()))
        if abs(len(new) - len(old)) > tolerance * len(old):
            names = [*(f"+{added}" for added in sorted(new - old)), *(f"-{gone}" for gone in sorted(old - new))]
            yield f"modules, {name}: {len(new)}, was {len(old)}: {' '.join(names)}"


def _of_numbers(what: str, before: Mapping[str, int], now: Mapping[str, int], tolerance: float) -> Iterator[str]:
    for name in sorted({*before, *now}):
        if name not in before or name not in now:
            yield f"{what}, {name}: {'new' if name in now else 'missing'}"
        elif abs(now[name] - before[name]) > tolerance * before[name]:
            yield f"{what}, {name}: {now[name]:,}, was {before[name]:,} ({now[name] / before[name] - 1:+.1%})"
