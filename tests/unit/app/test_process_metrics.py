"""The metrics of the process are those of prometheus_client, which is not imported for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import PlatformCollector, ProcessCollector

from gpu_exporter.app import process_metrics
from gpu_exporter.app.process_metrics import ProcessMetrics
from gpu_exporter.pipeline.renderer import ProcessMetric

STAT = "7 (a) b) S " + " ".join(str(number) for number in range(1, 50))
LIMITS = "Limit                     Soft Limit           Hard Limit           Units\n"
FILES = "Max open files            {}                 1048576              files\n"


def of_client(proc: Path) -> list[ProcessMetric]:
    """Return what prometheus_client collects."""
    found = [*ProcessCollector(registry=None, proc=str(proc)).collect(), *PlatformCollector(registry=None).collect()]
    return [
        ProcessMetric(sample.name, metric.type, metric.documentation, sample.value, sample.labels)
        for metric in found
        for sample in metric.samples
    ]


def procfs(folder: Path, limit: str) -> Path:
    """Return a folder with the files of a process."""
    (folder / "self/fd").mkdir(parents=True)
    for descriptor in range(3):
        (folder / f"self/fd/{descriptor}").touch()
    (folder / "stat").write_text("cpu 1 2\nbtime 1700000000\n")
    (folder / "self/stat").write_text(STAT)
    (folder / "self/limits").write_text(LIMITS + limit)
    return folder


def collected(proc: Path, monkeypatch: pytest.MonkeyPatch) -> list[ProcessMetric]:
    """Return what is collected of a procfs."""
    monkeypatch.setattr(process_metrics, "PROC", proc)
    return [metric._replace(labels=dict(metric.labels)) for metric in ProcessMetrics(1.0).collect()]


def test_they_are_those_of_prometheus_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = procfs(tmp_path, FILES.format("1024"))
    found = collected(proc, monkeypatch)
    assert found == of_client(proc)
    assert len(found) == 7


def test_what_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [metric.name for metric in collected(tmp_path, monkeypatch)] == ["python_info"]
    proc = procfs(tmp_path, FILES.format("unlimited"))
    assert len(collected(proc, monkeypatch)) == 6
    (proc / "self/limits").unlink()
    assert len(collected(proc, monkeypatch)) == 5
