"""Record the incidents of a fleet: the firing alerts that no other firing alert explains.

`diagnosis/incidents.py` derives the same from the findings of a node. Both read the relation that failure modes
declare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.catalogue.failure_modes import EFFECTS, MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, Place
from gpu_exporter.catalogue.failure_modes.relation import LABELS

_LABELS = ("alertname", "severity", "domain", "action", "node", "gpu", "UUID", "namespace", "workload")
_DOMAINS = "|".join(domain.value for domain in Domain)
_ALERTS = f'ALERTS{{alertstate="firing", domain=~"{_DOMAINS}"}}'
FIRING = Aggregate("gpu:alerts:firing", "Firing alerts, which shards forward", _ALERTS, _LABELS)
ALL = Aggregate(
    "incident:all:alerts",
    "Firing alerts of all levels",
    f"{FIRING.record} or {_ALERTS}",
    _LABELS,
)


def _selected(names: Sequence[str], place: Place) -> str:
    """Return the firing alerts of these names whose place is known."""
    any_of = "|".join(names)
    known = [f'{label}!=""' for label in LABELS[place][-1:]]
    matchers = ", ".join([f'alertname=~"{any_of}"', *known])
    return f"{ALL.record}{{{matchers}}}"


def _explained() -> Iterator[str]:
    """Yield for each place the firing alerts that others explain: those with the same causes together."""
    for place in Place:
        targets: dict[tuple[str, ...], list[str]] = {}
        for mode in MODES:
            causes = tuple(each.name for each in MODES if place in EFFECTS[each.name].get(mode.name, ()))
            if causes:
                targets.setdefault(causes, []).append(mode.name)
        labels = ", ".join(("cluster", *LABELS[place]))
        for causes, names in targets.items():
            yield f"{_selected(names, place)} and on ({labels}) {_selected(causes, place)}"


EXPLAINED = Aggregate(
    "incident:explained:alerts",
    "Firing alerts that another firing alert explains",
    "\nor\n".join(_explained()),
    _LABELS,
)
CAUSES = Aggregate(
    "incident:cause:alerts",
    "Firing alerts that no other one explains: the causes of incidents",
    f"{ALL.record} unless {EXPLAINED.record}",
    _LABELS,
)
INCIDENTS = (FIRING, ALL, EXPLAINED, CAUSES)
