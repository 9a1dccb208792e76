"""docs/architecture.md says of packages and imports what the contract and the code say."""

from __future__ import annotations

import ast
import configparser
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

FIX = "fix: correct docs/architecture.md or the contract in setup.cfg"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the title of the first column and the rows of each table of the page."""
    for found in re.finditer(r"^\| (.+?) \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        yield found[1], [re.split(r"\s*\|\s*", row.strip("| ")) for row in found[2].splitlines()]


TABLES = dict(tables())


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def libraries_of(path: Path) -> frozenset[str]:
    """Return the top-level packages that a module imports, wherever in its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        found |= {each.name for each in node.names} if isinstance(node, ast.Import) else set()
        found |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    return frozenset(name.partition(".")[0] for name in found)


@pytest.mark.drift
def test_packages_are_those_of_the_contract() -> None:
    """In the same order, and each folder of the package is one."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    contract = [
        sorted(layer.split(" | ")) for layer in config["importlinter:contract:one-way"]["layers"].strip().splitlines()
    ]
    assert [sorted(in_code(packages)) for packages, _ in TABLES["packages"]] == contract, FIX
    modules = (path for path in (ROOT / "gpu_exporter").glob("*") if (path / "__init__.py").exists())
    assert {path.name for path in modules} <= {package for layer in contract for package in layer}, FIX


@pytest.mark.drift
def test_libraries_are_imported_where_the_page_says() -> None:
    """Nowhere else, and in each of these places."""
    packages = [ROOT / "gpu_exporter", ROOT / "content"]
    used = {path: libraries_of(path) for package in packages for path in package.rglob("*.py")}
    for libraries, places in TABLES["library"]:
        named = {ROOT / place for place in in_code(places)}
        users = [path for path, imported in used.items() if imported & set(in_code(libraries))]
        found = {next((place for place in named if path.is_relative_to(place)), path) for path in users}
        assert found == named, f"{libraries}: {FIX}"


@pytest.mark.drift
def test_a_link_to_a_file_is_named_after_it() -> None:
    """The text of a link is the end of the path to which it leads."""
    links = re.findall(r"\[([\w/]+(?:\.py|/))\]\(([^)#]+)\)", PAGE)
    assert links, FIX
    assert [f"[{text}]({target})" for text, target in links if not target.endswith(text)] == [], FIX


@pytest.mark.drift
def test_a_class_name_exists_once() -> None:
    """A reader who finds a public class by its name finds the right one; each framework has its own callback."""
    defined = Counter(
        node.name
        for package in ("gpu_exporter", "content")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    several = [name for name, count in defined.items() if count > 1]
    assert several == ["StepTimerCallback"], "fix: put the noun of the package before one of them in gpu_exporter/"
