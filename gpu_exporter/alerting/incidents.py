"""Record the incidents of a fleet: the firing alerts that no other firing alert explains.

`diagnosis/incidents.py` derives the same from the findings of a node. Both read the relation that failure modes
declare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from textwrap import indent

from gpu_exporter.alerting.aggregates import (
    GPUS,
    OWN_WASTE,
    SHARE,
    WAITING,
    WAITING_CLASS,
    WAITING_TIME,
    WAITS,
    WASTED_COST,
    Aggregate,
)
from gpu_exporter.alerting.alert_texts import NVLINK_FAULTS
from gpu_exporter.alerting.identity import AFTERWARDS
from gpu_exporter.alerting.training_jobs import RANK
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.causes import Cause
from gpu_exporter.catalogue.failure_modes import EFFECTS, FLEET_CAUSES, HOLD_UP, LINKS, MODES, STALLS, STOPS, network
from gpu_exporter.catalogue.failure_modes.fleet import CAUSE, FAULT_KEY, FAULTS, FLEET_FAULT, XID
from gpu_exporter.catalogue.failure_modes.mode import Domain, FailureMode, Place, Severity
from gpu_exporter.catalogue.failure_modes.relation import LABELS, is_of_job
from gpu_exporter.conditions.signal import DEVICE, DEVICE_KEY

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


def _any(expressions: Iterable[str]) -> str:
    return "\nor\n".join(expressions)


def _selected(names: Sequence[str], place: Place) -> str:
    """Return the firing alerts of these names whose place is known."""
    any_of = "|".join(names)
    known = [f'{label}!=""' for label in LABELS[place][-1:]]
    matchers = ", ".join([f'alertname=~"{any_of}"', *known])
    return f"{ALL.record}{{{matchers}}}"


def _explained(only: Collection[str]) -> Iterator[str]:
    """Yield for each place those of some firing alerts that others explain: those with the same causes together."""
    for place in Place:
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
    source = f'label_replace({ALL.record}{{alertname="{FLEET_FAULT}"}}, "alertname", "$1", "{CAUSE}", "(.+)")'
    return f"{_selected(FLEET_CAUSES, Place.NODE)} and on (cluster, alertname, {XID}) {source}"


_PAGES = _selected(FLEET_CAUSES, Place.NODE).replace("}", ', severity="critical"}')
NODES = Aggregate(
    FAULTS,
    "Nodes with a critical alert that no other alert of a node explains",
    f"""label_replace(group by (cluster, alertname, {XID}, node) (
  {_PAGES}
  unless
  (
{indent(_any(_explained(FLEET_CAUSES)), "    ")}
  )
), "{CAUSE}", "$1", "alertname", "(.+)")""",
    (CAUSE, XID, "node"),
)
EXPLAINED = Aggregate(
    "incident:explained:alerts",
    "Firing alerts that another firing alert explains",
    _any([*_explained([mode.name for mode in MODES]), _of_fleet()]),
    _LABELS,
)
CAUSES = Aggregate(
    "incident:cause:alerts",
    "Firing alerts that no other one explains: the causes of incidents",
    f"{ALL.record} unless {EXPLAINED.record}",
    _LABELS,
)
# What the alerts of one incident share: its cause, and the label `place`, which is the
# job that it slows down, or the node.
KEY = ", ".join(("cluster", "alertname", "severity", CAUSE, XID, "place"))
_OF_JOB = "|".join(mode.name for mode in MODES if is_of_job(mode))
_CAUSES_OF_JOBS = f'{CAUSES.record}{{alertname=~"{_OF_JOB}", workload!=""}}'
PLACES = Aggregate(
    "incident:place:alerts",
    "Causes of incidents, with the place that those of one incident share: a job, or a node",
    f"""label_join({_CAUSES_OF_JOBS}, "place", "/", "namespace", "workload")
