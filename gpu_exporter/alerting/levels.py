"""Rules for two levels of Prometheus: shards that each scrape a share of the nodes, and one above that sees all jobs.

A shard evaluates what is local to a node. The level above evaluates what compares nodes, only from series that the
shards have recorded and forwarded, and from exporters of the cluster, which it scrapes itself. What a shard records of
each rank of a training loop are parts: with them, the level above needs none of the rank's own series.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import yaml

from gpu_exporter.alerting import allocation, remediation, training_jobs
from gpu_exporter.alerting import training_jobs as jobs
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.groups import Groups, Rule, RuleGroup
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.conditions.signal import JOB
from gpu_exporter.model.job_message import TRAINING


def _rate(name: str, help: str, series: str) -> Aggregate:
    return jobs.rank_series(name, help, jobs.placed(jobs.rank_rate(series)))


def _step(part: str, unit: str) -> Aggregate:
    series = f"max by ({jobs.RANK_KEY}) ({m.JOB_STEP}_{part})"
    return jobs.rank_series(f"step_{part}:{unit}", f"{part} of all steps", jobs.placed(series))


def _sum(part: Aggregate, selector: str) -> str:
    return f"sum without (activity) ({part.record}{{{selector}}})"


ACTIVITY = jobs.rank_series(
    "activity:ratio",
    "Share of time by activity",
    jobs.placed(jobs.rank_rate(m.JOB_ACTIVITY.name, "activity"), "activity"),
    "activity",
)
HOUR = jobs.rank_series("hour:ratio", "Share of the last hour by activity", jobs.hour(), "activity")
PARTS = (
    ACTIVITY,
    HOUR,
    _rate("tokens:per_second", "Tokens per second", m.JOB_TOKENS.name),
    _rate("samples:per_second", "Samples per second", m.JOB_SAMPLES.name),
    _rate("steps:per_second", "Steps per second", m.JOB_STEPS.name),
    jobs.rank_series("mfu:ratio", "Share of the peak of the GPU that the model uses", jobs.RANK_MFU),
    jobs.rank_series("goodput:ratio", "Share of time in training steps since the job started", jobs.RANK_GOODPUT),
    _step("sum", "seconds"),
    _step("count", "steps"),
    jobs.rank_series(
        "step_bucket:steps", "Steps of the last minutes, up to each bucket of the histogram", jobs.BUCKETS, "le"
    ),
)
# For the rules that are evaluated most often.
PROMPT_PARTS = (
    jobs.rank_series("pauses:bool", "Ranks in an evaluation, a checkpoint or a compilation", jobs.RANK_PAUSES),
    jobs.rank_series("since_step:seconds", "Time since the last step", jobs.RANK_SINCE_STEP),
)
# What the level above reads in place of an expression on the series of training loops.
READS: Mapping[str, str] = {
    **{part.expression: part.record for part in (*PARTS, *PROMPT_PARTS)},
    jobs.PAUSED: _sum(ACTIVITY, jobs.IN_PAUSE),
    jobs.placed(jobs.rank_rate(jobs.IN_TRAINING)): _sum(ACTIVITY, f'activity="{TRAINING}"'),
    jobs.hour(f"{{{jobs.IN_PAUSE}}}"): f"{HOUR.record}{{{jobs.IN_PAUSE}}}",
}


# Values of these belong to one node, and those of models are constants, the same everywhere; those of workloads, jobs,
# pools and clusters belong to several nodes.
_LOCAL = ("gpu:", "node:", "rank:", "model:")
_NAME = re.compile(r"\b[a-z]\w*:\w+:\w+\b")
# Comparisons of the ranks of a job.
_PEERS = (f"by ({', '.join(JOB)})", f"by ({training_jobs.JOB_KEY}")
# Recorded from exporters of the cluster, such as kube-state-metrics, which no shard scrapes for its nodes only.
_OF_CLUSTER = {each.record for each in (*allocation.ALLOCATION, *remediation.REMEDIATION)}
_CONTROLLER = "gpu_remediation_"
_PARTS: Mapping[str, Iterable[Aggregate]] = {
    "gpu-jobs": PARTS,
    "gpu-progress": PROMPT_PARTS,
}


class RuleLevel(Enum):
    """A level of Prometheus servers."""

    SHARD = "shard"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class Levels:
    """The groups of both levels, and the names of the series that shards forward."""

    shard: Groups
    above: Groups
    forwarded: tuple[str, ...]

    def groups(self, level: RuleLevel) -> Groups:
        """Return the groups of a level."""
        return self.shard if level is RuleLevel.SHARD else self.above


def recorded_names(expression: str) -> set[str]:
    """Return the names of recorded series in an expression."""
    return set(_NAME.findall(expression))


def names_read(rule: Rule) -> set[str]:
    """Return the names of recorded series that a rule reads, also in the queries of its annotations."""
    return recorded_names(" ".join((rule["expr"], *rule.get("annotations", {}).values())))


def split(groups: Groups) -> Levels:
    """Return the rules of each level, in their groups and order."""
    above = _compares_nodes(groups)

    def groups_at(level: RuleLevel) -> Iterator[RuleGroup]:
        for group in groups:
            rules = [rule for rule in group.rules if (_key(rule) in above) is (level is RuleLevel.GLOBAL)]
            rules += parts(group) if level is RuleLevel.SHARD else []
            if rules:
                yield replace(group, rules=rules)

    shard = list(groups_at(RuleLevel.SHARD))
    of_all = [
        replace(group, rules=[reading_parts(rule) for rule in group.rules]) for group in groups_at(RuleLevel.GLOBAL)
    ]
    here = {rule["record"] for group in shard for rule in group.rules if "record" in rule}
    read = {name for group in of_all for rule in group.rules for name in names_read(rule)}
    return Levels(shard, of_all, tuple(sorted(read & here)))


def remote_write(forwarded: Iterable[str]) -> str:
    """Return the part of a shard's configuration that forwards these series."""
    keep = {"source_labels": ["__name__"], "regex": "|".join(forwarded), "action": "keep"}
    url = "http://prometheus-global:9090/api/v1/write"
    return yaml.safe_dump({"remote_write": [{"url": url, "write_relabel_configs": [keep]}]}, sort_keys=False)


