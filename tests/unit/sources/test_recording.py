"""Recordings: computations on columns, and the values of a replay over time."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.metrics import BY_KEY, METRICS, selected
from gpu_exporter.model.errors import GpuLost
from gpu_exporter.model.gpu import Gpu, Reading
from gpu_exporter.model.metric import Kind, Metric, MetricSet, Pace
from gpu_exporter.pipeline.accumulator import Accumulator
from gpu_exporter.sources.recording.columns import HOLE_INTERVALS, Column, Recording, mean
from gpu_exporter.sources.recording.format import load
from gpu_exporter.sources.recording.replay import OTHER_ENTITIES, ReplayDevice, ReplaySource
from gpu_exporter.sources.recording.writer import RecordingWriter
from tests import ROOT
from tests.conftest import RECORDINGS

ALL = frozenset(Pace)
ENERGY, ACTIVE, TEMP = m.ENERGY.key, m.SM_ACTIVE.key, m.GPU_TEMP.key
PACKAGED = sorted(RECORDINGS.glob("*.jsonl.gz"))
# GPUs at full load for minutes.
FULL_LOAD = ROOT / "tests" / "recordings" / "h200_more_workloads.jsonl.gz"


class Clock:
    """Replaces time.monotonic; the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Player:
    """A recording that is played by a clock of the test."""

    def __init__(self, recording: Recording, *, speed: float = 1.0, loop: bool = True) -> None:
        self.clock = Clock()
        self.source = ReplaySource(recording, speed=speed, loop=loop, clock=self.clock)
        metrics = selected(MetricSet.FULL)
        self.gpus: list[ReplayDevice] = [self.source.attach(index, metrics) for index in range(self.source.count())]

    def at(self, seconds: float, gpu: int = 0) -> Reading:
        """Read a GPU this long after the start."""
        self.clock.now = 1000.0 + seconds
        return self.gpus[gpu].read(ALL)


def value(reading: Reading, metric: Metric) -> float:
    """Return the only value of a metric."""
    (found,) = (value for series, value in reading.values.items() if series.metric is metric)
    return found


def write(path: Path, ticks: Sequence[tuple[float, int, Mapping[str, float]]], interval: float = 1.0) -> Recording:
    """Write a recording of these ticks by hand, and load it."""
    gpus = [{"gpu": gpu, "UUID": f"GPU-{gpu}"} for gpu in sorted({gpu for _, gpu, _ in ticks})]
    header = {"format": "gpu-exporter-recording", "version": 1, "interval_seconds": interval, "gpus": gpus}
    lines = [header, *({"t": t, "gpu": gpu, "samples": samples} for t, gpu, samples in ticks)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load(path)


# --- columns -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("points", "t", "at", "until"),
    [
        ([(1, 2), (2, 4)], 0, 2, (0, 0)),
        ([(1, 2), (2, 4)], 0.5, 2, (1, 0.5)),
        ([(1, 2), (2, 4)], 1, 2, (2, 1)),
        ([(1, 2), (2, 4)], 1.25, 4, (3, 1.25)),
        ([(1, 2), (2, 4)], 2, 4, (6, 2)),
        ([(1, 2), (2, 4)], 99, 4, (6, 2)),
        ([(1, 2), (2, 4)], -5, 2, (0, 0)),
        # a value covers the time since the previous one, if that is not too long
        ([(1, 2), (6, 4)], 3, 4, (10, 3)),
        ([(1, 2), (1 + HOLE_INTERVALS, 4)], 1 + HOLE_INTERVALS, 4, (2 + 4 * HOLE_INTERVALS, 1 + HOLE_INTERVALS)),
        # after a gap it covers one interval, and the time before is unknown
        ([(1, 2), (20, 4)], 1, 2, (2, 1)),
        ([(1, 2), (20, 4)], 10, 4, (2, 1)),
        ([(1, 2), (20, 4)], 19, 4, (2, 1)),
        ([(1, 2), (20, 4)], 19.5, 4, (4, 1.5)),
        ([(1, 2), (20, 4)], 20, 4, (6, 2)),
    ],
)
def test_column(points: list[tuple[float, float]], t: float, at: float, until: tuple[float, float]) -> None:
    """Value, integral and known time at any time, with ticks at an interval of 1 s."""
    column = Column()
    for when, what in points:
        column.append(when, what, 1.0)
    assert column.value_at(t) == at
    held = list(column.held_values(-math.inf, t))
    assert (sum(part.area for part in held), sum(part.seconds for part in held)) == pytest.approx(until)


