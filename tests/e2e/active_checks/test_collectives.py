"""`check --collectives` between real ranks of PyTorch, on CPUs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpu_exporter.active_checks.collectives import network_rate
from gpu_exporter.host.fabric.reader import FabricReader
from gpu_exporter.host.files import HostFiles
from tests import ROOT
from tests.conftest import run
from tests.support.tools import free_port
from tests.support.torch_python import interpreter

RANK = """
import json
from gpu_exporter.active_checks.collectives import measure
measured, number = measure(120.0, (1 << 16,))
print(json.dumps([number, len(measured.ranks), [each.name for each in measured.collectives],
                  sorted(measured.pairs), min(measured.pairs.values()) > 0]))
"""
ALONE = """
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.active_checks.collectives import measure
try:
    measure(1.0)
except GpuExporterError as error:
    print(error)
"""


def test_ranks_measure_each_other() -> None:
    """All ranks get the same result, with all pairs."""
    common = {
        **os.environ,
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    started = []
    for rank in ("0", "1", "2"):
        own = {**common, "RANK": rank, "LOCAL_RANK": rank}
        started.append(subprocess.Popen([interpreter(), "-c", RANK], env=own, stdout=subprocess.PIPE))
    answers = [json.loads(rank.communicate(timeout=240)[0]) for rank in started]
    same = [3, ["all_reduce", "all_to_all"], [[0, 1], [0, 2], [1, 2]], True]
    assert sorted(answers) == [[number, *same] for number in range(3)]


def test_without_pytorch() -> None:
    """The error says where to run it."""
    ended = run("check", "--collectives")
    assert ended.returncode == 1
    assert ended.stderr.startswith("gpu-exporter: --collectives ")
    assert "torchrun" in ended.stderr


def test_the_rate_of_network_adapters(tmp_path: Path) -> None:
    """Only active ports count, and unreadable ones do not."""
    for name, state, rate in (("mlx5_0", "4: ACTIVE", "400 Gb/sec (4X NDR)"), ("mlx5_1", "1: DOWN", "400 Gb/sec")):
        port = tmp_path / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "rate").write_text(f"{rate}\n")
    (tmp_path / "class" / "infiniband" / "mlx5_2" / "ports" / "1").mkdir(parents=True)
    assert network_rate(FabricReader(HostFiles(tmp_path, tmp_path))) == 50e9
    assert network_rate(FabricReader(HostFiles(tmp_path, tmp_path / "absent"))) == 0


@pytest.mark.parametrize(("rank", "said"), [("0", ""), ("one", "invalid literal")])
def test_a_rank_that_is_alone(rank: str, said: str) -> None:
    """A rank without the others fails in one line, as one does whose number PyTorch cannot read."""
    alone = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": rank}
    ended = subprocess.run(
        [interpreter(), "-c", ALONE],
        env={**os.environ, **alone, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=True,
    )
    assert ended.stdout.startswith(f"--collectives failed on rank {rank}: ")
    assert said in ended.stdout
    assert ended.stdout.count("\n") == 1
