"""A PromQL query as a tree of what rewriting needs: selectors, calls, lists of labels, and text in between.

It also reads what Grafana allows in a query, such as `[$__rate_interval]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<number>\.?\d[\w.]*(?:(?<=[eE])[+-]\d+)?)
    |(?P<name>[A-Za-z_:][\w:]*)
    |(?P<variable>\$\{[^}]*\}|\$\w+|\[\[\w+(?::\w+)?\]\])
    |(?P<range>\[(?:\[\[[^\]]*\]\]|[^\]])*\])
    |(?P<symbol>=~|!~|[!=<>]=|.)""",
    re.VERBOSE | re.DOTALL,
)
# Deeper queries are refused: nobody writes them, and the interpreter's stack ends.
MOST_DEPTH = 50
AGGREGATORS = frozenset(
    (
        *("sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk"),
        *("quantile", "limitk", "limit_ratio"),
    )
)
# All others, also those that Prometheus has only with a feature flag.
_OTHERS = """
    abs absent absent_over_time acos acosh asin asinh atan atanh avg_over_time ceil changes clamp clamp_max clamp_min
    cos cosh count_over_time day_of_month day_of_week day_of_year days_in_month deg delta deriv
    double_exponential_smoothing exp first_over_time floor histogram_avg histogram_count histogram_fraction
    histogram_quantile histogram_quantiles histogram_stddev histogram_stdvar histogram_sum holt_winters hour idelta
    increase info irate label_join label_replace last_over_time ln log10 log2 mad_over_time max_over_time
    min_over_time minute month pi predict_linear present_over_time quantile_over_time rad range rate resets round
    scalar sgn sin sinh sort sort_by_label sort_by_label_desc sort_desc sqrt stddev_over_time stdvar_over_time step
    sum_over_time tan tanh time timestamp ts_of_first_over_time ts_of_last_over_time ts_of_max_over_time
    ts_of_min_over_time vector year
"""
_FUNCTIONS = AGGREGATORS | frozenset(_OTHERS.split())
_OF_AGGREGATORS = frozenset(("by", "without"))
_LABEL_LISTS = _OF_AGGREGATORS | {"on", "ignoring", "group_left", "group_right"}
_OPERATORS = frozenset(["+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "and", "or", "unless", "atan2"])
_TIME = r"(?:(?:\d+(?:\.\d+)?(?:ms|[smhdwy]))+|\d+(?:\.\d+)?)"
_RANGE = re.compile(rf"\[\s*{_TIME}\s*(?::\s*{_TIME}?\s*)?\]")
_OFFSET = re.compile(_TIME)
_KEYWORDS = frozenset(("and", "or", "unless", "atan2", "bool", "offset", "start", "end", "inf", "nan"))


@dataclass(frozen=True)
class Matcher:
    """`label op value`; the value with its quotes."""

    label: str
    op: str
    value: str


@dataclass(frozen=True)
class SeriesSelector:
    """`name{matchers}[range] offset 5m`; `tail` is what follows the braces."""

    name: str
    matchers: Sequence[Matcher] = ()
    range: str = ""
    tail: str = ""

    @property
    def is_range(self) -> bool:
        """Whether it selects samples over a time, for a function such as `rate`; a subquery does not."""
        return bool(self.range) and ":" not in self.range


@dataclass(frozen=True)
class LabelList:
    """`by (label, label)`."""

    keyword: str
    labels: Sequence[str]


@dataclass(frozen=True)
class FunctionCall:
    """`name by (labels) (argument, argument)`; parentheses alone are a call without a name."""

    name: str
    grouping: LabelList | None
    arguments: Sequence[Sequence[Node]]


@dataclass(frozen=True)
class Text:
    """Operators, numbers, strings, spaces and comments."""

    text: str

    @property
    def is_space(self) -> bool:
        return not self.text.strip() or self.text.startswith("#")


Node = SeriesSelector | LabelList | FunctionCall | Text
Query = Sequence[Node]


def parse(query: str) -> Query:
    """Return a query as a tree. Raises ValueError if it is not PromQL, or is nested too deeply."""
    return _Parser(query).all()


def _is_variable(node: Node | None) -> bool:
    return isinstance(node, Text) and (node.text.startswith(("$", "[[")) and not node.text.startswith("[[["))


def _check(nodes: Query) -> None:
    """Check that operands and operators take turns, and the names of functions.

    A variable of Grafana may be anything. Raises ValueError.
    """
    before: Node | None = None  # without spaces
    beside: Node | None = None
    operand: bool | None = True  # whether one has to follow, or may not; None after a variable
    for node in nodes:
        beside, adjacent = node, beside
        if isinstance(node, Text) and node.is_space:
            continue
        text = render([node]).strip()
        if isinstance(node, Text) and text.startswith(("[", "offset", "@")) and isinstance(before, FunctionCall):
            pass
        elif _is_variable(node):
            operand = None
        elif isinstance(node, Text) and text.lower() in _OPERATORS:
            if operand and text not in "+-":
                raise ValueError(f"an operand is missing before {text}")
            operand = True
        elif isinstance(node, LabelList) and node.keyword.lower() in _OF_AGGREGATORS:
            if not (isinstance(before, FunctionCall) and before.name.lower() in AGGREGATORS) and operand is not None:
                raise ValueError(f"{text} does not follow an aggregation")
        elif isinstance(node, LabelList) or text.lower() == "bool":
            if not (operand is None or (operand and before)):
                raise ValueError(f"an operator is missing before {text}")
        elif isinstance(node, Text) and not (text[0].isalnum() or text[0] in "\"'`."):
            raise ValueError(f"{text} is not an operator")
        elif operand is False:
            raise ValueError(f"an operator is missing before {text}")
        else:
            _check_operand(node, part=_is_variable(adjacent))
            operand = False
        before = node
    if operand and before:
        raise ValueError(f"an operand is missing after {render([before])}")


def _check_operand(node: Node, *, part: bool) -> None:
    """Check a call or a selector; `part`: its name begins with a variable. Raises ValueError."""
    if part:
        return
    match node:
        case FunctionCall(name="", arguments=[[], *_] | [_, _, *_]):
            raise ValueError("parentheses contain one expression")
        case FunctionCall(name=name) if name and name.lower() not in _FUNCTIONS:
            raise ValueError(f"{name} is not a function of PromQL")
        case FunctionCall(name=name, arguments=arguments) if not all(arguments) and (
            len(arguments) > 1 or name.lower() in AGGREGATORS
        ):
            raise ValueError(f"an argument of {name} is missing")
        case SeriesSelector(name="", matchers=matchers) if all(each.value[1:-1] in ("", ".*") for each in matchers):
            raise ValueError(f"{render([node])} selects every series: name one")


class _Parser:
    def __init__(self, query: str) -> None:
        self._tokens = [(str(found.lastgroup), found[0]) for found in _TOKEN.finditer(query)]
        self._at = self._depth = 0

    def all(self) -> Query:
        nodes = self._checked()
        if self._at < len(self._tokens):
            raise ValueError(f"a {self._text()} without its beginning")
        return nodes

    def _checked(self) -> Query:
        nodes = list(self._nodes())
        _check(nodes)
        return nodes

    def _text(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._tokens[place][1] if place < len(self._tokens) else ""

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise ValueError("it ends too early: close its parentheses and braces")
        self._at += 1
        return self._tokens[self._at - 1]

    def _spaces(self) -> str:
        """Skip spaces; return them."""
        begin = self._at
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "space":
            self._at += 1
        return "".join(text for _, text in self._tokens[begin : self._at])

    def _follows(self, *texts: str) -> bool:
        """Return whether one of the texts is next, and skip the spaces in front of it only then."""
        begin = self._at
        self._spaces()
        if self._text().lower() in texts:
            return True
        self._at = begin
        return False

    def _nodes(self) -> Iterator[Node]:
        """Yield nodes up to a comma or a closing parenthesis."""
        while self._text() not in ("", ",", ")"):
            kind, text = self._next()
            if text == "(":
                yield FunctionCall("", None, self._arguments())
                yield from self._call_modifiers()
            elif text == "{":
                yield self._selector("")
            elif kind == "name" and text.lower() in _LABEL_LISTS:
                yield self._labels(text)
            elif kind == "name" and text.lower() not in _KEYWORDS:
                yield from self._named(text)
            elif text in "\"'`}":
                raise ValueError(f"a {text} without its end or beginning")
            else:
                yield Text(text)

    def _named(self, name: str) -> Iterator[Node]:
        grouping = None
        if name.lower() in AGGREGATORS and self._follows("by", "without"):
            grouping = self._labels(self._next()[1])
        if self._follows("("):
            self._next()
            yield FunctionCall(name, grouping, self._arguments())
            yield from self._call_modifiers()
        elif self._follows("{"):
            self._next()
            yield self._selector(name)
        else:
            yield self._selected(SeriesSelector(name))

    def _arguments(self) -> Sequence[Query]:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ValueError("nested too deeply")
        arguments = [self._checked()]
        while self._next()[1] == ",":
            arguments.append(self._checked())
        self._depth -= 1
        return arguments

    def _labels(self, keyword: str) -> LabelList:
        labels = []
        if self._follows("("):
            while self._next()[1] != ")":
                if self._tokens[self._at - 1][0] == "name":
                    labels.append(self._tokens[self._at - 1][1])
            return LabelList(keyword, labels)
        return LabelList(keyword, ["*"])  # group_left without labels

    def _selector(self, name: str) -> SeriesSelector:
        matchers = []
        while not self._follows("}"):
            self._spaces()
            kind, label = self._next()
            self._spaces()
            if label == ",":
                continue
            if kind == "variable":
                raise ValueError(f'{label} in braces needs a label and an operator, as in uuid="{label}"')
            _, op = self._next()
            self._spaces()
            kind, value = self._next()
            if op not in ("=", "!=", "=~", "!~") or kind != "string":
                raise ValueError(f"{label} {op} {value} in braces")
            matchers.append(Matcher(label, op, value))
        self._next()
        return self._selected(SeriesSelector(name, matchers))

    def _selected(self, selector: SeriesSelector) -> SeriesSelector:
        time, tail = self._modifiers()
        return replace(selector, range=time, tail=tail)

    def _call_modifiers(self) -> Iterator[Text]:
        """Yield the range of a subquery, and its offset."""
        if text := "".join(self._modifiers()):
            yield Text(text)

    def _modifiers(self) -> tuple[str, str]:
        """Return a range, and what follows it: `offset` and `@`."""
        time, begin = "", self._at
        self._spaces()
        if self._tokens[self._at : self._at + 1] and self._tokens[self._at][0] == "range":
            time = self._next()[1]
            if not (_RANGE.fullmatch(time) or "$" in time or "[[" in time):
                raise ValueError(f"{time} is not a duration, such as [5m]")
        else:
            self._at = begin
        tail = ""
        while self._follows("offset", "@"):
            word = self._next()[1]
            self._spaces()
            sign = self._next()[1] if self._text() in ("-", "+") else ""
            kind, value = self._next()
            if word == "@" and value in ("start", "end"):
                value += self._next()[1] + self._next()[1]
            elif kind != "variable" and not (_OFFSET.fullmatch(value) if word != "@" else kind == "number"):
                raise ValueError(f"{value} is not a {'time' if word == '@' else 'duration, such as 5m'}")
            tail += f" {word} {sign}{value}"
        return time, tail


def render(nodes: Query) -> str:
    """Return the text of a tree."""
    return "".join(_rendered(node) for node in nodes)


def _rendered(node: Node) -> str:
    match node:
        case Text(text):
            return text
        case LabelList(keyword, labels):
            return keyword if labels == ["*"] else f"{keyword} ({', '.join(labels)})"
        case SeriesSelector(name, matchers, time, tail):
            inside = ", ".join(f"{each.label}{each.op}{each.value}" for each in matchers)
            return f"{name}{{{inside}}}{time}{tail}" if inside or not name else f"{name}{time}{tail}"
        case FunctionCall(name, grouping, arguments):
            head = f"{name} {_rendered(grouping)} " if grouping else name
            return f"{head}({','.join(map(render, arguments))})"


def selectors(nodes: Query) -> Iterator[SeriesSelector]:
    """Yield every selector."""
    for node in nodes:
        if isinstance(node, SeriesSelector):
            yield node
        elif isinstance(node, FunctionCall):
            for argument in node.arguments:
                yield from selectors(argument)


def label_lists(nodes: Query) -> Iterator[LabelList]:
    """Yield every list of labels."""
    for node in nodes:
        if isinstance(node, LabelList):
            yield node
        elif isinstance(node, FunctionCall):
            if node.grouping:
                yield node.grouping
            for argument in node.arguments:
                yield from label_lists(argument)


def mentioned(nodes: Query) -> Iterator[str]:
    """Yield every label that a query names: in matchers, in lists, and in label_replace and label_join."""
    for node in nodes:
        match node:
            case SeriesSelector():
                yield from (matcher.label for matcher in node.matchers)
            case LabelList():
                yield from node.labels
            case FunctionCall():
                yield from node.grouping.labels if node.grouping else ()
                for place, argument in enumerate(node.arguments):
                    yield from mentioned(argument)
                    if names_label(node, place):
                        yield render(argument).strip()[1:-1]


def names_label(call: FunctionCall, place: int) -> bool:
    """Return whether an argument of a call is the name of a label, as a string."""
    return (call.name == "label_replace" and place in (1, 3)) or (call.name == "label_join" and place not in (0, 2))
