"""Conditions in words: "engine activity is at least 85 % (`busyEngine`) on average over the last 5 minutes"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import (
    And,
    Calc,
    Compare,
    Condition,
    Fn,
    Is,
    Limit,
    Limits,
    Named,
    NodeMax,
    OfBoard,
    OfRanks,
    Or,
    OrIfKnown,
    Over,
    PeerMean,
    PeerMedian,
    PeerMin,
    PeerShare,
    Term,
    Unless,
    children,
    leaves,
    marks_of,
    no_case,
    shared,
)
from gpu_exporter.conditions.words import CLAUSES, OPERATORS, PLURAL, STATES, TITLES
from gpu_exporter.reports.numbers import exact, exact_duration, spoken_duration


@dataclass(frozen=True, slots=True)
class ConditionLine:
    """One line of a condition in words, `depth` levels below the first."""

    depth: int
    text: str


def title(signal: Signal) -> str:
    """Return a signal's name in words: SM activity. Most begin or end the sentence with their value."""
    return TITLES.get(signal.name) or signal.plain.removesuffix(" {}").removesuffix(":").removeprefix("{} ")


def term(of: Term) -> str:
    """Return a term as a noun phrase, without the window of a mean."""
    match of:
        case Over():
            return _noun(of)
        case Calc(left, operator, right):
            return f"{_side(left)} {operator} {_side(right)}"
        case PeerShare(mark):
            return f"share of the job's other ranks that {mark.verb}"
        case PeerMedian(inner, where):
            return f"median {term(inner)} of the job's ranks that {where.verb}"
        case PeerMin(inner, where):
            return f"lowest {term(inner)} of the job's ranks that {where.verb}"
        case PeerMean(inner, where):
            return f"mean {term(inner)} of the job's other ranks that {where.verb}"
        case OfBoard(several):
            *first, last = map(term, several)
            return f"highest of {', '.join(first)} and {last}"
        case NodeMax(inner):
            return f"highest {term(inner)} of the node's GPUs of this model"
        case _:
            raise no_case(of)


def _side(of: Term) -> str:
    """Return one side of a calculation; anything but a sum has parentheses."""
    if isinstance(of, Calc) and of.operator == "-":
        if isinstance(of.right, Over) and of.right.fn is Fn.PREDICT and of.left == Over(of.right.signal):
            return f"the decrease of {title(of.right.signal)} {_ahead(of.right)}"
        return f"the distance between {term(of.left)} and {term(of.right)}"
    text = term(of)
    return f"({text})" if isinstance(of, Calc) and of.operator != "+" else text


def _noun(of: Over) -> str:
    name = title(of.signal)
    match of.fn:
        case Fn.INCREASE:
            return f"increase of {name} within {exact_duration(of.window)}"
        case Fn.PREDICT:
            return f"{name} {_ahead(of)}"
        case Fn.STDDEV:
            return f"standard deviation of {name}"
        case Fn.MAX | Fn.MIN:
            return f"{'highest' if of.fn is Fn.MAX else 'lowest'} {name} of the last {spoken_duration(of.window)}"
        case _:
            return name


def _ahead(of: Over) -> str:
    """Return for when a signal is predicted, and by which trend."""
    return f"predicted for {exact_duration(of.ahead)} ahead by the trend of the last {spoken_duration(of.window)}"


def compare(of: Compare, limits: Limits, *, short: bool = False) -> str:
    """Return one comparison in words; `short` with signs, without windows of means and names of limits."""
    state = _state(of)
    if state:
        return state
    if (of.operator, of.right) == (">=", 0.0):  # true for any value of a ratio
        return "the job has other ranks" if isinstance(of.left, PeerShare) else f"{term(of.left)} is known"
    if isinstance(of.left, PeerShare) and (of.operator, of.right) == (">=", 1.0):
        return f"all of the job's other ranks {of.left.mark.verb}"
    if short:
        return f"{term(of.left)} {OPERATORS[of.operator].sign} {_short(of, limits)}"
    match of.left:
        case PeerShare(mark):
            ranks = f"of the job's other ranks {mark.verb}"
            return f"some {ranks}" if _is_any(of) else f"{_amount(of, limits)} {ranks}"
        case Calc():
            return f"{_calculation(of, of.left, limits)},{_averaged(of.left)}".removesuffix(",")
        case Over():
            return _signal_comparison(of, of.left, limits)
    return f"{term(of.left)} is {OPERATORS[of.operator].value} {_right(of, limits)}{_averaged(of.left)}"


