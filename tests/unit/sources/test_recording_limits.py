"""Untrusted recordings: decompression bombs and files that are not regular are refused at once with one line."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue.metrics import selected
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.sources.recording import format, writer
from gpu_exporter.sources.recording.format import MOST_GPUS, MOST_NAMES, load, ticks
from gpu_exporter.sources.recording.replay import ReplaySource
from gpu_exporter.sources.recording.writer import RecordingWriter

HEADER: dict[str, Any] = {
    "format": "gpu-exporter-recording",
    "version": 1,
    "interval_seconds": 1,
    "gpus": [{"gpu": 0, "UUID": "GPU-0"}],
}
TICK: dict[str, Any] = {"t": 1, "gpu": 0, "samples": {"DCGM_FI_DEV_GPU_TEMP": 40}}


def content(*of: object, **header: object) -> bytes:
    """Return a recording of these lines."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in ({**HEADER, **header}, *of))


def bomb(begin: bytes, repeated: bytes, mebibytes: int) -> bytes:
    """Return gzip of a beginning and of many MiB of the same bytes, made without having them in memory."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    piece = repeated * ((1 << 20) // len(repeated))
    return packer.compress(begin) + b"".join(packer.compress(piece) for _ in range(mebibytes)) + packer.flush()


def peak_growth(act: Callable[[], object]) -> int:
    """Return by how many bytes the memory of this process grows at most."""

    def field(name: str) -> int:
        (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
        return int(line.split()[1]) << 10

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    begin = field("VmRSS")
    act()
    return field("VmHWM") - begin


def refused(path: Path) -> str:
    """Return the line with which both readers refuse a recording."""
    messages = []
    for read in (load, lambda path: list(ticks(path))):
        with pytest.raises(GpuExporterError) as raised:
            read(path)
        messages.append(str(raised.value))
    assert len(messages[0]) < 500
    assert messages[0].isprintable()
    return messages[0]


# --- size --------------------------------------------------------------------------------------------------------


def test_a_gzip_bomb_without_lines(tmp_path: Path) -> None:
    """An endless line is refused after 1 MiB, whatever its whole size."""
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(bomb(content(TICK), b"\0" * 64, 300))
    begin = time.process_time()
    assert peak_growth(lambda: refused(path)) < 20 << 20
    assert time.process_time() - begin < 1
    assert refused(path).endswith("bomb.jsonl.gz, line 3: longer than 1 MiB; this is not a line of a recording")


@pytest.mark.slow
def test_a_gzip_bomb_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is an endless file of valid or empty lines."""
    path = tmp_path / "bomb.jsonl.gz"
    monkeypatch.setattr(format, "MOST_BYTES", 4 << 20)
    for line in (b" " * 999 + b"\n", b"\n"):
        path.write_bytes(bomb(content(TICK), line, 8))
        assert "the recording has more than 4 MiB unpacked or 1000000 lines; record for a shorter time" in refused(path)
        assert peak_growth(lambda: refused(path)) < 20 << 20


