"""The rules of some domains: their alerts, and the recording rules that these need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gpu_exporter.alerting.groups import Groups, Rule, RuleGroup
from gpu_exporter.alerting.levels import RuleLevel, parts, reading_parts, recorded_names, split
from gpu_exporter.catalogue.failure_modes.mode import Domain

# The level of a single Prometheus, which evaluates everything.
ALL = "all"

# What dashboards of a domain read, and few alerts or none.
_GROUPS: Mapping[str, Domain] = {
    "gpu-accounting": Domain.COST,
    "gpu-incident-costs": Domain.COST,
    "gpu-reports": Domain.COST,
    "gpu-allocation": Domain.COST,
    "gpu-jobs": Domain.DISTRIBUTED,
    "gpu-progress": Domain.DISTRIBUTED,
    "gpu-controller": Domain.REMEDIATION,
    "gpu-roofline": Domain.BOTTLENECK,
    "gpu-serving": Domain.BOTTLENECK,
}

Needed = Mapping[str, Collection[Domain]]


def needed_by(groups: Groups) -> Needed:
    """Return the domains that need each recorded series; all of them for what only general dashboards read."""
    read: dict[str, set[str]] = {}
    found: dict[str, set[Domain]] = {}
    for group in groups:
        for rule in group.rules:
            names = recorded_names(rule["expr"])
            if "record" in rule:
                read.setdefault(rule["record"], set()).update(names)
                found.setdefault(rule["record"], set()).update({_GROUPS[group.name]} if group.name in _GROUPS else ())
            else:
                for name in names:
                    found.setdefault(name, set()).add(Domain(rule["labels"]["domain"]))
    _pass_on(found, read)
    general = {name for name, domains in found.items() if not domains}
    for name in general:
        found[name] = set(Domain)
    _pass_on(found, read)
    return {name: found[name] for name in read}


def _pass_on(found: Mapping[str, set[Domain]], read: Mapping[str, set[str]]) -> None:
    """Give each series the domains of the series that are recorded from it, directly or not."""
    changed = True
    while changed:
        changed = False
        for name, names in read.items():
            for source in names & read.keys():
                if not found[name] <= found[source]:
                    found[source] |= found[name]
                    changed = True


def domains_of(rule: Rule, needed: Needed) -> Collection[Domain]:
    """Return the domains that need a rule."""
    return needed[rule["record"]] if "record" in rule else {Domain(rule["labels"]["domain"])}


def groups_of_domains(groups: Groups, chosen: Collection[Domain]) -> Groups:
    """Return the groups with the rules that these domains need, without groups that are empty then."""
    needed = needed_by(groups)
    kept = [
        replace(group, rules=[rule for rule in group.rules if not set(chosen).isdisjoint(domains_of(rule, needed))])
        for group in groups
    ]
    return [group for group in kept if group.rules]


def tagged(groups: Groups) -> Groups:
    """Return the rules of all levels in one sequence, each with its `levels` and the `domains` that need it."""
    needed = needed_by(groups)
    local = {id(rule) for group in split(groups).shard for rule in group.rules}

    def tagged_rules(group: RuleGroup) -> Iterator[Rule]:
        every: set[Domain] = set()
        for rule in group.rules:
            domains = domains_of(rule, needed)
            every.update(domains)
            above, levels = (
                reading_parts(rule),
                [ALL, RuleLevel.SHARD.value if id(rule) in local else RuleLevel.GLOBAL.value],
            )
            if above["expr"] != rule["expr"]:
                yield _tagged(above, levels[1:], domains)
                levels = levels[:1]
            yield _tagged(rule, levels, domains)
        for rule in parts(group):
            yield _tagged(rule, [RuleLevel.SHARD.value], every)

    return [replace(group, rules=list(tagged_rules(group))) for group in groups]


def _tagged(rule: Rule, levels: Collection[str], domains: Collection[Domain]) -> Rule:
    return {**rule, "levels": list(levels), "domains": [each.value for each in Domain if each in domains]}
