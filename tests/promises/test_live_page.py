"""The live page: its files, the API that it reads, and the stream, as a browser asks for them."""

from __future__ import annotations

import re
from typing import Any

from tests.conftest import Serve
from tests.e2e.app.test_live import events, gpus, stream
from tests.support.tools import until


def test_the_page_and_all_its_files(serve: Serve) -> None:
    exporter = serve("--source", "simulated", "--gpus", "1")
    status, html = exporter.ask("GET", "/")
    assert status == 200
    files = re.findall(r'(?:src|href)="(/?[\w./-]+\.(?:js|css|svg))"', html)
    assert len(files) > 1
    assert {file: exporter.ask("GET", f"/{file.lstrip('/')}")[0] for file in files} == dict.fromkeys(files, 200)


def test_the_culprit_of_a_slow_job(serve: Serve) -> None:
    """The API names the rank that the others wait for, with its finding; the stream sends the same."""
    exporter = serve("--source", "simulated", "--gpus", "4", "--inject", "GpuStragglerStarved:2")

    def culprit() -> Any:
        found = gpus(exporter)
        slow = {rank["id"] for job in found["jobs"] for rank in job["ranks"] if rank["state"] == "waited_for"}
        return next((each for each in found["gpus"] if each["id"] in slow), None)

    answer = until(culprit, 60, "a rank that others wait for")
    assert answer["index"] == "2"
    assert "GpuStragglerStarved" in [each["name"] for each in answer["findings"]]
    with stream(exporter) as response:
        sent = next(content for kind, content in events(response) if kind == "gpus")
    assert [each["headline"]["severity"] for each in sent["gpus"] if each["index"] == "2"] == ["warning"]
