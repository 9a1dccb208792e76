"""Where DCGM's packages put its Python bindings. Apart from what reads with them, which is not loaded for a look."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

DCGM_4 = Path("/usr/share/datacenter-gpu-manager-4/bindings/python3")
DCGM_3 = Path("/usr/local/dcgm/bindings/python3")
# What tells a directory of them, and is their module with every call.
MODULE = "dcgm_agent"


def found(folder: Path) -> bool:
    """Whether this directory has the bindings."""
    return (folder / f"{MODULE}.py").is_file()


def installed() -> bool:
    """Whether they are where they are looked for without being told: in the packages' places, or on the path."""
    return any(map(found, (DCGM_4, DCGM_3))) or find_spec(MODULE) is not None
