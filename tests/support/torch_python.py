"""A Python interpreter that has PyTorch: this one, or the system's, for which `make tools` installs Debian's package.

PyPI's PyTorch has gigabytes of CUDA. The training loop's side of the exporter needs nothing but the standard library,
so it runs in any interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec

from tests import ROOT

SYSTEM = "/usr/bin/python3"


@cache
def interpreter() -> str:
    """Return the path of the interpreter."""
    if find_spec("torch"):
        return sys.executable
    done = subprocess.run([SYSTEM, "-c", "import torch"], capture_output=True, text=True)
    assert done.returncode == 0, f"{SYSTEM} has no PyTorch: {done.stderr[-300:]}: fix: run `make tools`"
    return SYSTEM


def has(module: str) -> bool:
    """Return whether the interpreter with PyTorch has a module, too."""
    return subprocess.run([interpreter(), "-c", f"import {module}"], capture_output=True).returncode == 0


def run(*arguments: str, **environment: str) -> str:
    """Run a program with PyTorch and this package; return its output."""
    done = subprocess.run(
        [interpreter(), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
