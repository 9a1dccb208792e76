"""What a training loop says about its data loader is a finding of its GPU, also without Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conftest import Serve
from tests.support.loop_jobs import LoopJob, sending, uuids
from tests.support.tools import until

NAME = "GpuJobDataBound"


def test_the_api_names_a_slow_loader(serve: Serve, tmp_path: Path) -> None:
    """With the share of time that the loop says; the other GPU has no such finding."""
    socket = tmp_path / "jobs.sock"
    exporter = serve("--source", "simulated", "--gpus", "2", "--interval", "500ms", "--job-socket", str(socket))
    first, second = uuids(exporter.get()[1].decode())

    def findings() -> Mapping[str, Sequence[str]]:
        gpus = json.loads(exporter.get("/api/v1/gpus")[1])["gpus"]
        found = {
            gpu["UUID"]: [text for each in gpu["findings"] if each["name"] == NAME for text in each["evidence"]]
            for gpu in gpus
        }
        return found if found[first] else {}

    with sending(socket, [LoopJob("slow", [first], data=0.4), LoopJob("fast", [second], data=0.01)]):
        found = until(findings, 30, "the finding")
    assert found[second] == []
    assert re.fullmatch(r"training loop in its data loader \d+ % of the time", found[first][0])