or
label_replace({CAUSES.record} unless {_CAUSES_OF_JOBS}, "place", "$1", "node", "(.*)")""",
    (*_LABELS, "place"),
)
_ROW = ("alertname", "severity", CAUSE, XID, "place", "node", "gpu", "rank", "namespace", "workload")


def _named(alerts: str, *labels: str) -> str:
    """Return a series for each incident whose alerts all have the same values of these labels, with these."""
    rows = f"count by ({', '.join((KEY, *labels))}) ({alerts})"
    return f"{rows} and on ({KEY}) count by ({KEY}) ({rows}) == 1"


OPEN = Aggregate(
    "incident:open:info",
    "Incidents, with the node, the GPU, the rank and the owner if it is only one",
    "0 * (\n{}\n) + 1".format(
        indent(
            f"\nor on ({KEY})\n".join(
                (
                    _named(PLACES.record, "node", "gpu", "rank", "namespace", "workload"),
                    _named(PLACES.record, "node", "namespace", "workload"),
                    _named(PLACES.record, "node"),
                    _named(PLACES.record, "namespace", "workload"),
                    f"count by ({KEY}) ({PLACES.record})",
                )
            ),
            "  ",
        )
    ),
    _ROW,
)


def _of_open(values: str, on: str = KEY) -> str:
    """Return values of each incident with its labels."""
    return f"{OPEN.record} * on ({on}) group_left ()\n(\n{indent(values, '  ')}\n)"


SINCE = Aggregate(
    "gpu:alerts:timestamp",
    "Since when firing alerts are active, which shards forward",
    f'ALERTS_FOR_STATE{{domain=~"{_DOMAINS}"}} and ignoring (alertstate) {_ALERTS}',
    _LABELS,
)


def _since(alerts: str) -> str:
    """Return since when causes of incidents are active: since their condition holds, not since they fire."""
    since = f'({SINCE.record} or ALERTS_FOR_STATE{{domain=~"{_DOMAINS}"}})'
    return f"{alerts} * 0 + ignoring (alertstate, place) group_left () {since}"


OPEN_SINCE = Aggregate(
    "incident:open:timestamp",
    "Since when an incident is active",
    _of_open(f"min by ({KEY}) ({_since(PLACES.record)})"),
    _ROW,
)
# A GPU that waits for others itself holds up nobody, unless its link is slow: then all ranks wait for that link, if
# nothing else holds up their job.
_OWNER = ", ".join(LABELS[Place.JOB])
_JOB, _DEVICE_ONLY = f"cluster, {_OWNER}", ", ".join(DEVICE[1:])


def _of_jobs(modes: Iterable[FailureMode], more: str = "") -> str:
    names = "|".join(mode.name for mode in modes if mode.name in HOLD_UP)
    return f'{PLACES.record}{{alertname=~"{names}", workload!=""{more}}}'


def _holding(more: str = "") -> str:
    """Return the alerts for which ranks of their job wait, except for those about links."""
    others = [mode for mode in MODES if mode.name not in LINKS | STOPS]
    stopping = _of_jobs((mode for mode in MODES if mode.name in STOPS), more)
    stalled = f'{ALL.record}{{alertname=~"{"|".join(STALLS)}", workload!=""}}'
    always = _of_jobs((mode for mode in others if mode.cause is Cause.PEERS), more)
    unless_waiting = _of_jobs((mode for mode in others if mode.cause is not Cause.PEERS), more)
    return (
        f"{always}\nor\n({unless_waiting} unless on ({DEVICE_KEY}) {WAITING_CLASS})\nor\n"
        f"({stopping} and on ({_JOB}) {stalled} unless on ({DEVICE_KEY}) {WAITING_CLASS})"
    )


_OF_LINKS = _of_jobs(mode for mode in MODES if mode.name in LINKS)
_MAY_HOLD = Aggregate(
    "incident:possible_holder:alerts",
    "Causes of incidents for which waiting ranks of the same job may wait",
    f"""{_holding()}
