"""The simulated fleet's history for `make boards`: its encoding, and the faults of its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from tests.boards import fleet, plan
from tests.boards.history import CLUSTER, STEP, Recorder
from tests.operation.encode import ABSENT, LINE, SEQUENCE


def test_every_value_is_written(tmp_path: Path) -> None:
    """Values that rarely change are constants, others a sequence; a series may be absent for some scrapes."""
    pages = [f'steady 1\nmoving{{gpu="0"}} {scrape}\n' + "late 2\n" * (scrape >= 3) for scrape in range(10)]
    pages[5] = "steady 1\n"
    recorder = Recorder()
    for scrape, page in enumerate(pages):
        recorder.add("gpu/node-000:9400", page, scrape)
    recorder.write(tmp_path / "period.json", 600)
    period = json.loads((tmp_path / "period.json").read_text())
    series = {each["Labels"]["__name__"]: each for each in period["Series"]}
    assert (period["Start"], period["Step"], period["Ticks"]) == (600, STEP, 10)
    assert series["moving"]["Labels"] == {
        "__name__": "moving",
        "job": "gpu",
        "instance": "node-000:9400",
        "cluster": CLUSTER,
        "gpu": "0",
    }
    assert series["steady"]["Parts"] == [[10, LINE, 1, 0]]
    assert series["late"]["Parts"] == [[3, ABSENT, 0, 0], [2, LINE, 2, 0], [1, ABSENT, 0, 0], [4, LINE, 2, 0]]
    assert series["moving"]["Parts"] == [[5, SEQUENCE, 0, 1], [1, ABSENT, 0, 0], [4, SEQUENCE, 1, 1]]
    assert period["Loads"] == [[0, 1, 2, 3, 4], [6, 7, 8, 9]]


def test_stages_keep_counters_growing() -> None:
    """At the beginning of a fault, energy goes on from where it was, at another power."""
    (fault,) = (each for each in plan.FAULTS if each.mode == "GpuCollectiveStall")
    clock, name = fleet.Clock(), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    number = next(place for place, (job, _) in enumerate(plan.placed().values()) if job.name == fault.job)
    joules = []
    with fleet.started(clock, STEP) as nodes:
        for at in (0.0, fault.begin - STEP, fault.begin, fault.begin + STEP):
            clock.now = at
            nodes[number].tick()
            line = next(
                each for each in nodes[number].page.decode().splitlines() if each.startswith(f'{name}{{gpu="0"')
            )
            joules.append(float(line.rpartition(" ")[2]) * m.MILLI)
    before, after = joules[2] - joules[1], joules[3] - joules[2]
    assert 600 * STEP < before < 700 * STEP
    assert 100 * STEP < after < 150 * STEP
