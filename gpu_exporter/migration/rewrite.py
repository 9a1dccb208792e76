"""Queries for another exporter -> queries with the same values and units for gpu-exporter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from gpu_exporter.catalogue.metrics import INFO
from gpu_exporter.catalogue.peer_series import PEERS, WITHOUT, PeerExporter, PeerSeries
from gpu_exporter.io.decoding import printable
from gpu_exporter.migration.promql import (
    AGGREGATORS,
    FunctionCall,
    LabelList,
    Matcher,
    Node,
    Query,
    SeriesSelector,
    Text,
    label_lists,
    mentioned,
    names_label,
    parse,
    render,
    selectors,
)

# Functions of samples over a time: those whose result has the unit of the samples, and those whose result has none.
_LINEAR = frozenset(
    (
        *("rate", "irate", "increase", "delta", "idelta", "deriv", "predict_linear", "stddev_over_time"),
        *("avg_over_time", "min_over_time", "max_over_time", "sum_over_time", "quantile_over_time", "mad_over_time"),
        *("first_over_time", "last_over_time"),
    )
)
_WITHOUT_UNIT = frozenset(("changes", "resets", "count_over_time", "present_over_time", "absent_over_time"))
# Functions of a series whose result does not depend on its value.
_OF_SERIES = frozenset(("timestamp", "absent"))
# The beginning of a regular expression, up to what is not literal.
_LITERAL = re.compile(r"\w*")
# Labels that Prometheus gives every series.
_TARGET = ("instance", "job")


class CannotRewriteError(ValueError):
    """Nothing of gpu-exporter has the value that a query asks for."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query for gpu-exporter, with a comment on what has no counterpart.

    Unless it is `done`, the query is the old one. `problems`: what has no counterpart, and why.
    """

    text: str
    done: bool
    problems: tuple[str, ...] = ()


def rewrite(
    query: str,
    series: Mapping[str, PeerSeries],
    recorded: Mapping[str, PeerExporter] = MappingProxyType({}),
    *,
    records: bool = False,
) -> Rewritten | None:
    """Return what replaces a query, or None if it reads nothing of another exporter.

    `recorded` has the series that rules record from those of another exporter: only their labels get other names. With
    `records`, the query is of such a rule: its result keeps the labels that it had.

    An alternative of `or` without a counterpart is left out, as if its series had no samples.
    """
    try:
        nodes = parse(query)
    except ValueError as error:
        reads = any(name in query for name in series)
        return _refused(query, _not_promql(error)) if reads else None
    if not any(
        _peers(selector, series) or selector.name in recorded or _unlisted(selector, series)
        for selector in selectors(nodes)
    ):
        return None
    left_out: list[str] = []
    try:
        kept = _without_unknown(nodes, series, left_out)
        text = _Writer(kept, series, recorded, records=records).text
    except CannotRewriteError as error:
        return _refused(query, str(error))
    reasons = tuple(dict.fromkeys(left_out))
    return Rewritten("".join(f"# left out: {reason}\n" for reason in reasons) + text, True, reasons)


def rewrite_selector(query: str, series: Mapping[str, PeerSeries]) -> str | None:
    """Return a selector of whose samples only the labels matter, or None if it selects nothing of another exporter.

    Any series of a GPU without a counterpart is replaced by `gpu_info`, which every GPU has.

    Raises CannotRewriteError if it reads another exporter and is not PromQL, or names a label without a counterpart.
    """
    try:
        nodes = parse(query)
    except ValueError as error:
        if any(name in query for name in series):
            raise CannotRewriteError(_not_promql(error)) from None
        return None
    if len(nodes) != 1 or not isinstance(nodes[0], SeriesSelector) or nodes[0].name not in series:
        return None
    found = series[nodes[0].name]
    if found.metric is None and found.of_gpu:
        series = {**series, found.name: replace(found, metric=INFO)}
    return None if series[found.name].metric is None else _Writer(nodes, series).selector(nodes[0])


def _not_promql(error: ValueError) -> str:
    return f"not PromQL: {printable(str(error), 100)}"


def _refused(query: str, reason: str) -> Rewritten:
    return Rewritten(f"# not rewritten: {reason}\n{query}", False, (reason,))


def _peers(selector: SeriesSelector, series: Mapping[str, PeerSeries]) -> Sequence[PeerSeries]:
    """Return the series of other exporters that a selector selects, also by a regular expression."""
    if selector.name:
        return [series[selector.name]] if selector.name in series else []
    names = (each.value[1:-1] for each in selector.matchers if each.label == "__name__" and each.op in ("=", "=~"))
    literal = next((_LITERAL.match(name) for name in names), None)
    return [each for name, each in series.items() if literal and literal[0] and name.startswith(literal[0])]


def _unlisted(selector: SeriesSelector, series: Mapping[str, PeerSeries]) -> str:
    """Return by its name whose series a selector selects, if the table of all series lacks it; else nothing."""
    name = selector.name or ""
    return "" if name in series else next((peer.name for peer in PEERS if peer.has(name)), "")


def _without_unknown(nodes: Query, series: Mapping[str, PeerSeries], left_out: list[str]) -> Query:
    """Return a query without the alternatives that have no counterpart, and without repeated ones.

    Raises CannotRewriteError if none of the alternatives has a counterpart.
    """
    kept: dict[str, Query] = {}
    refused: list[str] = []
    for operator, operand in _alternatives(nodes):
        inner: list[str] = []
        try:
            checked = _checked(operand, series, inner)
        except CannotRewriteError as error:
            refused.append(str(error))
            continue
        left_out += inner
        # By its selectors: an older and a newer name of the same value have the same counterpart.
        kept.setdefault(render(_named(checked, series)).strip(), (*(operator if kept else ()), *checked))
    if not kept:
        raise CannotRewriteError(refused[0])
    left_out += refused
    joined = [node for operand in kept.values() for node in operand]
    while refused and isinstance(joined[-1], Text) and joined[-1].is_space:
        joined.pop()
    return joined


def _alternatives(nodes: Query) -> Iterator[tuple[Query, Query]]:
    """Yield the operands of `or`, which binds weakest, each with the operator in front of it."""
    operator: list[Node] = []
    operand: list[Node] = []
    for node in nodes:
        if isinstance(node, Text) and node.text.lower() == "or":
            yield operator, operand
            operator, operand = [node], []
        elif operator and not operand and (isinstance(node, LabelList) or (isinstance(node, Text) and node.is_space)):
            operator.append(node)
        else:
            operand.append(node)
    yield operator, operand


def _checked(nodes: Query, series: Mapping[str, PeerSeries], left_out: list[str]) -> Query:
    """Return an operand with checked selectors and arguments."""
    checked: list[Node] = []
    for node in nodes:
        if isinstance(node, SeriesSelector):
            _check(node, series)
        elif isinstance(node, FunctionCall):
            node = replace(node, arguments=[_without_unknown(each, series, left_out) for each in node.arguments])
        checked.append(node)
    return checked


def _check(selector: SeriesSelector, series: Mapping[str, PeerSeries]) -> None:
    found = _peers(selector, series)
    if unlisted := _unlisted(selector, series):
        raise CannotRewriteError(f"{selector.name} is not a known series of {unlisted}")
    if found and not selector.name:
        raise CannotRewriteError("selects series by a regular expression of their names")
    for each in found:
        if each.metric is None:
            reason = f": {each.reason}" if each.reason else ""
            raise CannotRewriteError(f"{each.name} has no counterpart{reason.replace('`', '')}")


def _named(nodes: Query, series: Mapping[str, PeerSeries]) -> Query:
    """Return a query with the names of the counterparts, to compare it."""

    def renamed(node: Node) -> Node:
        match node:
            case SeriesSelector(name=name) if name in series and (metric := series[name].metric):
                return replace(node, name=metric.key)
            case FunctionCall(arguments=arguments):
                return replace(node, arguments=[_named(each, series) for each in arguments])
        return node

    return [renamed(node) for node in nodes]


class _Writer:
    """Writes one query. All of its selectors have counterparts.

    The series of gpu-exporter have more labels than those of other exporters. So in a query that matches several
    selectors, each is reduced to the labels that the other exporter has: then operators match what they matched before.
    So it is in one with `without`, which keeps all labels but those that it names.
    """

    def __init__(
        self,
        nodes: Query,
        series: Mapping[str, PeerSeries],
        recorded: Mapping[str, PeerExporter] = MappingProxyType({}),
        *,
        records: bool = False,
    ) -> None:
        self._nodes, self._series, self._recorded, self._records = nodes, series, recorded, records
        read = [series[each.name] for each in selectors(nodes) if each.name in series]
        peers = {each.peer.name: each.peer for each in read}
        peers |= {recorded[each.name].name: recorded[each.name] for each in selectors(nodes) if each.name in recorded}
        if len(peers) > 1:
            raise CannotRewriteError("reads series of two exporters")
        (self._peer,) = peers.values()
        self._labels = list(dict.fromkeys(mentioned(nodes)))
        for label in sorted(self._labels, key=lambda label: label not in WITHOUT):
            for each in read:
                if each.lacks(label):
                    raise CannotRewriteError(f"{each.metric} has no label for {label}")
        self._keeps_labels = any(each.keyword.lower() == "without" for each in label_lists(nodes))
        self._joins = records or self._keeps_labels or len(list(selectors(nodes))) > 1

    @property
    def text(self) -> str:
        """The query."""
        written = self._write(self._nodes).strip()
        alone = [node for node in self._nodes if not (isinstance(node, Text) and node.is_space)]
        bare = len(alone) == 1 and (isinstance(alone[0], SeriesSelector) or _over_time(alone[0]) is not None)
        return written[1:-1] if bare and written.startswith("(") and written.endswith(")") else written

    def _write(self, nodes: Query) -> str:
        return "".join(self._node(node) for node in nodes)

    def _node(self, node: Node) -> str:
        match node:
            case SeriesSelector(range=time, tail=tail) if time and not node.is_range:  # a subquery
                inner = self._node(replace(node, range="", tail=""))
                return f"{inner if inner.startswith('(') else f'({inner})'}{time}{tail}"
            case SeriesSelector():
                return self._value(self.selector(node), node)
            case LabelList(keyword, labels):
                return render([LabelList(keyword, [self._label(label) for label in labels])])
            case FunctionCall():
                return self._call(node)
        return render([node])

    def _label(self, label: str) -> str:
        return self._peer.labels.get(label, label)

    def _call(self, call: FunctionCall) -> str:
        selector = _over_time(call)
        grouping = replace(call.grouping, labels=[*map(self._label, call.grouping.labels)]) if call.grouping else None
        arguments = [self._argument(call, place, argument) for place, argument in enumerate(call.arguments)]
        text = render([FunctionCall(call.name, grouping, [[Text(each)] for each in arguments])])
        return text if selector is None else self._value(text, selector, call.name)

    def _argument(self, call: FunctionCall, place: int, argument: Query) -> str:
        written = render(argument)
        if names_label(call, place):
            quote = written.strip()[0]
            return written.replace(written.strip(), f"{quote}{self._label(written.strip()[1:-1])}{quote}")
        only = [node for node in argument if not (isinstance(node, Text) and node.is_space)]
        if len(only) == 1 and isinstance(only[0], SeriesSelector):
            selector = only[0]
            if selector.is_range or call.name in _OF_SERIES:
                return self._padded(written, self.selector(selector))
            if call.name in AGGREGATORS and not self._keeps_labels:
                inside = self._scaled(self.selector(selector), selector)
                return self._padded(written, inside[1:-1] if inside.startswith("(") else inside)
        return self._write(argument)

    @staticmethod
    def _padded(written: str, text: str) -> str:
        return f"{' ' * (written != written.lstrip())}{text}"

    def _value(self, text: str, selector: SeriesSelector, function: str = "") -> str:
        """Return an expression with the labels and the unit of the other exporter."""
        if self._joins and selector.name in self._series:
            text = f"max by ({', '.join(self._kept(self._series[selector.name]))}) ({text})"
        return self._scaled(text, selector, function)

    def _scaled(self, text: str, selector: SeriesSelector, function: str = "") -> str:
        series = self._series.get(selector.name)
        if series is None or function in _WITHOUT_UNIT or series.factor == 1:
            return text
        if function and function not in _LINEAR:
            raise CannotRewriteError(f"{function} of {series.name}, whose unit differs")
        factor = series.factor
        return f"({text} * {factor:.0f})" if factor > 1 else f"({text} / {1 / factor:.0f})"

    def _kept(self, series: PeerSeries) -> Sequence[str]:
        """Return the labels that tell the samples of a series apart, in the other exporter, by their names here."""
        own = [each for each in series.labels if each not in WITHOUT]
        if series.metric is INFO and not self._records:
            own = [each for each in own if each in self._labels]
        identity = self._peer.identity if series.of_gpu else ()
        return list(dict.fromkeys((*map(self._label, (*identity, *own)), *_TARGET, *self._foreign)))

    @cached_property
    def _foreign(self) -> Sequence[str]:
        """The labels of the query that neither the other exporter nor the query itself makes, such as `cluster`."""
        known = {*self._peer.identity, *self._peer.labels, *_made(self._nodes)}
        known.update(label for each in self._series.values() for label in each.labels)
        return [label for label in self._labels if label not in known and label not in ("*", "__name__")]

    def selector(self, selector: SeriesSelector) -> str:
        """Return the selector of the counterpart, without its unit."""
        series = self._series.get(selector.name)
        matchers = [self._matcher(each) for each in selector.matchers]
        if selector.name in self._recorded:
            return render([replace(selector, matchers=matchers)])
        if series is None or series.metric is None:
            return render([selector])
        matchers += [Matcher(label, "=", f'"{value}"') for label, value in series.metric.labels]
        if series.of_instance:
            matchers.append(Matcher("GPU_I_ID", "!=", '""'))
        elif series.metric.per_instance and self._joins:
            matchers.append(Matcher("GPU_I_ID", "=", '""'))
        return render([replace(selector, name=series.metric.name, matchers=matchers)])

    def _matcher(self, matcher: Matcher) -> Matcher:
        prefix = self._peer.prefixes.get(matcher.label, "")
        value = _with_prefix(matcher.value, prefix, regex="~" in matcher.op)
        return Matcher(self._label(matcher.label), matcher.op, value)


def _with_prefix(value: str, prefix: str, *, regex: bool) -> str:
    """Return a quoted value with its prefix; a variable of Grafana has it already."""
    quote, text = value[0], value[1:-1]
    if not prefix or not text or "$" in text or "[[" in text or text in (".*", ".+"):
        return value
    return f"{quote}{prefix}(?:{text}){quote}" if regex else f"{quote}{prefix}{text}{quote}"


def _over_time(node: Node) -> SeriesSelector | None:
    """Return the range selector that is an argument of a call."""
    arguments = node.arguments if isinstance(node, FunctionCall) else ()
    ranges = (each for argument in arguments for each in argument if isinstance(each, SeriesSelector) and each.is_range)
    return next(ranges, None)


def _made(nodes: Query) -> Iterator[str]:
    """Yield the labels that label_replace and label_join make."""
    for node in nodes:
        if isinstance(node, FunctionCall):
            if names_label(node, 1) and len(node.arguments) > 1:
                yield render(node.arguments[1]).strip()[1:-1]
            for argument in node.arguments:
                yield from _made(argument)
