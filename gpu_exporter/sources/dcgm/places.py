"""Where DCGM's packages install its Python bindings. Imports no other part of this subpackage."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DCGM_4 = Path("/usr/share/datacenter-gpu-manager-4/bindings/python3")
DCGM_3 = Path("/usr/local/dcgm/bindings/python3")
# The module with every call, by which their directory is recognised.
MODULE = "dcgm_agent"


def has_bindings(folder: Path) -> bool:
    """Return whether this directory has the bindings."""
    return (folder / f"{MODULE}.py").is_file()


def installed() -> bool:
    """Return whether the bindings are where they are searched by default: in the packages' places, or on the path."""
    return any(map(has_bindings, (DCGM_4, DCGM_3))) or find_spec(MODULE) is not None
