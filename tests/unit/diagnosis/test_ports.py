"""Findings about network ports name them, as their alerts do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.headline import findings
from gpu_exporter.diagnosis.incident_words import sentence
from gpu_exporter.diagnosis.incidents import of_diagnoses
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample, samples_by_name
from gpu_exporter.diagnosis.window import Window, seen
from gpu_exporter.model.metric import Metric


def scrape(at: float, faulty: bool) -> Scrape:
    """Return a page of two GPUs with two near ports each, one of which is down."""
    samples = []
    for gpu in ("0", "1"):
        labels = {"gpu": gpu, "UUID": f"GPU-{gpu}", "Hostname": "node-7", "modelName": "NVIDIA H100"}
        ports = [{"device": f"mlx5_{gpu}{letter}", "port": "1"} for letter in "ba"]
        rows: list[tuple[Metric, dict[str, str], float]] = [
            (m.UP, {}, 1.0),
            (m.NIC_UP, {}, float(not faulty)),
            *((m.NIC_INFO, port, 1.0) for port in ports),
            *((m.NIC_FAULT, {**ports[0], "fault": "down"}, 1.0) for _ in range(faulty)),
        ]
        samples += [ScrapedSample(metric.name, {**labels, **more}, value) for metric, more, value in rows]
    return Scrape(at, samples)


def whole(scrapes: list[Scrape]) -> Window:
    return seen(scrapes, {})


def rolling(scrapes: list[Scrape]) -> Window:
    """As a running exporter reads its own snapshots."""
    window = RollingWindow(20.0)
    for each in scrapes:
        window.add(each.at, samples_by_name(each.samples))
    return window.recent()


@pytest.mark.parametrize("read", [whole, rolling])
def test_a_port_that_is_down(read: Callable[[list[Scrape]], Window]) -> None:
    diagnoses = diagnose(read([scrape(1000.0 + second, faulty=second > 2) for second in range(8)]))
    (incident,) = of_diagnoses(diagnoses, {})

    assert [finding["words"] for each in diagnoses for finding in findings(each)] == [
        "A network port of this GPU is down: mlx5_0b port 1",
        "A network port of this GPU is down: mlx5_1b port 1",
    ]
    assert sentence(incident) == "A network port of each of GPUs 0, 1 on node-7 is down: mlx5_0b port 1, mlx5_1b port 1"
