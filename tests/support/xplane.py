"""Writes synthetic profiles of JAX, in the names that XLA's collectors for CUDA give to planes, lines and stats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_exporter.io.protobuf import message_classes
from gpu_exporter.traces.xplane import MESSAGES

Stats = Mapping[str, int | str]
US = 1_000_000  # ps


class SyntheticProfile:
    """A profile in the making. Times are microseconds since its start."""

    def __init__(self) -> None:
        self.space = message_classes("tests.xplane", MESSAGES)["XSpace"]()
        self._planes: dict[str, Any] = {}

    def plane(self, name: str, **stats: int | str) -> Any:
        """Return a plane, which is added if it is new."""
        if name not in self._planes:
            self._planes[name] = self.space.planes.add(name=name.encode())
        found = self._planes[name]
        for key, value in stats.items():
            self._stat(found, found, key, value)
        return found

    def event(
        self, plane: str, line: str, name: str, start: float, duration: float, stats: Stats | None = None
    ) -> None:
        """Add an event to a line of a plane."""
        of = self.plane(plane)
        lines = [each for each in of.lines if each.name == line.encode()]
        chosen = lines[0] if lines else of.lines.add(id=len(of.lines), name=line.encode(), timestamp_ns=1000)
        event = chosen.events.add(
            metadata_id=self._named(of.event_metadata, name),
            offset_ps=round((start - 1) * US),
            duration_ps=round(duration * US),
        )
        for key, value in (stats or {}).items():
            self._stat(of, event, key, value)

    def _named(self, table: Any, name: str) -> int:
        for entry in table:
            if entry.value.name == name.encode(errors="surrogateescape"):
                return int(entry.key)
        entry = table.add(key=len(table) + 1)
        entry.value.name = name.encode(errors="surrogateescape")
        return int(entry.key)

    def _stat(self, plane: Any, event: Any, name: str, value: int | str) -> None:
        stat = event.stats.add(metadata_id=self._named(plane.stat_metadata, name))
        if isinstance(value, int):
            stat.int64_value = value
        else:  # texts are the names of other stats
            stat.ref_value = self._named(plane.stat_metadata, value)

    def write(self, path: Path) -> Path:
        """Write the profile."""
        path.write_bytes(self.space.SerializeToString())
        return path
