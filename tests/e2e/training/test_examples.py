"""The examples run unmodified, and a receiver on the exporter's socket gets what they measure.

Hugging Face and Lightning run with the real libraries where these are installed beside PyTorch, else with stand-ins,
which have their events in the same order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpu_exporter.model.job_message import SOCKET_VARIABLE
from tests import ROOT
from tests.support import torch_python
from tests.support.job_socket import JobSocket
from tests.support.tools import free_port

STAND_INS = ROOT / "tests" / "support" / "stand_ins"


def run(tmp_path: Path, *arguments: str, library: str = "") -> dict[int, dict[str, Any]]:
    """Run an example; return the last message of each rank."""
    stand_in = library and not torch_python.has(library)
    path = {"PYTHONPATH": f"{STAND_INS}:{ROOT}"} if stand_in else {}
    with JobSocket(tmp_path / "jobs.sock") as receiver:
        torch_python.run(*arguments, **{SOCKET_VARIABLE: str(receiver.path), **path})
        return receiver.last_by_rank()


def test_plain(tmp_path: Path) -> None:
    message = run(tmp_path, "examples/plain.py")[0]
    assert (message["job_id"], message["steps"], message["samples"]) == ("plain-example", 50, 3200)
    assert message["flops"] > 0
    assert message["self"] == message["step"]  # a single rank waits for none
    assert set(message["phase_seconds"]) == {"forward", "backward", "optimizer"}
    assert message["activity_seconds"]["evaluation"] > 0


def test_ddp(tmp_path: Path) -> None:
    """With the environment of torchrun, whose version in Debian 12 does not run in Python 3.11."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with JobSocket(tmp_path / "jobs.sock") as receiver, ThreadPoolExecutor() as pool:
        for rank in ("0", "1"):
            environment = {**job, SOCKET_VARIABLE: str(receiver.path), "RANK": rank, "LOCAL_RANK": rank}
            pool.submit(torch_python.run, "examples/ddp.py", **environment)
        pool.shutdown()
        messages = receiver.last_by_rank()
    assert set(messages) == {0, 1}
    for message in messages.values():
        assert (message["world_size"], message["steps"]) == (2, 50)
        assert 0 < message["self"]["sum"] < message["step"]["sum"]
        assert message["phase_seconds"]["waiting"] > 0


def test_ddp_alone(tmp_path: Path) -> None:
    message = run(tmp_path, "examples/ddp.py")[0]
    assert (message["world_size"], message["steps"]) == (1, 50)


def test_huggingface(tmp_path: Path) -> None:
    message = run(tmp_path, "examples/huggingface_trainer.py", library="transformers")[0]
    assert (message["steps"], message["samples"], message["tokens"]) == (20, 80, 80 * 64)
    assert message["flops"] > 0
    assert {"forward", "backward", "optimizer"} <= message["phase_seconds"].keys()
    assert message["activity_seconds"]["evaluation"] > 0
    assert message["activity_seconds"]["checkpoint"] > 0 or not torch_python.has("transformers")
    assert message["data_seconds"] > 0
    assert message["activity"] == "training"


def test_lightning(tmp_path: Path) -> None:
    message = run(tmp_path, "examples/lightning_trainer.py", library="lightning")[0]
    assert (message["steps"], message["samples"]) == (40, 40 * 64)
    assert {"forward", "backward", "optimizer"} <= message["phase_seconds"].keys()
    assert message["activity_seconds"]["evaluation"] > 0
    assert message["activity_seconds"]["checkpoint"] > 0
    assert message["data_seconds"] > 0
    assert message["activity"] == "training"
