"""`gpu-exporter diagnose --url` of exporters that it does not know."""

from __future__ import annotations

import pytest

from tests import ROOT
from tests.conftest import run
from tests.support.answering import answering


@pytest.mark.parametrize("page", ["nvidia_gpu_exporter.prom", "nvitop_exporter.prom", None])
def test_an_exporter_whose_metrics_have_other_names(page: str | None) -> None:
    """It says which exporters may be asked, instead of sending people to a command that needs another node."""
    body = (ROOT / "tests" / "data" / page).read_bytes() if page else b"node_load1 0.5\n"
    with answering(lambda path: (200, body) if path == "/metrics" else (404, b"")) as url:
        result = run("diagnose", "--url", url, "--for", "1s")
    assert result.returncode == 2
    advice = "give the URL of gpu-exporter, dcgm-exporter, or a Prometheus that scrapes one of them"
    assert result.stderr.strip() == f"gpu-exporter: {url}: no GPU found; {advice}"
