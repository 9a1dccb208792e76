"""Means that are expensive or many are read more rarely than others, and are as exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fakes.driver import FakeDriver

pytestmark = pytest.mark.slow

READS = """
import json, time
from gpu_exporter.catalogue import metrics as m
from gpu_exporter.model.metric import MetricSet, Pace
from gpu_exporter.sources.nvml.source import NvmlSource

source = NvmlSource()
source.open()
device = source.attach(0, m.selected(MetricSet.FULL))
fast, steady = frozenset({Pace.FAST}), frozenset({Pace.FAST, Pace.STEADY})
for paces in (frozenset(Pace), fast, fast, steady, steady | {Pace.SLOW}):
    reading = device.read(paces)
    read = {series.metric: [value, reading.spans.get(series)] for series, value in reading.values.items()}
    print(json.dumps([read.get(metric, [None, None]) for metric in (m.SM_ACTIVE, m.GR_ENGINE_ACTIVE, m.NVDEC[0])]))
    time.sleep(0.2)
"""


def test_a_rare_mean_covers_the_time_since_the_last_one(tmp_path: Path) -> None:
    """It is read as soon as there are two samples, then at its pace."""
    driver = FakeDriver(tmp_path)
    driver.set("Gpm.1", 60)
    driver.set("Gpm.2", 40)
    driver.set("Gpm.30", 20)
    env = {**os.environ, **driver.environment}
    said = subprocess.run([sys.executable, "-c", READS], env=env, capture_output=True, text=True, check=True).stdout
    sm, engine, decoder = zip(*(json.loads(line) for line in said.splitlines()), strict=True)

    assert [value for value, _ in sm] == [None, 0.4, 0.4, 0.4, 0.4]
    assert [value for value, _ in engine] == [None, 0.6, None, 0.6, 0.6]
    assert [value for value, _ in decoder] == [None, 0.2, None, None, 0.2]
    assert engine[3][1] == pytest.approx(sum(span for _, span in sm[2:4]), rel=0.2)
    assert decoder[4][1] == pytest.approx(sum(span for _, span in sm[2:]), rel=0.2)
