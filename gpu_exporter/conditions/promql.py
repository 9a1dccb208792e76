"""Conditions and terms -> PromQL.

A condition is a filter: it returns the devices for which it is true, and no others, whether it is false or unknown for
them. Terms and conditions that are recorded are read by their names; `definition` is what the recording rule evaluates.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.conditions.signal import DEVICE, JOB, OWNER, PRESENCE_INFO
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Classification,
    Compare,
    Condition,
    Fn,
    Is,
    Leaf,
    Limit,
    Limits,
    Mark,
    Named,
    NodeMax,
    OfBoard,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Term,
    Unless,
    duration,
    no_case,
    record_of,
)

# GPUs of one model on one node.
NODE_MODEL = ("cluster", "node", "modelName")
_AGGREGATES: Mapping[Fn, str] = {
    Fn.MEAN: "avg_over_time",
    Fn.MIN: "min_over_time",
    Fn.MAX: "max_over_time",
    Fn.STDDEV: "stddev_over_time",
}


def term(of: Term) -> str:
    """Return the expression of a term, on recorded signals and their recorded windows."""
    match of:
        case Over():
            text = of.record or _windowed(of)
            return f"max without ({', '.join(OWNER)}) ({text})" if of.bare and of.signal.has_owner else text
        case Calc():
            return f"({term(of.left)} {of.operator} {term(of.right)})"
        case PeerShare() | PeerMedian() | PeerMean() | PeerMin():
            return of.record or f"(\n{_indented(term_definition(of))}\n)"
        case OfBoard():
            return _of_board(of)
        case NodeMax():
            mine, group = term(of.of), ", ".join(NODE_MODEL)
            return f"({mine} * 0 + on ({group}) group_left () max by ({group}) ({mine}))"
        case _:
            raise no_case(of)


def _of_board(of: OfBoard) -> str:
    device, engine = ", ".join(DEVICE), f"{PRESENCE_INFO} * 0"
    terms = (f'label_replace({term(each)}, "part", "{part}", "", "")' for part, each in enumerate(of.of))
    # The values first: in VictoriaMetrics, the second side costs nothing if the first is empty.
    most = f"max by ({device}) (({' or '.join(terms)}) > 0)"
    return f"({most} + on ({device}) group_right () {engine} or {engine})"


def term_definition(of: Leaf) -> str:
    """Return the expression of the recording rule of a term."""
    match of:
        case Over():
            return _windowed(of)
        case PeerShare():
            return _share(of)
        case PeerMedian():
            return _marked_statistic(of, "quantile", "0.5, ")
        case PeerMin():
            return _marked_statistic(of, "min")
        case PeerMean():
            return _mean(of)
        case _:
            raise no_case(of)


def _windowed(of: Over) -> str:
    """Return the expression of a signal over a window, for devices that have the signal now."""
    name = of.signal.record
    over = f"{name}[{duration(of.window)}]"
    match of.fn:
        case Fn.LAST:
            return name
        case Fn.INCREASE:
            text = f"({name} - min_over_time({over}))"
        case Fn.PREDICT:
            text = f"(predict_linear({over}, {of.ahead:.0f}) and {name})"
        case Fn.MEAN | Fn.MIN | Fn.MAX | Fn.STDDEV:
            text = f"({_AGGREGATES[of.fn]}({over}) and {name})"
        case _:
            raise no_case(of.fn)
    return f"({text} and {name} offset {duration(of.window)})" if of.whole else text


def _share(of: PeerShare) -> str:
    """Return the share of the other ranks, which are the devices whose engine activity is known."""
    marked, job = f'{of.mark.record}{{workload!=""}}', ", ".join(JOB)
    others = f"(sum by ({job}) ({marked}) - on ({job}) group_right () {marked})"
    return f"{others}\n/ on ({job}) group_left ()\n(count by ({job}) ({marked}) - 1 > 0)"


def _marked_statistic(of: PeerMedian | PeerMin, function: str, argument: str = "") -> str:
    job, mine = ", ".join(JOB), f'{term(of.of)}{{workload!=""}}'
    marked = f"{function} by ({job}) ({argument}{mine} and {of.mark.record} == 1)"
    return f"{mine} * 0 + on ({job}) group_left () {marked}"


def _mean(of: PeerMean) -> str:
    """Return the mean over the other ranks: the sum without this one, by the number without this one."""
    job = ", ".join(JOB)
    mark = f'({of.mark.record}{{workload!=""}} and {term(of.of)})'
    marked = f'({term(of.of)}{{workload!=""}} * {of.mark.record})'
    others = f"(sum by ({job}) ({marked}) - on ({job}) group_right () {marked})"
    return f"{others}\n/\n(sum by ({job}) ({mark}) - on ({job}) group_right () {mark} > 0)"


def mark_definition(mark: Mark, limits: Limits) -> str:
    """Return the expression of the recording rule of a mark: 0 where it is not known to be true."""
    on = f"(\n{_indented(condition(mark.condition, limits))}\n) * 0 + 1"
    return f"({on})\nand\n{PRESENCE_INFO}\nor\n{PRESENCE_INFO} * 0"


def condition(of: Condition, limits: Limits) -> str:
    """Return a filter that selects the devices for which the condition is true."""
    match of:
        case Compare():
            return _compare(of, limits)
        case And() | Or() | Unless():
            return record_of(of) or definition(of, limits)
        case OrIfKnown():
            return f"{_operand(of.other, limits)}\nor\n{_operand(of.condition, limits)}"
        case Is():
            return f'max without (class) ({of.classification.record}{{class="{of.name}"}})'
        case _:
            raise no_case(of)


def samples(of: Condition, window: float) -> str:
    """Return how many samples of a recorded condition there are in a window."""
    match of:
        case Is():
            series = f'{of.classification.record}{{class="{of.name}"}}'
            return f"max without (class) (count_over_time({series}[{duration(window)}]))"
        case And() | Or() | Unless():
            return f"count_over_time({record_of(of)}[{duration(window)}])"
        case _:
            raise TypeError(f"{of!r} is not recorded")


def definition(of: Named, limits: Limits) -> str:
    """Return the expression of the recording rule of a condition with a name."""
    match of:
        case And():
            return "\nand\n".join(_operand(child, limits) for child in of.conditions)
        case Or():
            return "\nor\n".join(_operand(child, limits) for child in of.conditions)
        case Unless():
            return f"{_operand(of.condition, limits)}\nunless\n{_operand(of.other, limits)}"
        case _:
            raise no_case(of)


def classification(of: Classification, limits: Limits) -> str:
    """Return the expression of the rule of a classification: the number of the class, with its name as a label."""
    classes = "\nor ignoring (class)\n".join(
        f'label_replace((\n{condition(child, limits)}\n) * 0 + {number}, "class", "{name}", "", "")'
        for number, (name, child) in enumerate(of.conditions.items())
    )
    return f"(\n{_indented(classes)}\n)\nunless on ({', '.join(DEVICE[:2])})\n{condition(of.unless, limits)}"


def _compare(of: Compare, limits: Limits) -> str:
    match of.right:
        case Limit(name, default):
            right = f"{limits.get(name, default):.15g}"
        case float() | int():
            right = f"{of.right:.15g}"
        case _:
            right = term(of.right)
    return f"{term(of.left)} {of.operator} {right}"


def _operand(of: Condition, limits: Limits) -> str:
    text = condition(of, limits)
    return text if isinstance(of, Compare) or "\n" not in text else f"(\n{_indented(text)}\n)"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