def _key(rule: Rule) -> tuple[str, str]:
    """Return what identifies a rule: several record the same series, or have the name of the same alert."""
    return rule.get("record") or rule["alert"], rule["expr"]


def _compares_nodes(groups: Groups) -> Collection[tuple[str, str]]:
    """Return the rules that need several nodes, by themselves or because of what they read."""
    rules = [rule for group in groups for rule in group.rules]
    names = {rule["record"] for rule in rules if "record" in rule and _is_seed(rule)}
    while grown := {rule["record"] for rule in rules if "record" in rule and _reads(rule, names)} - names:
        names |= grown
    return {_key(rule) for rule in rules if rule.get("record") in names or _is_seed(rule) or _reads(rule, names)}


def _reads(rule: Rule, names: Collection[str]) -> bool:
    return not recorded_names(rule["expr"]).isdisjoint(names)


def _is_seed(rule: Rule) -> bool:
    """Return whether a rule by itself needs several nodes."""
    if any(peers in rule["expr"] for peers in _PEERS):
        return True
    name = rule.get("record")
    if name is None:
        return _CONTROLLER in rule["expr"]
    return not name.startswith(_LOCAL) or name in _OF_CLUSTER


def parts(group: RuleGroup) -> list[Rule]:
    """Return the rules of a shard for ranks, in the group of the rules that need them."""
    return [{"record": each.record, "expr": each.expression} for each in _PARTS.get(group.name, ())]


def reading_parts(rule: Rule) -> Rule:
    """Return the rule reading recorded parts of ranks instead of the series of training loops."""
    text = rule["expr"]
    for expression, read in READS.items():
        text = text.replace(f"(\n{expression}\n)", f"({read})").replace(expression, read)
    return {**rule, "expr": text}
