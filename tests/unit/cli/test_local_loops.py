"""Without --url, `diagnose` looks whether training loops send to an exporter of this machine."""

from __future__ import annotations

import pytest

from gpu_exporter.cli.diagnose import LocalLoops
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
        loops = LocalLoops(port)
        loops.join()
        assert loops.jobs() == jobs


def test_no_exporter() -> None:
    with serving({}) as port:
        pass
    loops = LocalLoops(port)
    loops.join()
    assert loops.jobs() == []
