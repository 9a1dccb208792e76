"""Scrapes of a recording: read once, one by one, in order of time."""

from __future__ import annotations

import json
import logging
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import BOTTLENECKS
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.cli import diagnose as command
from gpu_exporter.cli.diagnose import Output, print_diagnosis
from gpu_exporter.conditions.evaluate import LOOKBACK_SECONDS
from gpu_exporter.conditions.tree import Over, PeerMedian, PeerShare, terms
from gpu_exporter.config import Config
from gpu_exporter.diagnosis import remote_scrapes
from gpu_exporter.diagnosis.gather import LONGEST_SECONDS, RecordedScrapes, in_order
from gpu_exporter.diagnosis.request import DiagnosisRequest
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.signal_reader import KEPT_SECONDS
from gpu_exporter.diagnosis.window import Scrapes, seen
from gpu_exporter.http.client import Remote
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.snapshot import Snapshot
from gpu_exporter.sources.recording import format as recording_format
from gpu_exporter.sources.recording.format import lines

BUSY = {m.GR_ENGINE_ACTIVE.key: 0.98, m.SM_ACTIVE.key: 0.9, m.TENSOR_ACTIVE.key: 0.8, m.POWER_INSTANT.key: 600.0}


def written(path: Path, ticks: Sequence[tuple[float, int]], phase: str = "") -> Path:
    """Write a recording of two GPUs with ticks at these times."""
    gpus = [{"gpu": index, "UUID": f"GPU-{index}", "modelName": "NVIDIA H200"} for index in range(2)]
    header = {"format": "gpu-exporter-recording", "version": 1, "interval_seconds": 1, "gpus": gpus}
    ticked = [{"t": at, "gpu": gpu, "phase": phase, "samples": {**BUSY, m.ENERGY.key: at * 6e5}} for at, gpu in ticks]
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *ticked)))
    return path


def diagnosed(path: Path) -> int:
    """Run `diagnose --recording`; return its exit code."""
    try:
        with patch.object(command, "stop_event", threading.Event):
            return print_diagnosis(DiagnosisRequest(Config(recording=path)), Output())[0]
    finally:
        logging.disable(logging.NOTSET)


def test_a_recording_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be large, and reading it takes longer than judging it."""
    reads: list[Path] = []

    def counted(path: Path) -> Iterator[tuple[int, bytes]]:
        reads.append(path)
        return lines(path)

    monkeypatch.setattr(recording_format, "lines", counted)
    path = written(tmp_path / "r.jsonl", [(1000.0 + t, 0) for t in range(5)])
    assert diagnosed(path) == 0
    assert reads == [path]


@pytest.mark.slow
def test_memory_does_not_hold_all_samples(tmp_path: Path) -> None:
    """Only the points of signals are kept; samples with their labels would take 40 kB for each tick."""
    ticks = 300
    path = written(tmp_path / "r.jsonl", [(1000.0 + t, gpu) for t in range(ticks) for gpu in range(2)])
    seen(RecordedScrapes(path), {})  # what is made once
    tracemalloc.start()
    seen(RecordedScrapes(path), {})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / ticks < 15_000


def test_scrapes_share_what_does_not_change() -> None:
    """An hour of snapshots of 8 GPUs would otherwise take gigabytes."""
    gpu, scrapes = Gpu(0, "GPU-0"), Scrapes()
    power, limit, ended = Series(m.POWER, gpu), Series(m.POWER_LIMIT, gpu), Series(m.UP, gpu)
    scrapes.take(Snapshot(1.0, "", (Sample(power, 1.0), Sample(limit, 700.0), Sample(ended, 1.0))))
    scrapes.take(Snapshot(2.0, "", (Sample(power, 2.0), Sample(limit, 700.0))))

    before, after = scrapes.taken
    assert [sample.value for sample in after.samples] == [2.0, 700.0]
    assert before.samples[0].value == 1.0
    assert after.samples[0].labels is before.samples[0].labels
    assert after.samples[1] is before.samples[1]


def test_watching_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the flag; a Prometheus may be asked for more."""
    monkeypatch.setattr(remote_scrapes, "is_prometheus", lambda remote: False)
    stop = threading.Event()
    with pytest.raises(GpuExporterError, match="--for is too long; use at most 1h"):
        remote_scrapes.remote_scrapes(Remote("http://127.0.0.1:1"), LONGEST_SECONDS + 1, stop)


