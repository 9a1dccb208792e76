"""`gpu-exporter trace analyze`: output, exit codes and errors."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import run
from tests.support.traces import SyntheticTrace

SLOW_LOADER = ROOT / "tests/data/pytorch_trace_slow_loader.json.gz"


def _analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("trace", "analyze", *map(str, arguments))


def test_json_and_the_gate(tmp_path: Path) -> None:
    ran = _analyze(SLOW_LOADER, "--json")
    content = json.loads(ran.stdout)
    assert content["verdict"]["class"] == "data-loading-bound"
    assert content["straggler"] is None
    (tmp_path / "old.json").write_text(ran.stdout)
    passed = _analyze(SLOW_LOADER, "--fail-on", "busy>99%", "--baseline", tmp_path / "old.json")
    assert (passed.returncode, passed.stderr) == (0, "")
    failed = _analyze(SLOW_LOADER, "--fail-on", "idle>20%", "--json")
    assert failed.returncode == 1
    assert failed.stderr.startswith("gate failed: idle>20%: idle is ")
    assert json.loads(failed.stdout) == content


def test_two_ranks(tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        trace = SyntheticTrace(rank=rank, world_size=2)
        for number in range(4):
            at = 10_000 * number
            trace.step(number, at, 10_000)
            trace.device(at + 20, 3000 + 4000 * rank, launched=at)
            trace.host("cudaStreamSynchronize", at + 20, 9970, "cuda_runtime")
            trace.device(at + 3030 + 4000 * rank, 6000 - 4000 * rank, "ncclDevKernel", launched=at + 5, stream=9)
        files.append(trace.write(tmp_path / f"rank{rank}.json"))
    ran = _analyze(*files)
    assert ran.returncode == 0, ran
    assert ran.stdout.startswith("Verdict: straggler\n")
    assert "Rank 1 makes the others wait 4 ms per step, because its GPU computes longer" in ran.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x00" * 100, "no list of traceEvents"),
        (b'{"traceEvents": []}', "contains no events"),
        (json.dumps(SyntheticTrace().content()).encode(), "contains no events"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}', "no GPU events"),
        (gzip.compress(b"x", mtime=0)[:5], "gzip"),
    ],
    ids=("empty", "zeros", "no events", "only a header", "no GPU", "gzip"),
)
def test_unusable_files_end_with_one_line_and_code_2(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    ran = _analyze(path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"gpu-exporter: {path}: ")
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("/nonexistent.json",),
        ("/dev/zero",),
        (str(ROOT),),
        (SLOW_LOADER, "--fail-on", "idle"),
        (SLOW_LOADER, "--max-regression", "x"),
        (SLOW_LOADER, "--baseline", "/nonexistent.json"),
        (SLOW_LOADER, "--baseline", str(ROOT / "setup.cfg")),
        (SLOW_LOADER, "--folded", "/nonexistent/x"),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(arguments: tuple[object, ...]) -> None:
    ran = _analyze(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("gpu-exporter: ")
    assert ran.stderr.count("\n") == 1


def test_without_numpy() -> None:
    program = "import sys; sys.modules['numpy'] = None; from gpu_exporter.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "trace", "analyze", str(SLOW_LOADER)], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert ran.stderr == ("gpu-exporter: trace needs NumPy, which is not installed: pip install numpy\n")
