"""A PromQL query as a tree of what rewriting needs: selectors, calls, lists of labels, and text in between.

It also reads what Grafana allows in a query, such as `[$__rate_interval]`. A query that is not PromQL is not an error:
whatever is not understood stays as text.
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
    |(?P<range>\[[^\]]*\])
    |(?P<symbol>\$\{[^}]*\}|\$\w+|=~|!~|[!=<>]=|.)""",
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
_LABEL_LISTS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
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
    """Return a query as a tree. Raises ValueError if parentheses, braces or quotes do not match, or nest too deeply."""
    return _Parser(query).all()


class _Parser:
    def __init__(self, query: str) -> None:
        self._tokens = [(str(found.lastgroup), found[0]) for found in _TOKEN.finditer(query)]
        self._at = self._depth = 0

    def all(self) -> Query:
        nodes = list(self._nodes())
        if self._at < len(self._tokens):
            raise ValueError(f"a {self._text()} without its beginning")
        return nodes

    def _text(self, ahead: int = 0) -> str:
        place = self._at + ahead
        return self._tokens[place][1] if place < len(self._tokens) else ""

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise ValueError("it ends too early")
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
            elif text == "{":
                yield self._selector("")
            elif kind == "name" and text.lower() in _LABEL_LISTS:
                yield self._labels(text)
            elif kind == "name" and text.lower() not in _KEYWORDS:
                yield self._named(text)
            elif text in "\"'`}":
                raise ValueError(f"a {text} without its end or beginning")
            else:
                yield Text(text)

    def _named(self, name: str) -> Node:
        grouping = None
        if name.lower() in AGGREGATORS and self._follows("by", "without"):
            grouping = self._labels(self._next()[1])
        if self._follows("("):
            self._next()
            return FunctionCall(name, grouping, self._arguments())
        if self._follows("{"):
            self._next()
        else:
            return self._modified(SeriesSelector(name))
        return self._selector(name)

    def _arguments(self) -> Sequence[Query]:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ValueError("nested too deeply")
        arguments = [list(self._nodes())]
        while self._next()[1] == ",":
            arguments.append(list(self._nodes()))
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
            _, label = self._next()
            self._spaces()
            if label == ",":
                continue
            _, op = self._next()
            self._spaces()
            kind, value = self._next()
            if op not in ("=", "!=", "=~", "!~") or kind != "string":
                raise ValueError(f"{label} {op} {value} in braces")
            matchers.append(Matcher(label, op, value))
        self._next()
        return self._modified(SeriesSelector(name, matchers))

    def _modified(self, selector: SeriesSelector) -> SeriesSelector:
        if self._tokens[self._at : self._at + 1] and self._tokens[self._at][0] == "range":
            selector = replace(selector, range=self._next()[1])
        tail = ""
        while self._follows("offset", "@"):
            word = self._next()[1]
            self._spaces()
            tail += f" {word} {self._next()[1]}"
            if self._text() == "(":  # start() and end()
                tail += self._next()[1] + self._next()[1]
            elif tail.endswith("-"):
                tail += self._next()[1]
        return replace(selector, tail=tail)


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
