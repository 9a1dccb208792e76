"""`gpu-exporter diagnose --report`: with a recording and with an exporter; the embedded JSON is that of `--json`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Serve, run
from tests.support.html import Document

RECORDING = ("--recording", "h200_x2_ddp", "--phase", "ddp_straggler_slow_gpu")


def embedded(path: Path) -> object:
    """Return the JSON in a report."""
    return json.loads(next(data for kind, data in Document(path.read_text()).raw if kind == "script"))


def test_of_a_recording(tmp_path: Path) -> None:
    """The output on stdout does not change."""
    path = tmp_path / "report.html"
    with_report = run("diagnose", *RECORDING, "--json", "--report", str(path))
    assert with_report.returncode == 1
    assert json.loads(with_report.stdout) == embedded(path)
    assert with_report.stderr == f"report: {path}\n"
    document = Document(path.read_text())
    assert "Replayed from a recording of real GPUs" in document.text
    assert "GpuStragglerSlow" in document.text
    assert "580." in document.text


def test_of_an_exporter_with_masked_names(tmp_path: Path, serve: Serve) -> None:
    exporter = serve("--source", "simulated", "--gpus", "2")
    path = tmp_path / "report.html"
    result = run(
        "diagnose", "--url", f"http://127.0.0.1:{exporter.port}", "--for", "2s", "--report", str(path), "--mask-names"
    )
    assert result.returncode in (0, 1)
    text = path.read_text()
    assert f"127.0.0.1:{exporter.port}" not in text
    assert "train-000" not in text
    assert re.search('"exporter-[0-9a-f]{8}"', text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*RECORDING, "--mask-names"), "give --report FILE.html"),
        ((*RECORDING, "--report", "/nonexistent/report.html"), "/nonexistent/report.html: No such file or directory"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    result = run("diagnose", *arguments)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
