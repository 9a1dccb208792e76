"""Follows the incidents of a node from one diagnosis to the next: when they begin and end, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_exporter.diagnosis.kept_records import HOLD_SECONDS, KeptIncident

# While an incident lasts, it is written again after a quarter of its time, within these bounds: so much of its cost is
# lost if the exporter is killed.
LEAST_REWRITE, MOST_REWRITE = 60.0, 3600.0
MOST_CULPRITS = 64


class FollowedIncidents:
    """The incidents that have not ended. An incident is confirmed once it was found twice, or if it is critical."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, ...], _OpenIncident] = {}

    def go_on(self, kept: KeptIncident) -> None:
        """Go on with an incident that had not ended when the previous exporter did."""
        self._open[_key(kept.cause, kept.jobs)] = _OpenIncident(kept, kept.seen, is_confirmed=True)

    def take(self, found: Iterable[Mapping[str, Any]], at: float, seconds: float) -> Iterator[KeptIncident]:
        """Add the incidents of a diagnosis, `seconds` after the one before; yield those that have changed or ended."""
        for each in found:
            yield from self._take(each, at, seconds)
        for key, open_incident in list(self._open.items()):
            if at - open_incident.kept.seen > HOLD_SECONDS or at < open_incident.kept.start:
                yield from self._end(key)

    def confirmed(self) -> list[KeptIncident]:
        """Return the incidents that last."""
        return [each.kept for each in self._open.values() if each.is_confirmed]

    def _take(self, found: Mapping[str, Any], at: float, seconds: float) -> Iterator[KeptIncident]:
        """Begin an incident, or go on with it."""
        key = _key(found["cause"], found["jobs"])
        before = self._open.get(key)
        if before is not None and at - before.kept.seen > HOLD_SECONDS:  # the exporter did not run meanwhile
            yield from self._end(key)
            before = None
        if before is not None:
            if before.go_on(found, at, seconds):
                yield before.kept
            return
        start = found["since"] if found["since"] is not None else at
        name = f"{start:.0f}-{found['cause']}-{len(self._open)}"
        kept = KeptIncident(name, found["cause"], found["severity"], found["words"], start, at)
        begun = self._open[key] = _OpenIncident(kept, at, is_confirmed=found["severity"] == "critical")
        begun.add(found)
        if begun.is_confirmed:
            yield kept

    def _end(self, key: tuple[str, ...]) -> Iterator[KeptIncident]:
        ended = self._open.pop(key)
        if ended.is_confirmed:
            ended.kept.end = ended.kept.seen
            yield ended.kept


class _OpenIncident:
    """An incident that has not ended."""

    def __init__(self, kept: KeptIncident, written_at: float, *, is_confirmed: bool) -> None:
        self.kept, self.written_at, self.is_confirmed = kept, written_at, is_confirmed

    def go_on(self, found: Mapping[str, Any], at: float, seconds: float) -> bool:
        """Add a diagnosis, `seconds` after the one before; return whether the incident is to be written again."""
        kept = self.kept
        changed = self.add(found) or not self.is_confirmed
        kept.seen, self.is_confirmed = at, True
        kept.lost_gpu_hours += found["lost_gpu_hours_per_hour"] * seconds / 3600
        rewrite = min(max((at - kept.start) / 4, LEAST_REWRITE), MOST_REWRITE)
        if not changed and at - self.written_at < rewrite:
            return False
        self.written_at = at
        return True

    def add(self, found: Mapping[str, Any]) -> bool:
        """Add the GPUs and the advice of a diagnosis; return whether there are other GPUs than before."""
        kept = self.kept
        kept.advice = found["advice"]
        changed = False
        for ours, theirs in (
            (kept.culprits, found["culprits"]),
            (kept.hit, found["hit"]),
            (kept.jobs, found["jobs"]),
            (kept.explains, found["explains"]),
        ):
            new = [each for each in theirs if each not in ours][: max(0, MOST_CULPRITS - len(ours))]
            ours.extend(new)
            changed |= bool(new)
        return changed


def _key(cause: str, jobs: Sequence[str]) -> tuple[str, ...]:
    """Return what diagnoses of the same incident share: the cause, and the job of its culprits."""
    return (cause, *jobs[:1])