@pytest.mark.parametrize(
    ("values", "after", "until", "expected"),
    [
        ([100.0] * 40, 10.1, 11.3, 100.0),
        ([100.0] * 40, 0.7, 39.3, 100.0),
        ([0.1] * 40, 3.3, 4.1, 0.1),
        ([1e15] * 20 + [0.0] * 20, 25.3, 30.1, 0.0),
        ([1e15] * 20 + [1.0] * 20, 25.3, 30.1, 1.0),
        ([2.0, 4.0], 0.5, 1.5, 3.0),
        ([2.0, 4.0], 5.0, 6.0, None),
    ],
)
def test_mean_of_a_window_lies_within_its_values(
    values: Sequence[float], after: float, until: float, expected: float | None
) -> None:
    """A constant is its own mean to the last digit, whatever was recorded before."""
    column = Column()
    for n, what in enumerate(values, 1):
        column.append(n + 1 / 3, what, 1.0)
    assert mean([*column.held_values(after + 1 / 3, until + 1 / 3)]) == expected


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.name)
def test_packaged_recordings(path: Path) -> None:
    """Each one loads, has no real UUID, and has only metrics of the catalogue on every GPU."""
    recording = load(path)
    assert recording.duration > 30
    for gpu in recording.gpus:
        assert gpu.uuid == f"GPU-00000000-0000-0000-0000-{gpu.index:012d}"
        assert {ACTIVE, ENERGY, TEMP} <= recording.columns[gpu.index].keys() <= BY_KEY.keys()


def test_pause_is_cut_out(tmp_path: Path) -> None:
    """A pause of the recorder is skipped, with all that was counted in it."""
    counted = {1: 100, 2: 110, 3: 120, 103: 500, 104: 510}
    recording = write(tmp_path / "r", [(t, 0, {ENERGY: c, ACTIVE: t / 1000}) for t, c in counted.items()])
    assert recording.duration == 5
    player = Player(recording)
    readings = [player.at(t) for t in range(5)]
    assert [value(reading, m.ENERGY) for reading in readings] == [100, 110, 120, 120, 130]
    assert [value(reading, m.SM_ACTIVE) for reading in readings] == pytest.approx([0.001, 0.002, 0.003, 0.103, 0.104])


def test_hole_of_one_gpu(tmp_path: Path) -> None:
    """A GPU without ticks while another has some is lost for that time, and nothing is skipped."""
    ticks = [(float(t), gpu, {TEMP: t}) for t in range(1, 41) for gpu in (0, 1) if gpu == 0 or not 5 < t <= 25]
    player = Player(write(tmp_path / "r", ticks))
    assert player.source.duration == 40
    for t in range(39):
        if 5 <= t < 24:
            with pytest.raises(GpuLost) as caught:
                player.at(t, gpu=1)
            assert caught.value.reason == "lost"
        else:
            assert value(player.at(t, gpu=1), m.GPU_TEMP) == t + 1 if t != 24 else 26
        assert value(player.at(t, gpu=0), m.GPU_TEMP) == t + 1


def test_gap_of_one_metric(tmp_path: Path) -> None:
    """A metric that is unknown in a window has no value there; others have."""
    ticks = [(float(t), 0, {TEMP: t, **({} if 5 < t <= 25 else {ACTIVE: 0.5})}) for t in range(1, 41)]
    player = Player(write(tmp_path / "r", ticks))
    known = [any(series.metric is m.SM_ACTIVE for series in player.at(t).values) for t in range(39)]
    assert known == [not 5 <= t < 25 for t in range(39)]


def test_writer_reads_back(tmp_path: Path) -> None:
    """Written recordings load again, compressed or not: identities, masked or not, and values with seven digits."""
    gpu = Gpu(3, "GPU-secret", "00000000:06:00.0", "NVIDIA H200", "nvidia3", "580.1")
    for name, mask in (("a.jsonl", False), ("b.jsonl.gz", True)):
        path = tmp_path / name
        writer = RecordingWriter(path, [gpu], 0.5, mask=mask)
        writer.tick(100.0, 3, {ACTIVE: 1 / 3, ENERGY: 2.0**52})
        writer.tick(100.5, 3, {ACTIVE: 2 / 3, ENERGY: 2.0**52 + 1})
        writer.close()
        text = (gzip.decompress(path.read_bytes()) if mask else path.read_bytes()).decode()
        assert ("secret" in text) is not mask
        recording = load(path)
        assert (recording.interval, recording.duration) == (0.5, 1.0)
        (loaded,) = recording.gpus
        assert (loaded.index, loaded.model, loaded.device, loaded.driver) == (3, gpu.model, gpu.device, gpu.driver)
        assert loaded.uuid == ("GPU-00000000-0000-0000-0000-000000000003" if mask else gpu.uuid)
        assert recording.columns[3][ACTIVE].value_at(0.5) == 0.3333333
        assert recording.columns[3][ENERGY].value_at(1.0) == 2**52 + 1


