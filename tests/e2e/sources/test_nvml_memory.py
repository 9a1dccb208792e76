"""What the driver's library leaves of zeros when it starts is not kept where nobody else in the process uses it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Exporter, Serve
from tests.support.fakes.driver import LIBRARY, FakeDriver

MIB = 1 << 20


def resident(exporter: Exporter) -> int:
    """Bytes of the library's variables that take memory: the first mapping of no file behind its own."""
    mappings = re.split(r"^(?=[0-9a-f]+-)", Path(f"/proc/{exporter.process.pid}/smaps").read_text(), flags=re.MULTILINE)
    last = max(number for number, mapping in enumerate(mappings) if LIBRARY.removesuffix("1") in mapping)
    return int(re.findall(r"^Rss: +(\d+) kB", mappings[last + 1], re.MULTILINE)[0]) << 10


@pytest.mark.parametrize(
    ("within", "least", "most"), [(False, 0, 1), (True, 12, 20)], ids=["alone", "DCGM may be in this process"]
)
def test_zeros_are_given_back(
    serve: Serve, driver: FakeDriver, tmp_path: Path, within: bool, least: int, most: int
) -> None:
    """A host engine in this process would call the library at any time."""
    bindings = ("--dcgm-bindings", str(tmp_path)) if within else ()
    exporter = serve(*bindings, env=driver.environment)
    exporter.until(lambda page: page.values("gpu_up") == [1])

    assert least * MIB <= resident(exporter) < most * MIB
