"""Histograms in Python and in Prometheus give the same results on random data, also after counter resets."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.signals import POWER_SWING, SM_IDLE
from gpu_exporter.conditions.signal import WINDOW_SECONDS, Read, Signal, Spread, Within
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.model.metric import Metric
from tests.rules.promtool import Case, Expect, check
from tests.rules.series import Device, minutes
from tests.rules.shapes import STEP

# All within the window: Prometheus 3 excludes a scrape at its edge, older versions do not.
STEPS, FLEET = 9, 12


def counters(chance: random.Random, metric: Metric) -> list[list[int]]:
    """Yield the buckets of a histogram at each scrape, with restarts of its exporter."""
    kind = chance.choice(("any", "one bucket", "two", "still", "highest"))
    edges = len(metric.edges) + 1
    places = {"any": range(edges), "one bucket": [chance.randrange(edges - 1)], "two": [1, edges - 2], "still": []}
    counts, found = [chance.randrange(10**4, 10**6) for _ in range(edges)], []
    for step in range(STEPS):
        if step == STEPS // 2 and chance.random() < 0.3:
            counts = [0] * edges
        for place in places.get(kind, [edges - 1]):
            counts[place] += chance.randrange(1500)
        found.append([sum(counts[: place + 1]) for place in range(edges)])
    return found


def texts(metric: Metric) -> Sequence[str]:
    return [*(repr(edge) for edge in metric.edges), "+Inf"]


def cases(signal: Signal, seed: int) -> Iterator[tuple[Device, list[list[int]], Metric]]:
    (way,) = signal.definitions
    assert isinstance(way, Read)
    (metric,) = (row for row in m.METRICS if row.name == way.name)
    for number in range(FLEET):
        device = Device(f"node-{number}", 0, [minutes(STEPS * STEP / 60)], full=False)
        yield device, counters(random.Random(f"{seed}/{number}/{signal.name}"), metric), metric


@pytest.mark.parametrize("signal", [POWER_SWING, SM_IDLE], ids=lambda signal: str(signal.name))
@pytest.mark.parametrize("seed", range(3))
def test_python_and_prometheus_agree(tmp_path: Path, signal: Signal, seed: int) -> None:
    devices, more, expected = [], [], []
    for device, counts, metric in cases(signal, seed):
        labels = {"gpu": "0", "UUID": device.uuid}
        devices.append(device)
        for place, le in enumerate(texts(metric)):
            series = ",".join(f'{name}="{value}"' for name, value in {**labels, **device.scrape, "le": le}.items())
            more.append(
                {
                    "series": f"{metric}_bucket{{{series}}}",
                    "values": " ".join(str(each[place]) for each in counts),
                }
            )
        pages = [
            Scrape(
                step * STEP,
                [
                    ScrapedSample(f"{metric}_bucket", {**labels, "le": le}, value)
                    for le, value in zip(texts(metric), each, strict=True)
                ],
            )
            for step, each in enumerate(counts)
        ]
        shown = seen(pages, {})
        (part,) = shown.devices
        points = shown.points(part, signal)
        if points and points[-1][0] == pages[-1].at:
            expected.append(({"UUID": device.uuid}, round(points[-1][1] * 1e6)))
    assert len(expected) > FLEET / 2
    name = f"round(max by (UUID) ({signal.record}) * 1e6)"
    check(tmp_path, [Case(signal.name, devices, [Expect(name, expected)], more=more)])


def test_shapes() -> None:
    """A constant within a bucket, one at an edge, a square wave, and no observations."""
    below = {50.0: 0.0, 100.0: 100.0, 150.0: 100.0, inf: 100.0}
    assert Spread().value(below) == pytest.approx(20)
    assert Spread().value({50.0: 50.0, 100.0: 100.0, inf: 100.0}) == pytest.approx(40)
    assert Spread().value({100.0: 50.0, 150.0: 50.0, 900.0: 50.0, 950.0: 100.0, inf: 100.0}) == pytest.approx(460)
    assert Within(100.0).value(below) == 1.0
    for nothing in ({}, {50.0: 0.0, inf: 0.0}):
        assert Spread().value(nothing) is None
        assert Within(50.0).value(nothing) is None


def test_only_the_window_counts() -> None:
    """Observations before the window are ignored."""
    labels = {"gpu": "0", "UUID": "GPU-0"}

    def page(at: float, idle: float, busy: float) -> Scrape:
        below = {"0.01": idle, "+Inf": idle + busy}
        return Scrape(
            at, [ScrapedSample(f"{m.SM_SHARES}_bucket", {**labels, "le": le}, value) for le, value in below.items()]
        )

    pages = [page(0, 0, 0), page(100, 1000, 0), page(100 + WINDOW_SECONDS, 1000, 3000), page(1000, 2000, 3000)]
    shown = seen(pages, {})
    (part,) = shown.devices
    assert shown.points(part, SM_IDLE) == [(100, 1.0), (100 + WINDOW_SECONDS, 0.0)]