# --- replay ------------------------------------------------------------------------------------------------------


def segments(path: Path, metric: str) -> list[tuple[float, float, float]]:
    """Return the values of GPU 0 with their start and end in the replay's time, computed from the file alone."""
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    interval, found, now = lines[0]["interval_seconds"], [], 0.0
    ticks = [line for line in lines[1:] if line["gpu"] == 0]
    for before, tick in pairwise([{"t": ticks[0]["t"] - interval}, *ticks]):
        gap = tick["t"] - before["t"]
        span = gap if gap <= HOLE_INTERVALS * interval else interval
        found.append((now, now + span, tick["samples"][metric]))
        now += span
    return found


@pytest.mark.parametrize("metric", [m.SM_ACTIVE, m.POWER, m.PCIE_TX], ids=str)
@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.name)
def test_downsampling_is_the_weighted_mean(path: Path, metric: Metric) -> None:
    """Recorded at 10 Hz and read every second, a value is the time-weighted mean of that second."""
    recording, parts = load(path), segments(path, metric.key)
    player = Player(recording)
    player.at(1.0 - recording.interval)  # the second from 0 to 1
    compared = 0
    for second in range(1, int(recording.duration)):
        weights = [(max(0.0, min(to, second + 1) - max(since, second)), held) for since, to, held in parts]
        mean = sum(weight * held for weight, held in weights) / sum(weight for weight, _ in weights)
        reading = player.at(second + 1 - recording.interval)
        assert value(reading, metric) == pytest.approx(mean, rel=1e-5, abs=1e-6)  # unix times are exact to 0.2 us
        assert reading.span == pytest.approx(1.0)
        compared += mean > 0
    assert compared > 10


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.0, 7.3])
@pytest.mark.parametrize("path", [*PACKAGED, FULL_LOAD], ids=lambda path: path.name)
def test_no_value_of_a_recording_is_dropped(path: Path, speed: float) -> None:
    """Three loops, read about once a second: what is played is as plausible as what was recorded."""
    recording, jitter = load(path), Random(1)
    player = Player(recording, speed=speed)
    for gpu in range(len(player.gpus)):
        accumulator = Accumulator(30.0, check_rates=False)
        for second in range(int(3 * recording.duration / speed)):
            accumulator.take(player.at(second + jitter.uniform(0, 0.003), gpu))
        assert not accumulator.rejected


@pytest.mark.slow
def test_no_part_is_played_twice_or_left_out() -> None:
    """However often it is read, the integral over one loop and a bit is that of the recording."""
    recording = load(PACKAGED[0])
    parts = segments(PACKAGED[0], ACTIVE)
    whole = sum((to - since) * held for since, to, held in parts)
    for step in (0.03, 0.7, 13.0, recording.duration):
        player, played, now = Player(recording), 0.0, 0.0
        player.at(0)
        while now < 2 * recording.duration - 1e-6:
            now = min(now + step, 2 * recording.duration)
            reading = player.at(now)
            assert reading.span is not None
            played += value(reading, m.SM_ACTIVE) * reading.span
        assert played == pytest.approx(2 * whole, rel=1e-5)


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.name)
def test_counters_never_fall(path: Path) -> None:
    """They rise from loop to loop, by the same amount each time."""
    recording = load(path)
    player = Player(recording)
    counters = [metric for metric in METRICS if metric.kind is Kind.COUNTER and metric.key in recording.columns[0]]
    assert m.ENERGY in counters
    for gpu in range(len(player.gpus)):
        readings = [player.at(0.7 * turn, gpu) for turn in range(int(3 * recording.duration / 0.7))]
        for counter in counters:
            values = [value(reading, counter) for reading in readings]
            assert all(before <= after for before, after in pairwise(values))
    column = recording.columns[0][ENERGY]
    growth = column.values[-1] - column.values[0]
    player = Player(recording)
    of_loops = [value(player.at(loop * recording.duration + 5), m.ENERGY) for loop in range(4)]
    assert growth > 1000
    assert [after - before for before, after in pairwise(of_loops)] == pytest.approx([growth] * 3)


@pytest.mark.parametrize("speed", [0.5, 1, 4, 100])
def test_speed(tmp_path: Path, speed: float) -> None:
    """At twice the speed, the same seconds of the recording take half the time; the span is in the replay's time."""
    recording = write(tmp_path / "r", [(float(t), 0, {TEMP: t, ACTIVE: t / 1000}) for t in range(1, 101)])
    player = Player(recording, speed=speed)
    first, second = player.at(0), player.at(10 / speed)
    assert [value(first, m.GPU_TEMP), value(second, m.GPU_TEMP)] == pytest.approx([1, 6.5])
    assert value(second, m.SM_ACTIVE) == pytest.approx(0.0065)
    assert first.span == pytest.approx(1 / speed)
    assert second.span == pytest.approx(10 / speed)


