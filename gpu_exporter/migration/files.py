"""Dashboards and files of rules for another exporter -> the same for gpu-exporter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpu_exporter.catalogue.peer_series import PEERS, WITHOUT, PeerExporter, PeerSeries, load
from gpu_exporter.io.decoding import json_as
from gpu_exporter.io.yaml_decoding import yaml_root
from gpu_exporter.migration.promql import parse, selectors
from gpu_exporter.migration.rewrite import CannotRewriteError, Rewritten, rewrite, rewrite_selector

_LABEL_VALUES = re.compile(r"\s*label_values\(\s*(?:(?P<query>.+?)\s*,\s*)?(?P<label>\w+)\s*\)\s*", re.DOTALL)
_QUERY_RESULT = re.compile(r"\s*query_result\((?P<query>.+)\)\s*", re.DOTALL)
# A line of a file of rules or of a dashboard.
_QUERY = re.compile(r"^[ \t-]*\"?expr\"?[ \t]*:", re.MULTILINE)
# How a dashboard names a label outside its queries: in legends, links and templates of alerts.
_REFERENCE = re.compile(
    r"(?P<before>\{\{\s*(?:\$labels\.)?|\$labels\.|__(?:data\.fields|field\.labels)\.)(?P<label>\w+)\b"
)


@dataclass
class Migration:
    """Rewrites files, and counts the queries. `problems`: those that have a comment now, each with its reasons."""

    series: Mapping[str, PeerSeries] = field(default_factory=load)
    rewritten: int = 0
    refused: int = 0
    problems: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def query(
        self, query: str, recorded: Mapping[str, PeerExporter] = MappingProxyType({}), *, records: bool = False
    ) -> Rewritten | None:
        """Return what replaces a query, or None if it reads nothing of another exporter."""
        result = rewrite(query, self.series, recorded, records=records)
        if result is None:
            return None
        if result.problems:
            self.problems.append((query, result.problems))
        self.rewritten += result.done
        self.refused += not result.done
        return result

    def refuse(self, query: str, reason: str) -> None:
        """Count a query that stays as it is."""
        self.problems.append((query, (reason,)))
        self.refused += 1

    def migrate(self, content: str) -> str:
        """Return a dashboard of Grafana in JSON, or a file of rules in YAML, with rewritten queries.

        Raises ValueError if it is neither.
        """
        if not content.lstrip().startswith("{"):
            return self._rules(content)
        document = json_as(dict[str, Any], content)
        try:
            if labels := self._labels(document):
                document = _Dashboard(self, labels).migrated(document)
            return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def _labels(self, document: Any) -> Mapping[str, str]:
        """Return the new names of the labels of all exporters that a dashboard reads."""
        text = json.dumps(document)
        peers = dict.fromkeys(self.series[name].peer.name for name in self.series if name in text)
        return {old: new for peer in PEERS if peer.name in peers for old, new in peer.labels.items()}

    def _rules(self, content: str) -> str:
        """Replace queries in place, so that comments and the order of everything else stay."""
        edits: list[tuple[int, int, str]] = []
        root = yaml_root(content)
        if not isinstance(root, MappingNode):
            raise ValueError("neither a dashboard in JSON nor a file of rules in YAML")
        recorded = self._recorded(root)
        for values in map(_scalars, _mappings(root)):
            for key, value in values.items():
                if isinstance(value, ScalarNode) and self._contains_queries(value.value):
                    self.refuse(key, "a file inside of a file: save it as one of its own and rewrite that")
            expr = values.get("expr")
            if not isinstance(expr, ScalarNode):
                continue
            if (new := self.query(expr.value, recorded, records="record" in values)) is None:
                continue
            edits.append(_edit(content, expr, new.text))
            if not new.done:  # its texts name the labels that it has
                continue
            labels = self._peer(expr.value, recorded).labels
            for texts in (values.get("annotations"), values.get("labels")):
                for _, value in texts.value if isinstance(texts, MappingNode) else ():
                    if isinstance(value, ScalarNode) and (text := _referenced(value.value, labels)) != value.value:
                        edits.append(_edit(content, value, text))
        for begin, end, text in sorted(edits, reverse=True):
            content = content[:begin] + text + content[end:]
        return content

    def _contains_queries(self, text: str) -> bool:
        """Whether a text is a dashboard or a file of rules for another exporter, as in a ConfigMap."""
        return _QUERY.search(text) is not None and any(name in text for name in self.series)

    def _peer(self, query: str, recorded: Mapping[str, PeerExporter]) -> PeerExporter:
        """Return the exporter that a rewritten query reads."""
        peers = {name: self.series[name].peer for name in self.series} | dict(recorded)
        return next(peers[each.name] for each in selectors(parse(query)) if each.name in peers)

    def _recorded(self, root: Node) -> Mapping[str, PeerExporter]:
        """Return the series that the rules record from those of other exporters, also by way of other rules."""
        pairs = ((values.get("record"), values.get("expr")) for values in map(_scalars, _mappings(root)))
        rules = [
            (record.value, expr.value)
            for record, expr in pairs
            if isinstance(record, ScalarNode) and isinstance(expr, ScalarNode)
        ]
        found: dict[str, PeerExporter] = {}
        before = -1
        while before < len(found):
            before = len(found)
            for name, query in rules:
                new = None if name in found else rewrite(query, self.series, found)
                if new is not None and new.done:
                    found[name] = self._peer(query, found)
        return found


def _scalars(rule: MappingNode) -> Mapping[str, Node]:
    """Return the values of a mapping by its keys that are text."""
    return {key.value: value for key, value in rule.value if isinstance(key, ScalarNode)}


def _mappings(node: Node) -> Iterator[MappingNode]:
    """Yield every mapping of a YAML document, the outer ones first."""
    if isinstance(node, MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value)
    elif isinstance(node, SequenceNode):
        for value in node.value:
            yield from _mappings(value)


def _edit(content: str, node: ScalarNode, text: str) -> tuple[int, int, str]:
    """Return where a scalar stands, and the YAML that replaces it: a block if it has several lines."""
    begin, end = node.start_mark.index, node.end_mark.index
    ending = content[begin:end][len(content[begin:end].rstrip()) :]
    line = content[content.rfind("\n", 0, begin) + 1 : begin]
    lines = text.split("\n")
    if not all(map(str.isprintable, lines)) or ("{" in line and len(lines) > 1):
        written = json.dumps(text, ensure_ascii=False)
    elif len(lines) == 1:
        written = "'" + text.replace("'", "''") + "'" if '"' in text else f'"{text}"'.replace("\\", "\\\\")
    else:
        indent = " " * (len(line) - len(line.lstrip(" -")) + 2)
        written = "|-\n" + "\n".join(indent + each for each in lines)
    return begin, end, written + ending


def _referenced(text: str, labels: Mapping[str, str]) -> str:
    """Return a text with the new names of the labels that it refers to."""
    return _REFERENCE.sub(lambda found: found["before"] + labels.get(found["label"], found["label"]), text)


class _Dashboard:
    """Rewrites one dashboard: its queries, and the labels that legends, tables, links and variables name."""

    def __init__(self, migration: Migration, labels: Mapping[str, str]) -> None:
        self._migration, self._names = migration, labels
        self._words = re.compile(rf"(?<![\w$])(?:{'|'.join(labels)})(?!\w)")

    def migrated(self, value: Any, key: str = "") -> Any:
        """Return a part of the document; `key` is where it stands."""
        match value:
            case {"type": "query", "query": query}:
                return self._variable(value, query)
            case {"expr": str(query)}:
                new = self._migration.query(query)
                if new is None or not new.done:  # its legend names the labels that it has
                    return {**value, "expr": query if new is None else new.text}
                return {name: new.text if name == "expr" else self.migrated(each, name) for name, each in value.items()}
            case dict() if key == "matcher":
                return {**value, "options": self._labels(value.get("options"))}
            case dict():
                return {name: self.migrated(each, name) for name, each in value.items()}
            case list() if key == "transformations":
                return self._labels(value)
            case list():
                return [self.migrated(each) for each in value]
            case str() if key in ("legendFormat", "url"):
                return _referenced(value, self._names)
        return value

    def _labels(self, value: Any) -> Any:
        """Return options with the new names of labels: as keys, as values, and as words of a pattern."""
        match value:
            case dict():
                return {
                    self._renamed(key): self._in_words(each) if key == "pattern" else self._labels(each)
                    for key, each in value.items()
                }
            case list():
                return [self._labels(each) for each in value]
            case str():
                return self._renamed(value)
        return value

    def _renamed(self, label: str) -> str:
        return self._names.get(label, label)

    def _in_words(self, text: str) -> str:
        return self._words.sub(lambda found: self._renamed(found[0]), text)

    def _variable(self, variable: Mapping[str, Any], query: Any) -> dict[str, Any]:
        """Return a variable: its query, and the regular expression that reads labels from the result."""
        text = query.get("query") if isinstance(query, dict) else query
        new = self._variable_query(text) if isinstance(text, str) else None
        if new is None:
            return dict(variable)
        regex = re.sub(r"\w+(?==)", lambda found: self._renamed(found[0]), str(variable.get("regex", "")))
        changed = {
            "query": {**query, "query": new} if isinstance(query, dict) else new,
            "definition": new,
            "regex": regex,
        }
        return {**variable, **{key: value for key, value in changed.items() if key in variable}}

    def _variable_query(self, text: str) -> str | None:
        """Return the query of a variable, in Grafana's functions; None if it reads nothing of the other exporter."""
        if found := _QUERY_RESULT.fullmatch(text):
            inner = self._migration.query(found["query"])
            return f"query_result({inner.text})" if inner and inner.done else None
        if not (found := _LABEL_VALUES.fullmatch(text)):
            return None
        label = found["label"]
        if label in WITHOUT:
            self._migration.refuse(text, f"no series of gpu-exporter has the label {label}")
            return None
        if not found["query"]:
            return f"label_values({self._renamed(label)})"
        try:
            selector = rewrite_selector(found["query"], self._migration.series)
        except CannotRewriteError as error:
            self._migration.refuse(text, str(error))
            return None
        return None if selector is None else f"label_values({selector}, {self._renamed(label)})"
