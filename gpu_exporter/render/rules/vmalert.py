"""Rules for vmalert, in which a rule reads what another one has recorded only some seconds later.

Prometheus evaluates the rules of a group in sequence, and each reads what those before it have just recorded. vmalert
writes to a store without waiting for it, so a chain of rules in one group takes an evaluation for each step. Here, each
rule is evaluated STEP seconds after those whose series it reads: rules of the same interval and depth are one group,
and `eval_offset` sets when it is evaluated.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from graphlib import TopologicalSorter

from gpu_exporter.render.rules.groups import Group, Groups, Rule

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


def chained(groups: Groups) -> Groups:
    """Return groups in the order in which their rules read each other. Raises graphlib.CycleError if there is none.

    The depths of a chain are STEP apart, also where it takes longer than an interval: a rule is evaluated at the same
    offset in each.
    """
    rules = [(group.interval or INTERVAL, rule) for group in groups for rule in group.rules]
    of: dict[tuple[int, str], list[Rule]] = defaultdict(list)
    for (interval, rule), depth in zip(rules, depths([rule for _, rule in rules]), strict=True):
        of[depth, interval].append(rule)
    return [_group(depth, interval, of[depth, interval]) for depth, interval in sorted(of)]


def _group(depth: int, interval: str, rules: Sequence[Rule]) -> Group:
    offset = (depth - 1) * STEP % (int(interval[:-1]) * _SECONDS[interval[-1]])
    # By default, VictoriaMetrics answers queries about now with what was 30 s ago, and caches sums over long windows,
    # which then lack the samples that became visible later.
    params = {"nocache": ["1"]}
    options = {"eval_offset": f"{offset}s", "concurrency": CONCURRENCY, "params": params}
    return Group(f"gpu-{interval}-{depth}", rules, interval, options)


def depths(rules: Sequence[Rule]) -> Sequence[int]:
    """Return the depth of each rule: one more than of the deepest rule that it reads. Raises graphlib.CycleError."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, rule in enumerate(rules):
        if "record" in rule:
            numbers[rule["record"]].append(number)
    read = {number: _read(rule, rules, numbers) for number, rule in enumerate(rules)}
    found: dict[int, int] = {}
    for number in TopologicalSorter(read).static_order():
        found[number] = 1 + max((found[other] for other in read[number]), default=0)
    return [found[number] for number in range(len(rules))]


def _read(rule: Rule, rules: Sequence[Rule], numbers: Mapping[str, Sequence[int]]) -> Collection[int]:
    """Return the numbers of the rules that a rule reads, without those whose labels its selectors exclude."""
    return {
        number
        for name, matchers in _SELECTOR.findall(rule["expr"])
        for number in numbers.get(name, ())
        if all(rules[number].get("labels", {}).get(label, value) == value for label, value in _EQUAL.findall(matchers))
    }
