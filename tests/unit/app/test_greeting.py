"""The log names URLs that work."""

from __future__ import annotations

import pytest

from gpu_exporter.app.greeting import greeting

URL = "http://localhost:9400"


@pytest.mark.parametrize(
    ("nodes", "scraped", "diagnosed"),
    [([], f"scrape {URL}/metrics", URL), (["n-0", "n-1"], f"discover the nodes at {URL}/sd", f"{URL}/nodes/n-0")],
)
def test_the_urls(nodes: list[str], scraped: str, diagnosed: str) -> None:
    """With several nodes, each has its page, and there is none for all."""
    where, then = greeting(URL, nodes)

    assert where == f"listening: open {URL}/ in a browser, or have Prometheus {scraped}"
    assert then == f"next: run `gpu-exporter diagnose --url {diagnosed}` to see what limits the GPUs"
