"""Rules for vmalert, in which a rule reads what another one has recorded only some seconds later.

Prometheus evaluates the rules of a group in sequence, and each reads what those before it have just recorded. vmalert
writes to a store without waiting for it, so a chain of rules in one group takes an evaluation for each step. Here, each
rule is evaluated at least STEP seconds after those whose series it reads: rules of the same interval and depth are one
group, and `eval_offset` sets when it is evaluated. If a recording rule can be evaluated at several times, because what
reads it comes much later, it is evaluated where the others cost least. Otherwise, the store would be overloaded in some
seconds of each interval and idle in others.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter

from gpu_exporter.alerting.groups import Groups, Rule, RuleGroup

# From an evaluation to when queries see its results, in seconds: vmalert writes them within 0.5 s with the flag of
# docs/scale.md, and VictoriaMetrics shows them 2 to 4 s later. The rest is for the evaluation.
STEP = 6
# vmalert's default is a minute: then health alerts would be late.
INTERVAL = "30s"
# Rules of a group do not read each other, so they can be evaluated at the same time.
CONCURRENCY = 4

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_SELECTOR = re.compile(r"\b([a-z]\w*:\w+:\w+)\b(?:\{([^}]*)\})?")
_EQUAL = re.compile(r'(\w+)="([^"]*)"')
# Each occurrence reads a series of each GPU; to record one costs as much as to read two. With 3200 GPUs, the CPU time
# of VictoriaMetrics correlates with this cost by 0.8; rules without such series are cheap.
_READS, _RECORDS, _RECORD_COST = re.compile(r"\bgpu[:_]\w+|\bDCGM_\w+|__name__"), "gpu:", 2
# A rule that is evaluated less often costs little.
_RARE = 600


def chained(groups: Groups) -> Groups:
    """Return groups in the order in which their rules read each other. Raises graphlib.CycleError if there is none.

    The depths of a chain are STEP apart, also where it takes longer than an interval: a rule is evaluated at the same
    offset in each.
    """
    timed = [(group.interval or INTERVAL, rule) for group in groups for rule in group.rules]
    of: dict[tuple[int, str], list[Rule]] = defaultdict(list)
    for (interval, rule), depth in zip(timed, levelled(timed), strict=True):
        of[depth, interval].append(rule)
    return [_group(depth, interval, of[depth, interval]) for depth, interval in sorted(of)]


def _group(depth: int, interval: str, rules: Sequence[Rule]) -> RuleGroup:
    offset = _offset(depth, _seconds(interval))
    # By default, VictoriaMetrics answers queries about now with what was 30 s ago, and caches sums over long windows,
    # which then lack the samples that became visible later.
    params = {"nocache": ["1"]}
    options = {"eval_offset": f"{offset}s", "concurrency": CONCURRENCY, "params": params}
    return RuleGroup(f"gpu-{interval}-{depth}", rules, interval, options)


def _seconds(interval: str) -> int:
    return int(interval[:-1]) * _SECONDS[interval[-1]]


def _offset(depth: int, seconds: int) -> int:
    return (depth - 1) * STEP % seconds


def _least(read: Mapping[int, Collection[int]]) -> list[int]:
    """Return the least depth of each rule: one more than of the deepest rule that it reads."""
    found: dict[int, int] = {}
    for number in TopologicalSorter(read).static_order():
        found[number] = 1 + max((found[other] for other in read[number]), default=0)
    return [found[number] for number in range(len(read))]


def levelled(timed: Sequence[tuple[str, Rule]]) -> Sequence[int]:
    """Return a depth of each rule, given with its interval, between those of the rules it reads and is read by.

    Alerts have their least depth, which is when they are earliest; moving a recording rule would not make the load more
    even. Raises graphlib.CycleError if rules read each other.
    """
    rules = [rule for _, rule in timed]
    read = _sources(rules)
    depth = _least(read)
    readers: dict[int, list[int]] = defaultdict(list)
    for number, sources in read.items():
        for source in sources:
            readers[source].append(number)
    seconds = {number: _seconds(interval) for number, (interval, _) in enumerate(timed)}
    frequent = [number for number, every in seconds.items() if every <= _RARE]
    cost = {number: _cost(rules[number]) for number in frequent}
    load = _Load(seconds[number] for number in frequent)
    for number in frequent:
        load.add(cost[number], depth[number], seconds[number])
    movable = [number for number in frequent if "record" in rules[number]]
    deepest, moved = max(depth), True
    while moved:
        moved = False
        for number in movable:
            load.add(-cost[number], depth[number], seconds[number])
            first = 1 + max((depth[source] for source in read[number]), default=0)
            last = min((depth[reader] - 1 for reader in readers[number]), default=deepest)
            loads = {at: load.cost_at(at, seconds[number]) for at in range(first, last + 1)}
            best = min(loads, key=lambda at: loads[at])
            if loads[best] < loads[depth[number]]:
                depth[number], moved = best, True
            load.add(cost[number], depth[number], seconds[number])
    return depth


def _cost(rule: Rule) -> int:
    recorded = rule.get("record", "").startswith(_RECORDS)
    return len(_READS.findall(rule["expr"])) + (_RECORD_COST if recorded else 0)


class _Load:
    """The cost of the rules that are evaluated in each STEP seconds of a period that is a multiple of all intervals."""

    def __init__(self, intervals: Iterable[int]) -> None:
        self._costs = [0] * (math.lcm(STEP, *intervals) // STEP)

    def add(self, cost: int, depth: int, interval: int) -> None:
        for step in self._steps(depth, interval):
            self._costs[step] += cost

    def cost_at(self, depth: int, interval: int) -> int:
        """Return the cost in all steps in which a rule of this depth is evaluated."""
        return sum(self._costs[step] for step in self._steps(depth, interval))

    def _steps(self, depth: int, interval: int) -> Iterator[int]:
        return (begin // STEP for begin in range(_offset(depth, interval), len(self._costs) * STEP, interval))


def _sources(rules: Sequence[Rule]) -> Mapping[int, Collection[int]]:
    """Return the numbers of the rules that each rule reads."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, rule in enumerate(rules):
        if "record" in rule:
            numbers[rule["record"]].append(number)
    return {number: _read(rule, rules, numbers) for number, rule in enumerate(rules)}


def _read(rule: Rule, rules: Sequence[Rule], numbers: Mapping[str, Sequence[int]]) -> Collection[int]:
    """Return the numbers of the rules that a rule reads, without those whose labels its selectors exclude."""
    return {
        number
        for name, matchers in _SELECTOR.findall(rule["expr"])
        for number in numbers.get(name, ())
        if all(rules[number].get("labels", {}).get(label, value) == value for label, value in _EQUAL.findall(matchers))
    }
