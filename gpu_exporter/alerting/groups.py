"""Groups of rules, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

Rule = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated in sequence, every `interval`; without it, at the evaluation interval of Prometheus.

    `options` are others that only vmalert has.
    """

    name: str
    rules: Sequence[Rule]
    interval: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_recording(self) -> bool:
        """Return whether it records series; otherwise, its rules are alerts."""
        return all("record" in rule for rule in self.rules)

    def content(self) -> Mapping[str, Any]:
        """Return the group as Prometheus reads it."""
        interval = {"interval": self.interval} if self.interval else {}
        rules = [{**rule, "expr": _Text(rule["expr"])} for rule in self.rules]
        return {"name": self.name, **interval, **self.options, "rules": rules}


Groups = Sequence[RuleGroup]


class _Text(str):
    """Text that is dumped as a YAML literal block if it has several lines."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def literal(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Return a text as a block if it has several lines."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(_Text, literal)


def as_text(groups: Iterable[RuleGroup]) -> str:
    """Return groups as a file that Prometheus reads."""
    content = {"groups": [group.content() for group in groups]}
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
