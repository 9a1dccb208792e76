"""A signal uses the first of its definitions that has samples: the order of PromQL is that of the definitions."""

from __future__ import annotations

import pytest

from gpu_exporter.conditions.signal import Derived, Read, Signal

OTHER = Signal("other", "ratio", "", (Read("others"),))
READ, LAST, DERIVED = Read("first"), Read("last"), Derived(OTHER, "*", 2.0)


@pytest.mark.parametrize(
    "definitions",
    [(READ, LAST), (READ, DERIVED), (DERIVED, READ), (READ, DERIVED, LAST), (DERIVED, DERIVED), (DERIVED, READ, LAST)],
)
def test_order(definitions: tuple[Read | Derived, ...]) -> None:
    text = Signal("signal", "ratio", "", definitions).promql()
    names = [OTHER.record if isinstance(each, Derived) else each.name for each in definitions]

    position = -1
    for name in names:
        position = text.index(name, position + 1)
    assert sum(text.count(name) for name in set(names)) == len(names)