or
({_OF_LINKS} unless on ({_JOB}) (
{indent(_holding(', severity!="info"'), "  ")}
))""",
    (*_LABELS, "place"),
)


def _most_severe(claims: str, on: str) -> str:
    """Return the claims of incidents, by `severity`, without those of less severe incidents to the same."""
    levels = [f'{claims}{{severity="{severity.value}"}}' for severity in Severity]
    return f"\nor on ({on})\n".join(levels)


HOLDERS = Aggregate(
    "incident:holder:alerts",
    "Causes of incidents for which waiting ranks of the same job wait: of several, the most severe",
    _most_severe(_MAY_HOLD.record, _JOB),
    (*_LABELS, "place"),
)
HELD = Aggregate(
    "incident:held:timestamp",
    "Jobs whose waiting ranks wait for an incident, and since when it is active",
    f"min by ({_JOB}) ({_since(HOLDERS.record)})",
    LABELS[Place.JOB],
)
_HELD_BY = f"group by ({KEY}, {_OWNER}) ({HOLDERS.record})"
_OF_GPUS, _OF_NODES = f'{PLACES.record}{{UUID!=""}}', f'{PLACES.record}{{node!=""}}'
_CULPRIT_GPUS = f"group by ({KEY}, {_DEVICE_ONLY}) ({_OF_GPUS})"
# An alert about a whole job: all of its GPUs are in the incident.
_OF_WHOLE = f'group by ({KEY}, {_OWNER}) ({PLACES.record}{{UUID="", workload!=""}})'


def _of_job(values: str, of: str = _HELD_BY) -> str:
    """Return for each incident the values of its jobs."""
    return f"{of} * on ({_JOB}) group_left () {values}"


def _total(*parts: str) -> str:
    """Return the sum of values of incidents, of which each may be missing."""
    named = (f'label_replace({part}, "part", "{number}", "", "")' for number, part in enumerate(parts))
    return f"sum by ({KEY}) (\n{indent(_any(named), '  ')}\n)"


_CULPRITS = f"""count by ({KEY}) (
  {_CULPRIT_GPUS}
  unless
  group by ({KEY}, {_DEVICE_ONLY}) (
    {_OF_GPUS} and on ({KEY}, {_OWNER}) {HOLDERS.record} and on ({DEVICE_KEY}) ({WAITS})
  )
)"""
OPEN_GPUS = Aggregate(
    "incident:open:gpus",
    "GPUs that an incident hits: those that cause it, and those that wait for them",
    _of_open(
        f"max by ({KEY}) ({_of_job(GPUS.record, _OF_WHOLE)})\nor\n"
        + _total(_CULPRITS, f"sum by ({KEY}) ({_of_job(f'sum by ({_JOB}) ({WAITING.record})')})")
    ),
    _ROW,
)
_CULPRIT_NODES = f"""count by ({KEY}) (
  group by ({KEY}, node) ({_OF_NODES})
  unless
  group by ({KEY}, node) (
    {_OF_NODES} and on ({KEY}, {_OWNER}) {HOLDERS.record} and on ({_JOB}, node) {WAITING.record}
  )
)"""
_NODES_OF_JOB = f"count by ({_JOB}) (group by ({_JOB}, node) ({SHARE.record}))"
OPEN_NODES = Aggregate(
    "incident:open:nodes",
    "Nodes with GPUs that an incident hits",
    _of_open(
        f"max by ({KEY}) ({_of_job(_NODES_OF_JOB, _OF_WHOLE)})\nor\n"
        + _total(_CULPRIT_NODES, f"max by ({KEY}) ({_of_job(f'count by ({_JOB}) ({WAITING.record})')})")
    )
    + f"\nor\n{_of_open(f'count by ({FAULT_KEY}) ({FAULTS})', FAULT_KEY)}",
    _ROW,
)
_OWNED = f"group by ({DEVICE_KEY}, {_OWNER}) ({SHARE.record})"
_OWN_OF_DEVICE = f"{OWN_WASTE} * on ({DEVICE_KEY}) group_left ({_OWNER}) {_OWNED}"


def _claims() -> Iterator[str]:
    """Yield how many incidents of each severity a GPU causes: by itself, and as one of a job that causes them."""
    yield f"count by ({DEVICE_KEY}, severity) ({_CULPRIT_GPUS})"
    for severity in Severity:
        of_job = _OF_WHOLE.replace("{", f'{{severity="{severity.value}", ', 1)
        claims = f"{_OWNED} * on ({_JOB}) group_left () count by ({_JOB}) ({of_job})"
        yield f'label_replace({claims}, "severity", "{severity.value}", "", "")'


_CLAIMS = Aggregate(
    "incident:gpu_claims:count",
    "Incidents that a GPU causes, by their severity",
    f"sum by ({DEVICE_KEY}, severity) (\n"
    + indent(_any(f'label_replace({each}, "part", "{part}", "", "")' for part, each in enumerate(_claims())), "  ")
    + "\n)",
    ("UUID", "severity"),
)
_OF_SEVERITY = "cluster, namespace, workload, severity"
_PORTION = Aggregate(
    "incident:gpu_portion:gpus",
    "What a GPU wastes by itself, for each of the most severe incidents that it causes",
    f"""({_OWN_OF_DEVICE}) / on ({DEVICE_KEY}) group_left (severity)
