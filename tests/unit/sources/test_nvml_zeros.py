"""What the driver's library clears when it starts is given back, and what it wrote is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes.driver import FakeDriver

pytestmark = pytest.mark.slow

MIB = 1 << 20
OPENED = """
import ctypes
from pathlib import Path
import pynvml
from gpu_exporter.sources.nvml.source import NvmlSource

def resident():
    return sum(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) << 10

pynvml.nvmlInit() if {others} else None
source, before = NvmlSource(alone={alone}), resident()
source.open()
variables = (ctypes.c_char * {size}).in_dll(pynvml.nvmlLib, "cleared")
print(resident() - before, *(at for at, value in enumerate(bytes(variables)) if value), source.count())
"""


@pytest.mark.parametrize(("alone", "others", "mib"), [(True, False, 0), (False, False, 13), (True, True, 0)])
def test_only_pages_of_zeros_are_given_back(tmp_path: Path, alone: bool, others: bool, mib: int) -> None:
    """Not where somebody else has opened it: then it is in use, and has been cleared before."""
    env = {**os.environ, **FakeDriver(tmp_path, 2).environment}
    code = OPENED.format(alone=alone, others=others, size=13 * MIB)
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    grown, *rest = map(int, said.split())

    assert abs(grown - mib * MIB) < 1.5 * MIB
    assert rest == [7 * MIB, 2]
