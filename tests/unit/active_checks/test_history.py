"""The history of active checks, and what the exporter publishes of it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_exporter.active_checks import history
from gpu_exporter.active_checks.history import FILE, ActiveChecks, ActiveCheckWatch, CheckHistory, FoundHistory, Run
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.snapshot import GpuSamples
from gpu_exporter.model.verdict import Action, Health

SLOW = FoundHistory("slow_bf16", Health.DEGRADED, Action.DRAIN, "tensor cores: slow")
RUN = Run(100.0, 1, Health.DEGRADED, "H100", "580", "boot", 4.2, {"bf16": 5e14, "memory_copy": 3e12}, [SLOW])


def test_it_keeps_the_latest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each GPU, and of the GPUs that were checked last."""
    monkeypatch.setattr(history, "MOST_RUNS", 2)
    monkeypatch.setattr(history, "MOST_GPUS", 2)
    checks = ActiveChecks(tmp_path / "new")
    assert checks.read().last("A") is None
    for at in (1.0, 2.0, 3.0):
        checks.append({"A": Run(at, 1, Health.HEALTHY)})
    checks.append({"B": RUN})
    checks.append({"C": RUN, "A": Run(4.0, 1, Health.HEALTHY)})
    kept = checks.read()
    assert [run.at for run in kept.gpus["A"]] == [3.0, 4.0]
    assert kept.gpus.keys() == {"A", "C"}
    assert kept.last("C") == RUN


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not JSON.*; remove it"), ('{"gpus": [1]}', "remove it"), ('{"version": 2, "gpus": [1]}', "upgrade")],
)
def test_an_unusable_file(tmp_path: Path, content: str, said: str) -> None:
    """It is named, with the fix, and never overwritten."""
    (tmp_path / FILE).write_text(content)
    checks = ActiveChecks(tmp_path)
    with pytest.raises(ValueError, match=f"{FILE}: .*{said}"):
        checks.read()
    with pytest.raises(ValueError, match=said):
        checks.append({"A": RUN})
    assert (tmp_path / FILE).read_text() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):  # noqa: PT011 - ELOOP has no class of its own
        ActiveChecks(tmp_path).read()


def test_published_samples(tmp_path: Path) -> None:
    """Rates of known quantities, the verdict and the time; the series are the same objects each time."""
    ActiveChecks(tmp_path).append({"GPU-0": RUN})
    document = json.loads((tmp_path / FILE).read_text())
    document["gpus"]["GPU-0"][0]["values"]["of a newer version"] = 1.0
    (tmp_path / FILE).write_text(json.dumps(document))
    watch, gpus = (
        ActiveCheckWatch(tmp_path),
        [GpuSamples(Gpu(0, "GPU-0"), None, (), {}), GpuSamples(Gpu(1), None, (), {})],
    )
    assert watch.samples(gpus, ()) == ()
    watch.poll()
    samples = watch.samples(gpus, ())
    assert {(series.metric, series.labels): value for series, value in samples} == {
        (m.CHECK_RATE, (("quantity", "bf16"),)): 5e14,
        (m.CHECK_BANDWIDTH, (("quantity", "memory_copy"),)): 3e12,
        (m.CHECK_PASSED, ()): 0.0,
        (m.CHECK_AT, ()): 100.0,
    }
    assert [series for series, _ in watch.samples(gpus, ())] == [series for series, _ in samples]


def test_a_file_that_becomes_unusable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last result stays, and the reason is logged once."""
    ActiveChecks(tmp_path).append({"GPU-0": RUN})
    watch = ActiveCheckWatch(tmp_path)
    watch.poll()
    (tmp_path / FILE).write_text("{")
    with caplog.at_level(logging.WARNING):
        watch.poll()
        watch.poll()
    assert watch.last("GPU-0") == RUN
    assert len(caplog.records) == 1


def test_the_file_is_read_only_after_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has up to 4 MiB, and is looked at every few seconds."""
    reads = list[int]()
    read = ActiveChecks.read

    def counted(checks: ActiveChecks) -> CheckHistory:
        reads.append(1)
        return read(checks)

    monkeypatch.setattr(ActiveChecks, "read", counted)
    watch, checks = ActiveCheckWatch(tmp_path), ActiveChecks(tmp_path)
    for _ in range(3):
        watch.poll()
    assert reads == []
    for count in (1, 2):
        checks.append({"GPU-0": replace(RUN, at=float(count))})
        for _ in range(3):
            watch.poll()
        assert len(reads) == count
        assert watch.last("GPU-0") == replace(RUN, at=float(count))
    (tmp_path / FILE).unlink()
    watch.poll()
    assert watch.last("GPU-0") is None
