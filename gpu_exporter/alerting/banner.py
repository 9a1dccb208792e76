"""The first line of every rendered file: that it is rendered, and which file to edit instead."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[2]


def markdown(*sources: ModuleType | Path) -> str:
    """The banner of a Markdown file that is rendered from these modules or data files."""
    return f"<!-- {_text(sources)} -->\n"


def comment(*sources: ModuleType | Path) -> str:
    """The banner of a YAML or CSV file that is rendered from these modules or data files."""
    return f"# {_text(sources)}\n"


def _text(sources: tuple[ModuleType | Path, ...]) -> str:
    *others, last = map(_path, sources)
    before = f"{', '.join(others)} or " if others else ""
    return f"Rendered by `make generate`; edit {before}{last} instead."


def _path(source: ModuleType | Path) -> str:
    """The path below the root of the checkout; a package is its folder."""
    file = source if isinstance(source, Path) else Path(str(source.__file__))
    path = file.relative_to(_ROOT).as_posix()
    return path.removesuffix("__init__.py")
