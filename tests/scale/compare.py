"""Compares what two engines report about the same history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.operation.verdict import Firing

Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """How reports differ: alerts that only one has, by their labels, and by how many seconds starts and ends differ.

    `extra` are firings that only the second one has, of which `unexpected` never fire in the first.
    """

    alerts: int
    missing: Sequence[Firing]
    extra: Sequence[Firing]
    unexpected: Sequence[Firing]
    start: float
    end: float

    def agrees(self, seconds: float) -> bool:
        """Return whether both have the same alerts, within so many seconds."""
        return not self.missing and not self.extra and max(self.start, self.end) <= seconds

    def __str__(self) -> str:
        lines = [f"{self.alerts} alerts; starts differ by up to {self.start:.0f} s, ends by up to {self.end:.0f} s"]
        for what, found in (("missing", self.missing), ("extra", self.extra)):
            lines += [f"{what}: {each.name} {dict(each.key)} {each.start:.0f} to {each.end:.0f} s" for each in found]
        return "\n".join(lines)


def difference(expected: Sequence[Firing], found: Sequence[Firing]) -> Difference:
    """Compare reports: firings of the same labels in order of time. Labels of values are not compared."""
    left, right = _by_labels(expected), _by_labels(found)
    missing = [each for key, of_key in left.items() for each in of_key[len(right.get(key, ())) :]]
    extra = [each for key, of_key in right.items() for each in of_key[len(left.get(key, ())) :]]
    pairs = [pair for key, of_key in left.items() for pair in zip(of_key, right.get(key, ()), strict=False)]
    return Difference(
        len(expected),
        missing,
        extra,
        [each for each in extra if each.key not in left],
        max((abs(one.start - other.start) for one, other in pairs), default=0.0),
        max((abs(one.end - other.end) for one, other in pairs), default=0.0),
    )


def _by_labels(firings: Sequence[Firing]) -> Mapping[Key, list[Firing]]:
    found: dict[Key, list[Firing]] = defaultdict(list)
    for firing in sorted(firings, key=lambda each: each.start):
        found[firing.key].append(firing)
    return found