def _state(of: Compare) -> str:
    """Return the comparison of a signal of 0 or 1 as a statement; empty for any other."""
    if not (isinstance(of.left, Over) and of.left.fn is Fn.LAST and of.left.signal.unit == "bool"):
        return ""
    on = (of.operator, of.right) in ((">", 0.0), ("==", 1.0))
    name = of.left.signal.name
    return STATES[name][0 if on else 1] if name in STATES else f"{title(of.left.signal)} is {on:d}"


def _is_any(of: Compare) -> bool:
    return of.operator == ">" and of.right == 0.0


def _amount(of: Compare, limits: Limits) -> str:
    """Return operator and right side as an amount: less than 10 min."""
    return f"{OPERATORS[of.operator].amount} {_right(of, limits)}"


def _right(of: Compare, limits: Limits, *, short: bool = False, suffix: str = "") -> str:
    """Return the right side; a limit with its unit, or `suffix` in place of "%", and its name."""
    match of.right:
        case Limit(name, default, unit):
            number = exact(limits.get(name, default), unit)
            number = number.removesuffix(" %") + suffix if suffix else number
            return number if short else f"{number} (`{name}`)"
        case float() | int():
            return f"{of.right:.3g}"
        case _:
            return term(of.right) if short else f"the {term(of.right)}"


def _short(of: Compare, limits: Limits) -> str:
    """Return the right side with its unit; a factor between two terms as a plain number."""
    if isinstance(of.left, Calc) and of.left.operator == "/" and isinstance(of.right, Limit):
        factor = limits.get(of.right.name, of.right.value)
        if factor > 1:
            return f"{factor:g}"
    return _right(of, limits, short=True)


def _signal_comparison(of: Compare, left: Over, limits: Limits) -> str:
    """Return the comparison of a signal over its window."""
    name, last = title(left.signal), f"the last {spoken_duration(left.window)}"
    value, whole = (
        f"{OPERATORS[of.operator].value} {_right(of, limits)}",
        " (needs data for that whole time)" * left.whole,
    )
    match left.fn:
        case Fn.INCREASE:
            by = "" if _is_any(of) else f" by {_amount(of, limits)}"
            return f"within {last}, {name} have increased{by}"
        case Fn.PREDICT:
            return f"{name} will be {value} in {exact_duration(left.ahead)} if the trend of {last} continues{whole}"
        case Fn.STDDEV:
            return f"the standard deviation of {name} is {value} over {last}"
        case Fn.MAX | Fn.MIN:
            stayed = of.operator in (("<", "<=") if left.fn is Fn.MAX else (">", ">="))
            when = f"stayed {value} for {last}" if stayed else f"was {value} at some time within {last}"
            return f"{name} {when}{whole}"
    plural = left.signal.unit in PLURAL
    if plural and _is_any(of):
        return f"there are {name}"
    text = f"are {_amount(of, limits)}" if plural else f"is {value}"
    return f"{'the ' * name.startswith('number of')}{name} {text}{_averaged(left)}"


def _calculation(of: Compare, left: Calc, limits: Limits) -> str:
    """Return the comparison of two terms with each other, or of a sum."""
    first, second = _ranked(left.left, left.right), _ranked(left.right, left.left)
    amount = OPERATORS[of.operator].amount
    if left.operator == "-" and isinstance(of.right, Limit):
        return f"{first} is {amount} {_right(of, limits, suffix=' percentage points')} above {second}"
    if left.operator == "-" and _is_any(of):
        return f"the {first} is above the {second}"
    if left.operator == "/" and isinstance(of.right, Limit):
        factor = limits.get(of.right.name, of.right.value)
        share = f"{_right(of, limits)} of" if factor < 1 else f"{factor:g} times (`{of.right.name}`)"
        return f"{first} is {amount} {share} {second}"
    if left.operator == "+":
        *terms, last = (term(each) for each in _sum(left))
        return f"the sum of {', '.join(terms)} and {last} is {OPERATORS[of.operator].value} {_right(of, limits)}"
    return f"{term(left)} is {OPERATORS[of.operator].value} {_right(of, limits)}"


def _ranked(of: Term, other: Term) -> str:
    """Return a side of a comparison with the job's other ranks: which is whose."""
    if isinstance(of, OfRanks):
        return f"the {term(of)}"
    return f"{_side(of)} of this rank" if isinstance(other, OfRanks) else _side(of)


def _sum(of: Term) -> Iterator[Term]:
    if isinstance(of, Calc) and of.operator == "+":
        yield from _sum(of.left)
        yield from _sum(of.right)
    else:
        yield of