@pytest.mark.parametrize("ticks", [[(1001.0, 0), (1003.0, 0), (1002.0, 0)], [(1001.0, 0), (1001.0, 0)]])
def test_time_that_goes_backwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ticks: Sequence[tuple[float, int]]
) -> None:
    """It is refused with the line, as when it is replayed: rates and windows would be wrong."""
    path = written(tmp_path / "r.jsonl", ticks)
    assert diagnosed(path) == 2
    assert capsys.readouterr().err == (
        f"gpu-exporter: recording {path}, line {len(ticks) + 1}: time goes backwards for GPU 0\n"
    )


def test_one_gpu_after_the_other(tmp_path: Path) -> None:
    """Of GPUs whose ticks are not interleaved, the window ends with the last tick of any of them."""
    path = written(tmp_path / "r.jsonl", [(1000.0 + t, 0) for t in range(9)] + [(1000.0 + t, 1) for t in range(5)])
    scrapes = RecordedScrapes(path)
    window = seen(scrapes, {})
    assert (window.now, scrapes.seconds) == (1008.0, 8.0)
    assert [len(window.points(device, s.GR_ACTIVE)) for device in window.devices] == [9, 5]


def test_a_long_recording(tmp_path: Path) -> None:
    """Of each GPU, only what a diagnosis looks back at becomes scrapes; a GPU that was lost early is still listed."""
    times = [(1000.0 + t, gpu) for t in range(0, 20_000, 100) for gpu in (0, 1) if not (gpu and t > 10_000)]
    path = written(tmp_path / "r.jsonl", times)
    scrapes = RecordedScrapes(path)
    assert [scrape.at for scrape in scrapes] == [
        at for at, gpu in times if (11_000.0 if gpu else 20_900.0) - KEPT_SECONDS <= at
    ]
    assert scrapes.seconds == 19_900.0
    assert [device.uuid for device in seen(scrapes, {}).devices] == ["GPU-0", "GPU-1"]


def test_a_clock_that_is_set_back() -> None:
    """Scrapes of times that were watched before are left out."""
    scrapes = [Scrape(at, []) for at in (1.0, 2.0, 0.5, 1.5, 2.0, 3.0)]
    assert [scrape.at for scrape in in_order(scrapes)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("seconds", "number"),
    [(6, 4), (2, 2)],
)
def test_the_ramp_of_a_phase(tmp_path: Path, seconds: int, number: int) -> None:
    """It is left out, unless the phase is nothing but a ramp."""
    path = written(tmp_path / "r.jsonl", [(1000.0 + t, 0) for t in range(seconds)], phase="train")
    scrapes = RecordedScrapes(path, "train")
    assert len(list(scrapes)) == number
    assert list(scrapes.phases) == ["train"]


def test_old_points_are_dropped() -> None:
    """Those that no window of a failure mode reaches. The result of a window is the same."""
    conditions = [bottleneck.condition for bottleneck in BOTTLENECKS]
    conditions += [mode.condition for mode in MODES if mode.condition]
    overs = []
    for term in (term for condition in conditions for term in terms(condition)):
        match term:
            case Over():
                overs.append(term)
            case PeerMedian():
                overs.append(term.of)
                overs += [each for each in terms(term.mark.condition) if isinstance(each, Over)]
            case PeerShare():
                overs += [each for each in terms(term.mark.condition) if isinstance(each, Over)]
    assert max(over.window for over in overs) + 2 * LOOKBACK_SECONDS < KEPT_SECONDS
    labels = {"gpu": "0", "UUID": "GPU-0"}
    scrapes = (
        Scrape(60.0 * minute, [ScrapedSample(m.GR_ENGINE_ACTIVE.name, labels, minute / 3000)])
        for minute in range(1, 3000)
    )
    window = seen(scrapes, {})
    (device,) = window.devices
    points = window.points(device, s.GR_ACTIVE)
    assert KEPT_SECONDS < window.now - points[0][0] <= 2 * KEPT_SECONDS + 60
    assert points[-1] == (window.now, 2999 / 3000)
