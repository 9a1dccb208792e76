"""Drift tests name the fix in each assertion, and the files and commands in a fix exist."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpu_exporter.cli.commands import SUMMARIES

ROOT = Path(__file__).parent
while not (ROOT / "Makefile").is_file():  # wherever this file is moved to
    ROOT = ROOT.parent
FILES = sorted((ROOT / "tests").rglob("*.py"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SUFFIXES = (".py", ".md", ".csv", ".yaml", ".json", ".cfg", ".toml", ".sh", ".c")


@cache
def trees() -> Mapping[Path, ast.Module]:
    """Return the parsed files of tests that name a fix, or should."""
    texts = ((path, path.read_text()) for path in FILES)
    return {path.relative_to(ROOT): ast.parse(text) for path, text in texts if "fix: " in text or "mark.drift" in text}


def constants(tree: ast.Module) -> Mapping[str, str]:
    """Return the texts of a module's constants."""
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def text_of(node: ast.expr | None, names: Mapping[str, str]) -> str:
    """Return the text of an assertion's message, with `*` for parts that are known only when it fails."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return names.get(name, "*")
        case ast.FormattedValue(value=value):
            return text_of(value, names)
        case ast.JoinedStr(values=values):
            return "".join(text_of(value, names) for value in values)
    return "" if node is None else "*"


def messages(tree: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield line and message of each assertion, also without a message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, text_of(node.msg, names)


def missing(fix: str) -> list[str]:
    """Return the files and commands of a fix that do not exist."""
    commanded = re.findall(r"`([^`]+)`", fix)
    words = [word.strip(",;:.()") for word in re.sub(r"`[^`]+`", "", fix).split()]
    paths = [word for word in words if "/" in word or word.endswith(SUFFIXES)]
    paths += [word for command in commanded for word in command.split() if "/" in word]
    return [
        *(path for path in paths if not any(ROOT.glob(path))),
        *(f"`{command}`" for command in commanded if not runs(command)),
    ]


def runs(command: str) -> bool:
    """Return whether a command exists; a text that is no command passes."""
    match command.split():
        case ["make", target, *_]:
            return target in TARGETS
        case ["gpu-exporter", name, *_]:
            return name in SUMMARIES
        case ["python", "-m", module, *_]:
            return find_spec(module) is not None
        case ["pytest", option]:
            return f'"{option}"' in (ROOT / "tests/conftest.py").read_text()
    return True


@cache
def fixes() -> Mapping[str, str]:
    """Return the fix in each assertion that has one, by its place."""
    return {
        f"{path}:{line}": message.partition("fix: ")[2]
        for path, tree in trees().items()
        for line, message in messages(tree, constants(tree))
        if "fix: " in message
    }


@pytest.mark.slow
def test_each_assertion_of_a_drift_test_ends_with_the_fix() -> None:
    """So that contributors can repair what a test marked `drift` finds."""
    without, marked = [], 0
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "pytest.mark.drift" in map(ast.unparse, node.decorator_list):
                marked += 1
                found = messages(node, constants(tree))
                without += [f"{path}:{line}" for line, message in found if "fix: " not in message]

    assert marked > 30
    assert without == [], 'end the message of the assertion with "fix: " and what to do'


def test_files_and_commands_of_fixes_exist() -> None:
    """Files of the repository, targets of make, subcommands, modules, options of pytest."""
    wrong = {place: gone for place, fix in fixes().items() if (gone := missing(fix))}

    assert wrong == {}, "name what exists"


def test_missing_files_and_commands_are_found() -> None:
    """A file that has moved, a target and a subcommand that were removed."""
    assert missing("edit gpu_exporter/gone.py, run `make gone`, `gpu-exporter gone` and `python -m tests.gone`") == [
        "gpu_exporter/gone.py",
        "`make gone`",
        "`gpu-exporter gone`",
        "`python -m tests.gone`",
    ]
    assert missing("edit setup.cfg and docs/*.md, set `dcgm_scale`, then run `make test`") == []


def test_targets_and_extras_that_texts_name_exist() -> None:
    """`make …` and `.[…]` in documentation, messages and comments."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    folders = ("gpu_exporter", "tests", "benchmarks", "docs", "helm", "deploy")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    wrong = []
    for path in {*paths, *ROOT.glob("*.md")} - {Path(__file__)}:
        text = path.read_text()
        wrong += [(path.name, f"make {name}") for name in set(re.findall(r"`make ([a-z-]+)", text)) - TARGETS]
        wrong += [(path.name, name) for name in set(re.findall(r"'\.\[([a-z]+)\]'", text)) - extras]

    assert wrong == [], "name a target of Makefile and an extra of setup.cfg"