@pytest.mark.parametrize("duration", [5.01, 7.3, 11.1])
def test_buffered_samples_of_many_loops(tmp_path: Path, duration: float) -> None:
    """Each tick once, however the ends of the loops are rounded."""
    key, interval = m.POWER_INSTANT.key, duration / 5
    player = Player(write(tmp_path / "r", [(n * interval, 0, {key: n}) for n in range(1, 6)], interval))
    seconds = [number * duration / 3 for number in range(300)]
    samples = [sample for second in seconds for taken in player.at(second).buffered.values() for sample in taken]

    assert [value for _, value in samples[:10]] == [1, 2, 3, 4, 5] * 2
    assert len(samples) == pytest.approx(500, abs=5)
    assert all(before[0] < after[0] for before, after in pairwise(samples))


@pytest.mark.parametrize(("interval", "played"), [(0.1, True), (0.2, True), (1.0, False)])
def test_integrals_of_utilisation(tmp_path: Path, interval: float, played: bool) -> None:
    """The gauge is that of the driver's last sample of 200 ms: recorded less often, it lacks samples."""
    ticks = [(n * interval, 0, {m.GPU_UTIL.key: 100.0 * (n % 4 == 0)}) for n in range(1, 201)]
    player = Player(write(tmp_path / "r", ticks, interval))
    seconds = 150 * interval
    first, last = player.at(interval), player.at(interval + seconds)

    assert (m.GPU_UTIL_SECONDS in last.unsupported) is not played
    if played:
        rise = value(last, m.GPU_UTIL_SECONDS) - value(first, m.GPU_UTIL_SECONDS)
        assert rise == pytest.approx(seconds / 4, abs=interval)
    else:
        assert last.unsupported[m.GPU_UTIL_SECONDS] == "not_recorded"


@pytest.mark.parametrize("loop", [True, False])
def test_end(tmp_path: Path, loop: bool) -> None:
    """After its last tick, a recording is down with the reason `ended`, or starts again."""
    player = Player(write(tmp_path / "r", [(float(t), 0, {TEMP: 40 + t}) for t in range(1, 6)]), loop=loop)
    assert [value(player.at(t), m.GPU_TEMP) for t in range(5)] == pytest.approx([41, 42, 43, 44, 45])
    assert not player.source.ended
    if loop:
        assert value(player.at(5), m.GPU_TEMP) == pytest.approx(41)
    else:
        with pytest.raises(GpuLost, match="--loop") as caught:
            player.at(5)
        assert caught.value.reason == "ended"
        assert player.source.ended


def test_states_are_the_latest_and_bits_come_from_their_mask(tmp_path: Path) -> None:
    """A mean of masks or link widths would be wrong: the latest value is used, and bits are those of its mask."""
    masks, widths = [1, 4, 4, 12, 0, 8], [16, 8, 8, 16, 4, 8]
    samples = [{m.CLOCK_EVENTS.key: mask, m.PCIE_WIDTH.key: width} for mask, width in zip(masks, widths, strict=True)]
    player = Player(write(tmp_path / "r", [(float(t), 0, each) for t, each in enumerate(samples, 1)]))
    player.at(0)
    for t in (3, 4):
        reading = player.at(t)
        assert value(reading, m.CLOCK_EVENTS) == masks[t]
        assert value(reading, m.PCIE_WIDTH) == widths[t]
        for bit, metric in enumerate(m.CLOCK_EVENT_ACTIVE):
            assert value(reading, metric) == (masks[t] >> bit) & 1


def test_one_recorded_row_serves_all_of_its_field(tmp_path: Path) -> None:
    """A field that was recorded in one unit is played in all; others are reported as not recorded."""
    player = Player(write(tmp_path / "r", [(1.0, 0, {ENERGY: 5000}), (2.0, 0, {ENERGY: 6000})]))
    reading = player.at(1)
    assert [value(reading, m.ENERGY), value(reading, m.ENERGY_JOULES)] == pytest.approx([6000, 6])
    assert {series.metric for series in reading.values} == {m.ENERGY, m.ENERGY_JOULES}
    asked = {row for row in selected(MetricSet.FULL) if row.entity not in OTHER_ENTITIES}
    assert set(reading.unsupported) == asked - {m.ENERGY, m.ENERGY_JOULES}
    assert set(reading.unsupported.values()) == {"not_recorded"}
