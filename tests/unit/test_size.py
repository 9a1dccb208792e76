"""No file, function or constructor of the package is too large to keep in mind."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests import ROOT

PACKAGE = ROOT / "gpu_exporter"
MOST_LINES_OF_FILE, MOST_LINES_OF_FUNCTION, MOST_PARAMETERS = 350, 50, 8
# Catalogues, whose entries are rows or prose.
CATALOGUES = ("catalogue/metrics.py", "catalogue/failure_modes/")


def too_large(name: str, text: str) -> Iterator[str]:
    """Yield what is too large in a module, with its size."""
    lines = text.count("\n")
    if lines > MOST_LINES_OF_FILE and not name.startswith(CATALOGUES):
        yield f"{name}: {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > MOST_LINES_OF_FUNCTION:
            yield f"{name}: {node.name} has {lines} lines"
        of = node.args
        parameters = len([*of.posonlyargs, *of.args, *of.kwonlyargs]) - 1
        if node.name == "__init__" and parameters > MOST_PARAMETERS:
            yield f"{name}: a constructor has {parameters} parameters"


@pytest.mark.slow
def test_sizes() -> None:
    found = [
        line
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in too_large(path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not found, "fix: split the file or the function; group parameters that belong together in a dataclass"


def test_what_is_too_large_is_found() -> None:
    body = "\n".join(["        pass"] * 50)
    text = f"class Large:\n    def __init__(self, {', '.join('abcdefghi')}):\n{body}\n" + "\n" * 300
    assert list(too_large("large.py", text)) == [
        "large.py: 352 lines",
        "large.py: __init__ has 51 lines",
        "large.py: a constructor has 9 parameters",
    ]
    assert len(list(too_large("catalogue/metrics.py", text))) == 2
