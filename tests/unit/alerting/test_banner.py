"""Banners: every rendered text file says which file to edit, and that file exists."""

from __future__ import annotations

import re

from content.artifacts import ARTIFACTS
from gpu_exporter.alerting import banner
from gpu_exporter.catalogue import failure_modes, metrics
from gpu_exporter.catalogue.xids import PACKAGED
from tests import ROOT
from tests.support.table import table_test

# JSON has no comments.
WITH_BANNER = [name for name in ARTIFACTS if not name.endswith(".json")]


def test_a_banner_names_modules_packages_and_data() -> None:
    """Their paths are derived, so that no banner is outdated after a move."""
    assert banner.comment(metrics) == (
        "# Rendered by `make generate`; edit gpu_exporter/catalogue/metrics.py instead.\n"
    )
    assert banner.markdown(metrics, failure_modes, PACKAGED) == (
        "<!-- Rendered by `make generate`; edit gpu_exporter/catalogue/metrics.py, "
        "gpu_exporter/catalogue/failure_modes/ or gpu_exporter/catalogue/xids.csv instead. -->\n"
    )


@table_test("name", WITH_BANNER)
def test_every_rendered_file_begins_with_its_banner(name: str) -> None:
    """The named file exists."""
    first = (ROOT / name).read_text().partition("\n")[0]
    named = re.findall(r"(?:content|gpu_exporter)/[\w/.]+", first)
    assert "Rendered by `make generate`" in first
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