def _averaged(of: Term) -> str:
    """Return over which time the means of a term are taken."""
    overs = [part.of if isinstance(part, OfRanks) else part for part in leaves(of) if not isinstance(part, PeerShare)]
    windows = dict.fromkeys(over.window for over in overs if over.fn is Fn.MEAN)
    return "".join(f" on average over the last {spoken_duration(window)}" for window in windows)


def _clause(condition: Condition) -> str:
    """Return the clause of a shared condition; empty for any other."""
    return CLAUSES.get(condition.name, "") if isinstance(condition, Named) else ""


def definitions(conditions: Sequence[Condition], limits: Limits) -> Iterator[tuple[str, Sequence[ConditionLine]]]:
    """Yield the marks and shared conditions that conditions refer to: what is true, and if what."""
    marks = dict.fromkeys(mark for condition in conditions for mark in marks_of(condition))
    for mark in marks:
        if not _clause(mark.condition):
            what = f"A rank *{'is ' * mark.name.endswith('ed')}{mark.name}*"
            yield what, list(lines(mark.condition, limits))
    within = [inner for condition in (*conditions, *(mark.condition for mark in marks)) for inner in shared(condition)]
    for inner in reversed(dict.fromkeys(within)):
        clause = _clause(inner)
        if clause and inner not in conditions:
            start = clause.lstrip("*")[0]
            yield clause.replace(start, start.upper(), 1), list(lines(inner, limits))


_EXCEPTIONS: Mapping[type, str] = {
    And: "all of these are true (ignored if data for one of them is missing)",
    Or: "any of these is true (each is ignored without data)",
}


def lines(condition: Condition, limits: Limits, depth: int = 0, unless: str = "unless") -> Iterator[ConditionLine]:
    """Yield a condition, one comparison a line; a shared condition within it as its clause (see `definitions`).

    `unless` introduces an exception.
    """
    if depth and _clause(condition):
        yield ConditionLine(depth, _clause(condition))
        return
    match condition:
        case Compare():
            yield ConditionLine(depth, compare(condition, limits))
        case And() | Or():
            yield ConditionLine(
                depth, "all of these are true:" if isinstance(condition, And) else "any of these is true:"
            )
            for child in _flat(condition):
                yield from lines(child, limits, depth + 1, unless)
        case Unless(inner, other):
            yield ConditionLine(depth, "all of these are true:")
            for child in _flat(inner) if isinstance(inner, And) else (inner,):
                yield from lines(child, limits, depth + 1)
            several = isinstance(other, And | Or) and not _clause(other)
            yield ConditionLine(
                depth + 1,
                f"{unless} {_EXCEPTIONS[type(other)] if several else 'this is true (ignored without data)'}:",
            )
            for child in _flat(other) if isinstance(other, And | Or) and several else (other,):
                yield from lines(child, limits, depth + 2, "but not if")  # a second "unless" is a double negation
        case OrIfKnown(inner, other):
            yield ConditionLine(depth, "any of these is true:")
            yield from lines(inner, limits, depth + 1)
            yield ConditionLine(depth + 1, "all of these are true (ignored if data for one of them is missing):")
            for child in _flat(other) if isinstance(other, And) else (other,):
                yield from lines(child, limits, depth + 2)
        case Is():
            yield ConditionLine(depth, f"the bottleneck class is `{condition.name}`: no earlier class matches, and")
            for child in children(condition):
                yield from lines(child, limits, depth + 1)
        case _:
            raise no_case(condition)


def _flat(condition: And | Or) -> Iterator[Condition]:
    for child in condition.conditions:
        if isinstance(child, And | Or) and type(child) is type(condition) and not _clause(child):
            yield from _flat(child)
        else:
            yield child


def sentence(condition: Condition, limits: Limits) -> str:
    """Return a condition on one line, with signs, for a flowchart or a table."""
    match condition:
        case Compare():
            return compare(condition, limits, short=True)
        case And() | Or():
            word = " and " if isinstance(condition, And) else " or "
            return word.join(_grouped(child, limits) for child in _flat(condition))
        case Unless(inner, other):
            exception = _clause(other).replace("*", "") or _grouped(other, limits)
            return f"{_grouped(inner, limits)}, unless {exception}"
        case OrIfKnown(inner, other):
            return f"{_grouped(inner, limits)} or {_grouped(other, limits)}"
        case Is():
            return f"class {condition.name}"
        case _:
            raise no_case(condition)


def _grouped(condition: Condition, limits: Limits) -> str:
    text = sentence(condition, limits)
    return text if isinstance(condition, Compare | Is) else f"({text})"
