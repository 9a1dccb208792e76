"""Tests that are tables: thousands of cheap rows take longer to collect as items than to run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

Test = Callable[..., None]


def table_test(arguments: str, table: Iterable[Any], name: Callable[..., object] = repr) -> Callable[[Test], Test]:
    """Run a test for each row of a table, as one item; if it fails, the message names the row.

    `arguments` are names separated by commas, as for `pytest.mark.parametrize`; `name` gets the values of a row.
    """
    names = [each.strip() for each in arguments.split(",")]
    cases = [row if len(names) > 1 else (row,) for row in table]
    assert cases, f"the table of {arguments} is empty"

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            for row in cases:
                try:
                    test(**dict(zip(names, row, strict=True)), **fixtures)
                except AssertionError as error:
                    raise AssertionError(f"{' '.join(str(name(*row)).split())}: {error}") from error

        signature = inspect.signature(test)
        rest = [each for each in signature.parameters.values() if each.name not in names]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate
