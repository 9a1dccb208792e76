"""DCGM's fields: their ids, which never change, and their names, which do. The data is `fields.csv`.

Types, levels and most names come from NVIDIA's public `dcgm_fields.h` and `dcgm_fields.cpp`; names since 4.6.1 and
those of dcgm-exporter 1.x (`dcgm_gpu_temp`) come from NVIDIA's go-dcgm. DCGM's own tables leave out most units; known
ones were added.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_exporter.io.user_text import nearest

PACKAGED = Path(__file__).with_name("fields.csv")


class DcgmField(NamedTuple):
    """One field. `name` is its name up to DCGM 4.5 (or the only name it has), `also` are all other names.

    `type` is int, double, string or binary. `level` is what it belongs to: gpu, instance (a GPU or each of its MIG
    instances), link, switch, cpu, cpu_core, vgpu, connectx, or none (the system).
    """

    id: int
    name: str
    also: tuple[str, ...]
    type: str
    level: str
    unit: str


@dataclass(frozen=True, slots=True)
class DcgmFields:
    """All fields, by id and by any of their names."""

    by_id: Mapping[int, DcgmField]
    by_name: Mapping[str, DcgmField]

    def nearest(self, name: str) -> str:
        """Return `; did you mean …?` for a near match, else an empty string. Takes some milliseconds."""
        return nearest(name.upper(), self.by_name)


def load() -> DcgmFields:
    """Read `fields.csv`."""
    with PACKAGED.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        fields = [
            DcgmField(int(row["id"]), row["name"], tuple(row["also"].split()), row["type"], row["level"], row["unit"])
            for row in rows
        ]
    by_name = {name: field for field in fields for name in (field.name, *field.also)}
    return DcgmFields({field.id: field for field in fields}, by_name)