(
{indent(_most_severe(_CLAIMS.record, DEVICE_KEY), "  ")}
)""",
    ("UUID", "namespace", "workload", "severity"),
)
_WAITING_PORTION = f"""sum by ({_JOB}) ({WAITING_TIME.record})
  / on ({_JOB})
  count by ({_JOB}) ({_HELD_BY})"""
# What a cost is, as all texts about it say it; so is that of `diagnosis/`.
COST_INCLUDES = "includes what these GPUs already wasted before the incident began, such as the gaps between kernels"
OPEN_COST = Aggregate(
    "incident:open:usd_per_hour",
    "Price of the GPU time that an incident costs: what its own GPUs waste, and the time in which others wait for "
    f"them; it {COST_INCLUDES}",
    _of_open(
        "("
        + _total(
            f"sum by ({KEY}) ({_CULPRIT_GPUS} * on ({DEVICE_KEY}, severity) group_left () {_PORTION.record})",
            f"sum by ({KEY}) ({_OF_WHOLE} * on ({_OF_SEVERITY}) group_left () "
            f"sum by ({_OF_SEVERITY}) ({_PORTION.record}))",
            f"sum by ({KEY}) ({_of_job(f'({_WAITING_PORTION})')})",
        )
        + ") * {usdPerGpuHour}"
    )
    + f"\nor\n0 * {OPEN.record}",
    _ROW,
)
UNEXPLAINED_COST = Aggregate(
    "workload:unexplained_cost:usd_per_hour",
    "Price of the wasted GPU time that no incident explains",
    f"""clamp_min({WASTED_COST.record} - on ({_JOB}) sum by ({_JOB}) (
  label_replace({_OWN_OF_DEVICE} and on ({DEVICE_KEY}) {_CLAIMS.record}, "part", "own", "", "")
  or
  label_replace(sum by ({_JOB}) ({WAITING_TIME.record} and on ({_JOB}) {HOLDERS.record}), "part", "waiting", "", "")
) * {{usdPerGpuHour}}, 0)
or on ({_JOB})
{WASTED_COST.record}""",
    LABELS[Place.JOB],
)


def _effects() -> Iterator[str]:
    """Yield for each place how many alerts there the causes of incidents explain."""
    widest = {
        mode.name: {name: max(places, key=list(Place).index) for name, places in EFFECTS[mode.name].items()}
        for mode in MODES
    }
    for place in Place:
        causes: dict[tuple[str, ...], list[str]] = {}
        for mode in MODES:
            if names := tuple(name for name, where in widest[mode.name].items() if where is place):
                causes.setdefault(names, []).append(mode.name)
        on, known = ", ".join(("cluster", *LABELS[place])), ", ".join(f'{label}!=""' for label in LABELS[place][-1:])
        terms = [
            f'{PLACES.record}{{alertname=~"{"|".join(names)}", {known}}} * on ({on}) group_left () '
            f'count by ({on}) ({EXPLAINED.record}{{alertname=~"{"|".join(effects)}", {known}}})'.replace(", }", "}")
            for effects, names in causes.items()
        ]
        # What several GPUs of an incident explain in their node or job is the same.
        total = "sum" if place is Place.GPU else "max"
        joined = indent(_any(terms), "  ")
        if terms:
            yield f'label_replace({total} by ({KEY}) (\n{joined}\n), "within", "{place.value}", "", "")'
    same = f'{EXPLAINED.record}{{alertname=~"{"|".join(FLEET_CAUSES)}"}}'
    nodes = f'count by ({FAULT_KEY}) (label_replace({same}, "{CAUSE}", "$1", "alertname", "(.+)"))'
    fleet = f'{PLACES.record}{{{CAUSE}!=""}} * on ({FAULT_KEY}) group_left () {nodes}'
    yield f'label_replace(max by ({KEY}) ({fleet}), "within", "fleet", "", "")'


OPEN_EXPLAINED = Aggregate(
    "incident:open:explained",
    "Alerts that an incident explains",
    _of_open(f"sum by ({KEY}) (\n{indent(_any(_effects()), '  ')}\n)") + f"\nor\n0 * {OPEN.record}",
    _ROW,
)
_GPU = "cluster, UUID"
_EARLIER_RANKS = f"\n  or on ({_GPU})\n  ".join(f"{RANK.record} offset {minutes}m" for minutes in AFTERWARDS)
RANKS = Aggregate(
    "gpu:alert_rank:info",
    "Ranks on GPUs about which an alert fires; for a while also those that have ended, as on a lost GPU",
    f"""topk by ({_GPU}) (1, {RANK.record} and on ({_GPU}) {_ALERTS})