@pytest.mark.parametrize(
    ("recording", "what"),
    [
        (content({**TICK, "x": "y" * (1 << 20)}), "line 2: longer than 1 MiB"),
        (content({**TICK, "samples": {f"m{n}": 1 for n in range(MOST_NAMES + 1)}}), "more than 2000 names"),
        (content(*({**TICK, "t": n, "phase": f"p{n}"} for n in range(MOST_NAMES + 1))), "more than 2000 names"),
        (content({**TICK, "phase": "a\x1b[2Jb"}), "line 2: a name (a�[2Jb) has control characters"),
        (content({**TICK, "samples": {"x" * 201: 1}}), "has control characters or more than 200 characters"),
        (content(TICK, gpus=[{"gpu": 0, "UUID": "x" * 201}]), "line 1: a text of GPU 0 (xxx"),
        (content(TICK, driver="5\n80"), "line 1: driver (5 80) has control characters"),
        (
            content(TICK, gpus=[{"gpu": n} for n in range(MOST_GPUS + 1)]),
            "line 1: the header lists more than 1024 gpus",
        ),
        (content(TICK, gpus=[{"gpu": -1}]), "line 1: the header has a GPU whose index is not from 0 to 65535"),
        (content(TICK, gpus=[{"gpu": 0, "UUID": 7}]), "line 1: the header lists no gpus that can be read"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_sizes_and_texts(tmp_path: Path, recording: bytes, what: str) -> None:
    """The error names the line and the limit that would fill memory, series or a terminal."""
    (tmp_path / "r").write_bytes(recording)
    assert what in refused(tmp_path / "r")


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recording", "what"),
    [
        (content(TICK, interval_seconds=1e-9), "line 1: interval_seconds must be from 0.001 to 86400"),
        (content(TICK, interval_seconds=1e300), "line 1: interval_seconds must be from 0.001 to 86400"),
        (content(TICK, interval_seconds=10**400), "line 1: "),
        (content({**TICK, "t": 1e200}), "line 2: t is 1e+200, which is no unix time"),
        (content({**TICK, "samples": {"x": -1e299}}), "line 2: a value is beyond ±1e+30"),
        (content({**TICK, "samples": {"x": 10**4000}}), "line 2: "),
        (content({**TICK, "gpu": 10**400}), "line 2: GPU 1000000000000000000… is not in the header"),
        (content(TICK, version=10**4000), "line 1: format version 1000000000000000000…; this"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_huge_numbers(tmp_path: Path, recording: bytes, what: str) -> None:
    """Refused, because sums of them would not be finite, and times would not differ."""
    (tmp_path / "r").write_bytes(recording)
    assert what in refused(tmp_path / "r")


def test_the_largest_numbers_can_be_replayed(tmp_path: Path) -> None:
    """Every mean of the largest accepted values is finite, with the longest interval, too."""
    for interval in (0.001, 1.0, 86400.0):
        gpu = {"DCGM_FI_PROF_SM_ACTIVE": 9e29, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": -9e29}
        some = [{"t": 9.9e10 + n * interval * 9, "gpu": 0, "samples": gpu} for n in range(4)]
        (tmp_path / "r").write_bytes(content(*some, interval_seconds=interval))
        recording, now = load(tmp_path / "r"), [0.0]
        source = ReplaySource(recording, clock=lambda now=now: now[0])  # type: ignore[misc]
        device = source.attach(0, selected(MetricSet.FULL))
        for step in range(9):
            now[0] = step * recording.duration / 3.7
            values = device.read(frozenset(Pace)).values.values()
            assert all(abs(value) <= 1e30 for value in values)


# --- files that are no files -------------------------------------------------------------------------------------


@pytest.fixture(params=["fifo", "directory", "/dev/zero"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make a path that is not a regular file."""
    if request.param == "fifo":
        os.mkfifo(tmp_path / "r")
    elif request.param == "directory":
        (tmp_path / "r").mkdir()
    else:
        (tmp_path / "r").symlink_to(request.param)
    return tmp_path / "r"


def test_it_has_to_be_a_regular_file(special: Path) -> None:
    """Anything else is an error at once; no reader waits for it."""
    message = refused(special)
    assert message.startswith(f"recording {special}: ")
    assert message.endswith("not a regular file")


def test_a_fifo_is_not_written(tmp_path: Path) -> None:
    """A FIFO without a reader would block the recorder for ever."""
    os.mkfifo(tmp_path / "r")
    with pytest.raises(GpuExporterError, match="r: not a regular file"):
        RecordingWriter(tmp_path / "r", [Gpu(0)], 1.0)


# --- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz"])
def test_a_recording_that_becomes_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It ends with an error, and can be read up to there."""
    monkeypatch.setattr(writer, "MOST_LINES", 10)
    recorder = RecordingWriter(tmp_path / name, [Gpu(0)], 1.0)
    for t in range(9):
        recorder.tick(float(t), 0, {"DCGM_FI_DEV_GPU_TEMP": 40})
    with pytest.raises(GpuExporterError, match="it is complete up to here, because the recording has more than"):
        recorder.tick(9.0, 0, {"DCGM_FI_DEV_GPU_TEMP": 40})
    recorder.close()
    assert [tick.at for tick in ticks(tmp_path / name)] == list(range(9))
