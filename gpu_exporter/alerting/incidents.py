"""Record the incidents of a fleet: the firing alerts that no other firing alert explains.

`diagnosis/incidents.py` derives the same from the findings of a node. Both read the relation that failure modes
declare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from textwrap import indent

from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.catalogue.failure_modes import EFFECTS, FLEET_CAUSES, MODES
from gpu_exporter.catalogue.failure_modes.fleet import CAUSE, FAULTS, XID
from gpu_exporter.catalogue.failure_modes.mode import Domain, Within
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


def _selected(names: Sequence[str], place: Within) -> str:
    """Return the firing alerts of these names whose place is known."""
    any_of = "|".join(names)
    known = [f'{label}!=""' for label in LABELS[place][-1:]]
    matchers = ", ".join([f'alertname=~"{any_of}"', *known])
    return f"{ALL.record}{{{matchers}}}"


def _explained(only: Collection[str]) -> Iterator[str]:
    """Yield for each place those of some firing alerts that others explain: those with the same causes together."""
    for place in Within:
        targets: dict[tuple[str, ...], list[str]] = {}
        for mode in MODES:
            causes = tuple(each.name for each in MODES if place in EFFECTS[each.name].get(mode.name, ()))
            if causes and mode.name in only:
                targets.setdefault(causes, []).append(mode.name)
        labels = ", ".join(("cluster", *LABELS[place]))
        for causes, names in targets.items():
            yield f"{_selected(names, place)} and on ({labels}) {_selected(causes, place)}"


def _of_fleet() -> str:
    """Return the firing alerts of nodes that an alert about the same fault on many nodes explains."""
    source = f'label_replace({ALL.record}{{alertname="GpuFleetFault"}}, "alertname", "$1", "{CAUSE}", "(.+)")'
    return f"{_selected(FLEET_CAUSES, Within.NODE)} and on (cluster, alertname, {XID}) {source}"


_PAGES = _selected(FLEET_CAUSES, Within.NODE).replace("}", ', severity="critical"}')
NODES = Aggregate(
    FAULTS,
    "Nodes with a critical alert that no other alert of a node explains",
    f"""label_replace(group by (cluster, alertname, {XID}, node) (
  {_PAGES}
  unless
  (
{indent(f"{chr(10)}or{chr(10)}".join(_explained(FLEET_CAUSES)), "    ")}
  )
), "{CAUSE}", "$1", "alertname", "(.+)")""",
    (CAUSE, XID, "node"),
)
EXPLAINED = Aggregate(
    "incident:explained:alerts",
    "Firing alerts that another firing alert explains",
    "\nor\n".join([*_explained([mode.name for mode in MODES]), _of_fleet()]),
    _LABELS,
)
CAUSES = Aggregate(
    "incident:cause:alerts",
    "Firing alerts that no other one explains: the causes of incidents",
    f"{ALL.record} unless {EXPLAINED.record}",
    _LABELS,
)
# Read by an alert that must fire soon.
ALERTS = (FIRING, ALL, NODES)
INCIDENTS = (EXPLAINED, CAUSES)