or on ({_GPU})
topk by ({_GPU}) (1, (
  {_EARLIER_RANKS}
) and on ({_GPU}, namespace, workload) {_ALERTS})""",
    ("node", "gpu", "UUID", "rank"),
)
_OF_LINK = f"{_GPU}, alertname"


def _port(ports: str) -> str:
    return f'label_join({ports}, "link", " port ", "device", "port")'


def _of_alert(name: str, links: str) -> str:
    return f'label_replace({links}, "alertname", "{name}", "", "")'


def _faulty() -> Iterator[str]:
    """Yield the links that alerts of a name are about, with the label `link`: network ports, and NVLinks."""
    for fault, name in network.OF_FAULTS.items():
        yield _of_alert(name, _port(f'{m.NIC_FAULT}{{fault="{fault}"}}'))
    for name, links in NVLINK_FAULTS.items():
        yield _of_alert(name, f'label_replace({links}, "link", "NVLink $1", "nvlink", "(.+)")')


FAULTY_LINKS = Aggregate(
    "gpu:faulty_link:info",
    "Faulty links of a GPU, network ports and NVLinks, by the alert about them",
    f"group by ({_OF_LINK}, link) (\n{indent(_any(_faulty()), '  ')}\n)",
    ("UUID", "alertname", "link"),
)


def _links() -> str:
    """Return firing alerts about links of a GPU with the link, or the number of links if there are several.

    Other alerts about the network have the port nearest to their GPU, if it is a single one.
    """
    faulty, number = FAULTY_LINKS.record, f"count by ({_OF_LINK}) ({FAULTY_LINKS.record})"
    several = f'count_values by ({_OF_LINK}) ("number", {number} > 1)'
    nearest = f"group by ({_GPU}, link) ({_port(m.NIC_INFO.name)})"
    others = _ALERTS.replace("}", f', domain="{Domain.NETWORK.value}", UUID!=""}}')
    return f"""{_ALERTS} * on ({_OF_LINK}) group_left (link) (
  {faulty} and on ({_OF_LINK}) {number} == 1
  or on ({_OF_LINK})
  label_replace({several}, "link", "$1 links", "number", "(.+)")
)
or ignoring (link)
{others} * on ({_GPU}) group_left (link) (
  {nearest}
  and on ({_GPU})
  count by ({_GPU}) ({nearest}) == 1
)"""


ALERT_LINKS = Aggregate(
    "gpu:alert_link:info",
    "Firing alerts with the network port or the NVLink that they are about, if it is known",
    _links(),
    (*_LABELS, "link"),
)
# What identifies a row of a table of alerts or incidents; the GPU, or the node, is missing if there are several.
ROW_KEY = "cluster, alertname, node, gpu"
_ON_NODE, _SEVERAL = "cluster, alertname, node", f"or on ({ROW_KEY})"
_RANKED = f"""topk by ({ROW_KEY}) (1, group by ({ROW_KEY}, rank) ({ALL.record}))"""
_LINKED = f"topk by ({ROW_KEY}) (1, group by ({ROW_KEY}, link) ({ALERT_LINKS.record}))"
_OF_NODE = f"group by ({_ON_NODE}, link) ({ALERT_LINKS.record})"
NAMES = Aggregate(
    "incident:row:info",
    "What a row of a table of alerts names besides: the rank of the alert, and its network port or NVLink",
    f"""({_RANKED}) * on ({ROW_KEY}) group_left (link) {_LINKED}
{_SEVERAL}
{_RANKED}
{_SEVERAL}
({_OF_NODE} and on ({_ON_NODE}) count by ({_ON_NODE}) ({_OF_NODE}) == 1)
{_SEVERAL}
group by ({_ON_NODE}) ({ALL.record})
{_SEVERAL}
group by (cluster, alertname) ({ALL.record})""",
    ("alertname", "node", "gpu", "rank", "link"),
)
# Read by an alert that must fire soon.
ALERTS = (FIRING, ALL, NODES)
INCIDENTS = (
    EXPLAINED,
    CAUSES,
    PLACES,
    OPEN,
    SINCE,
    OPEN_SINCE,
    OPEN_EXPLAINED,
    FAULTY_LINKS,
    ALERT_LINKS,
    NAMES,
)
# Whom they hit, which needs the shares of the time of all GPUs.
COSTS = (_MAY_HOLD, HOLDERS, HELD, OPEN_GPUS, OPEN_NODES, _CLAIMS, _PORTION, OPEN_COST, UNEXPLAINED_COST)
