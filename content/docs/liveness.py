"""Which PromQL expressions can have a result if some series do not exist. Pure.

An expression needs all series that it reads, but only one side of an `or`, and only the left side of an `unless`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from gpu_exporter.alerting.groups import Groups

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|`[^`]*`')
_SELECTED = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|\boffset\s+[\w.]+")
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_TOKEN = re.compile(r"[A-Za-z_:][\w:]*|[(),]")
_WORDS = frozenset({"bool", "group_left", "group_right", "inf", "nan", "Inf", "NaN"})
# A function that has a result because a series does not exist.
_ABSENT = frozenset({"absent", "absent_over_time"})


def can_have_result(expression: str, dead: Callable[[str], bool]) -> bool:
    """Return whether an expression can have a result without the series whose names are `dead`."""
    text = _LABELS.sub(" ", _SELECTED.sub(" ", _TEXT.sub(" ", expression)))
    return _Parser([*_TOKEN.findall(text), ""], dead).alternatives()


class _Parser:
    """Reads tokens, of which the last is empty, from left to right."""

    def __init__(self, tokens: list[str], dead: Callable[[str], bool]) -> None:
        self._tokens, self._place, self._dead = tokens, 0, dead

    @property
    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self) -> str:
        self._place += 1
        return self._tokens[self._place - 1]

    def alternatives(self) -> bool:
        """Read expressions joined by `or`: one is enough."""
        found = [self._joined()]
        while self._next == "or":
            self._take()
            found.append(self._joined())
        return any(found)

    def _joined(self) -> bool:
        """Read expressions joined by `and`, of which all are needed, and `unless`, of which the first is."""
        found = self._operands()
        while self._next in ("and", "unless"):
            is_needed = self._take() == "and"
            other = self._operands()
            found = found and (other or not is_needed)
        return found

    def _operands(self) -> bool:
        """Read the operands of arithmetic and comparisons, all of which are needed."""
        found = True
        while self._next not in ("or", "and", "unless", ")", ",", ""):
            token = self._take()
            if token == "(":
                found &= self._arguments()
            elif self._next == "(" and ":" not in token:
                self._take()
                found &= self._arguments() or token in _ABSENT
            elif token not in _WORDS:
                found &= not self._dead(token)
        return found

    def _arguments(self) -> bool:
        """Read what is between parentheses, all of which is needed."""
        found = self.alternatives()
        while self._take() == ",":
            found &= self.alternatives()
        return found


def dead_records(groups: Groups, missing: Collection[str]) -> Iterator[str]:
    """Yield the recorded series that cannot exist without the series `missing`, which have no other source."""
    found: dict[str, bool] = {}
    for group in groups:
        for rule in group.rules:
            if "record" in rule:
                alive = can_have_result(rule["expr"], lambda name: name in missing or found.get(name, False))
                found[rule["record"]] = found.get(rule["record"], True) and not alive
    yield from (record for record, is_dead in found.items() if is_dead)


def queries(board: Mapping[str, object]) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the queries of each panel of a dashboard that has any."""
    for panel in _panels(board):
        targets = panel.get("targets")
        found = [str(each["expr"]) for each in targets if each.get("expr")] if isinstance(targets, list) else []
        if found:
            yield str(panel.get("title", "")), found


def _panels(of: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    inner = of.get("panels")
    for panel in inner if isinstance(inner, list) else ():
        yield panel
        yield from _panels(panel)
