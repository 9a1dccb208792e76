"""Where DCGM's packages put its Python bindings. Imports nothing else of this package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DCGM_4 = Path("/usr/share/datacenter-gpu-manager-4/bindings/python3")
DCGM_3 = Path("/usr/local/dcgm/bindings/python3")
# The module with every call, by which their directory is recognised.
MODULE = "dcgm_agent"


def has_bindings(folder: Path) -> bool:
    """Whether this directory has the bindings."""
    return (folder / f"{MODULE}.py").is_file()


def installed() -> bool:
    """Whether they are where they are looked for by default: in the packages' places, or on the path."""
    return any(map(has_bindings, (DCGM_4, DCGM_3))) or find_spec(MODULE) is not None
