"""The five lines of the README, with GPUs that no process can use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpu_exporter.model.job_message import SOCKET_VARIABLE
from tests import ROOT
from tests.conftest import Serve, run
from tests.support import torch_python

DEFINED = """
import torch

class Batch(list):
    numel = list.__len__

loader, train, model = [Batch("tokens")] * 5, len, torch.nn.Linear(1, 1)
"""
SOURCES: Mapping[str, tuple[str, ...]] = {
    "simulated": ("--gpus", "2"),
    "replay": ("--recording", "h200_x2_ddp"),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_the_five_lines_of_the_readme(serve: Serve, source: str) -> None:
    """They are received as they are, and `doctor` has nothing to object to them."""
    (lines,) = re.findall(
        r"```python\n(from gpu_exporter.training .*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        socket = Path(folder) / "jobs.sock"
        exporter = serve("--source", source, *SOURCES[source], "--job-socket", str(socket))
        torch_python.run("-c", DEFINED + lines, **{SOCKET_VARIABLE: str(socket), "RANK": "1", "WORLD_SIZE": "2"})
        page = exporter.until(lambda page: bool(page.values("gpu_job_steps_total")))
        assert page.value("gpu_job_steps_total", job_id="llm-7b", rank="1", gpu="1") == 5
        assert page.value("gpu_job_tokens_total", job_id="llm-7b") == 30
        address = f"127.0.0.1:{exporter.port}"
        said = run("doctor", "--source", source, *SOURCES[source], "--job-socket", str(socket), "--address", address)
        of_job = run("doctor", "--job", "llm-7b", "--job-socket", str(socket), "--address", address)
        of_other = run("doctor", "--job", "other", "--job-socket", str(socket), "--address", address)
    assert f"the exporter listens on {socket}" in said.stdout
    assert (of_job.returncode, of_other.returncode) == (0, 1)
    assert "job llm-7b: rank 1 of 2 sending for" in of_job.stdout
    assert "no rank of job other sends; jobs that do: llm-7b" in of_other.stdout
    assert re.search(r"ok +messages of training loops accepted: \d+; sending now: ranks 1, jobs 1", said.stdout)
    assert "unverified" not in said.stdout
