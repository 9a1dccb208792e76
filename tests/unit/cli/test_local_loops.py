"""Without --url, `diagnose` asks the exporter of this machine for jobs: where `serve` listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.cli.diagnose import LocalLoops
from gpu_exporter.io.user_text import Address
from tests.conftest import run
from tests.support.fakes.dcgm_exporter import serving

RANKS = """gpu_job_rank_info{job_id="b",rank="0"} 1
gpu_job_rank_info{job_id="a",rank="0"} 1
gpu_job_rank_info{job_id="a",rank="1"} 1
gpu_job_steps_total{job_id="c",rank="1"} 1
"""


@pytest.mark.parametrize(
    ("page", "jobs"), [(RANKS, ["a", "b"]), ("gpu_up 1\n", []), ("<html>", []), ('gpu_job_rank_info{x="1"', [])]
)
def test_jobs_of_the_exporter_of_this_machine(page: str, jobs: list[str]) -> None:
    with serving({"metrics": page}) as port:
        loops = LocalLoops(Address("", port), None)
        loops.join()
        assert loops.jobs() == jobs


def test_no_exporter() -> None:
    with serving({}) as port:
        pass
    loops = LocalLoops(Address("", port), None)
    loops.join()
    assert loops.jobs() == []


@pytest.mark.parametrize("name", ["GPU_EXPORTER_ADDRESS", "DCGM_EXPORTER_LISTEN", "GPU_EXPORTER_CONFIG"])
def test_where_the_exporter_of_this_machine_listens(tmp_path: Path, name: str) -> None:
    """As `serve` reads it: from the environment, also from dcgm-exporter's variable, or from the file of settings."""
    file = tmp_path / "config.yaml"
    with serving({}) as port:
        file.write_text(f"address: :{port}")
        value = str(file) if name == "GPU_EXPORTER_CONFIG" else f":{port}"
        done = run("diagnose", "--job", "train", env={name: value})
    assert done.returncode == 2
    assert f"http://127.0.0.1:{port}" in done.stderr
