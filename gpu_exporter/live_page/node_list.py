"""The list of several nodes: the health of each, the worst first."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu_exporter.diagnosis.headline import STYLES
from gpu_exporter.health import fitness
from gpu_exporter.model.snapshot import UNREAD, Snapshot
from gpu_exporter.model.verdict import Health
from gpu_exporter.pipeline.pages import NO_METRICS_YET

# How many problems of a node are listed.
MOST_PROBLEMS = 3
NOT_READ, HIT = "not read yet", "hit"


class ListedNode(NamedTuple):
    """A node below `prefix`: its latest snapshot, and why it has no new metrics; empty if it has. Incidents are as in
    JSON, `waits` says which of its ranks wait although none of its incidents says why."""

    prefix: str
    name: str
    snapshot: Snapshot | None
    problem: str
    incidents: Sequence[Mapping[str, Any]] = ()
    waits: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """One row. `words` says what is wrong, if anything is. `read`: its GPUs were read once."""

    prefix: str
    name: str
    gpus: int | None
    health: Health
    words: str
    incidents: Sequence[Mapping[str, Any]] = ()
    waits: Sequence[str] = ()
    read: bool = True

    @property
    def is_hit(self) -> bool:
        """Whether it is only hit, by an incident of another node."""
        return self.health is Health.HEALTHY and bool(self.waits) and not self.incidents

    @property
    def urgency(self) -> tuple[Health, int]:
        """How urgent it is to look at the node: a healthy one may have incidents, too."""
        critical = any(each["severity"] == "critical" for each in self.incidents)
        return self.health, 3 if critical else 2 if self.incidents else int(bool(self.waits))

    @property
    def state(self) -> str:
        """The health for people."""
        return HIT if self.is_hit else self.health.value if self.read else NOT_READ


def list_values(nodes: Sequence[ListedNode]) -> Mapping[str, str]:
    """Return the values of the template's placeholders: summary, banner and rows, as HTML."""
    rows = sorted(map(_row, nodes), key=lambda row: row.urgency, reverse=True)
    return {"summary": _summary(rows), "banner": _banner(nodes[0].snapshot), "rows": _rows(rows)}


def _row(node: ListedNode) -> _Row:
    snapshot, problem = node.snapshot, node.problem
    if snapshot is None or (snapshot.gpus and all(status.reason == UNREAD for status in snapshot.gpus)):
        words = "" if problem == NO_METRICS_YET else problem
        return _Row(node.prefix, node.name, None, Health.UNKNOWN, words, read=False)
    if problem:
        return _Row(node.prefix, node.name, None, Health.UNKNOWN, problem)
    sick = [verdict for verdict in snapshot.verdicts if verdict.health is not Health.HEALTHY]
    sick.sort(key=lambda verdict: verdict.health, reverse=True)
    problems = [f"GPU {verdict.gpu.index}: {verdict.words}" for verdict in sick if verdict.problems]
    unknown = sum(not verdict.problems for verdict in sick)
    if unknown:
        problems.append(f"health of {unknown} GPUs unknown" if unknown > 1 else "health of one GPU unknown")
    more = [f"{len(problems) - MOST_PROBLEMS} more"] if len(problems) > MOST_PROBLEMS else []
    shown = [each for each in node.incidents if each["severity"] != "info"]
    missing = fitness.missing(snapshot)
    worst = Health.UNHEALTHY if missing else sick[0].health if sick else Health.HEALTHY
    # Incidents say more than the verdicts from which they follow.
    parts = [f"{missing} of the expected GPUs missing"] if missing else []
    parts += [] if shown else problems[:MOST_PROBLEMS] + more
    return _Row(node.prefix, node.name, len(snapshot.gpus), worst, " · ".join(parts), shown, node.waits)


def _summary(nodes: Sequence[_Row]) -> str:
    counts = Counter(node.health.value if node.read else NOT_READ for node in nodes)
    states = [*(health.value for health in reversed(Health) if health is not Health.HEALTHY), NOT_READ]
    others = [f"{counts[state]} {state}" for state in states if counts[state]]
    with_incidents = sum(node.health is Health.HEALTHY and bool(node.incidents) for node in nodes)
    hit = sum(node.is_hit for node in nodes)
    clauses = (
        [f"{with_incidents} of them {'has' if with_incidents == 1 else 'have'} incidents"] if with_incidents else []
    )
    clauses += [f"{hit} of them {'is' if hit == 1 else 'are'} hit by others"] if hit else []
    but = f", but {' and '.join(clauses)}" if clauses else ""
    return ", ".join([f"{counts[Health.HEALTHY.value]} of {len(nodes)} nodes healthy{but}", *others])


def _banner(snapshot: Snapshot | None) -> str:
    if snapshot is None or snapshot.live:
        return ""
    return f'<p class="banner">{html.escape(snapshot.banner)}</p>'


def _rows(nodes: list[_Row]) -> str:
    return "".join(
        f'<tr><th scope="row"><a href="{html.escape(node.prefix[1:])}/">{html.escape(node.name)}</a></th>'
        f'<td><span class="badge {"warn" if node.is_hit else node.health.value}">{node.state.capitalize()}</span></td>'
        f"<td>{'' if node.gpus is None else node.gpus}</td><td>{_incidents(node)}</td></tr>"
        for node in nodes
    )


def _incidents(node: _Row) -> str:
    """Return what is wrong with a node."""
    lines = [f"<p>{html.escape(node.words)}</p>"] if node.words else []
    lines += [
        f'<p><span class="badge {STYLES[each["severity"]]}">{each["severity"].capitalize()}</span>'
        f" {html.escape(each['words'])}</p>"
        for each in node.incidents[:MOST_PROBLEMS]
    ]
    lines += [f"<p>{html.escape(words)}</p>" for words in node.waits[:MOST_PROBLEMS]]
    hidden = len(node.incidents) - MOST_PROBLEMS
    return "".join([*lines, f"<p>{hidden} more</p>" if hidden > 0 else ""])
